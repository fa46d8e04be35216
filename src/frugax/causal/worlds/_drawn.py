"""One function of a variable's parents, fast to evaluate at many points."""

import dataclasses

import numpy as np
from jaxtyping import Float

from ._shape import EDGE

TABLE = np.linspace(-3.0, 3.0, 301)  # where bends are written down


@dataclasses.dataclass(frozen=True, slots=True)
class Drawn:
    """One function of a variable's parents, and its noise.

    Attributes:
        parents: their positions among the variables.
        constant: its constant part.
        lines: slope for each parent, per half-width.
        tables: bend of each parent, at `TABLE`.
        waves: weights of sines, then of cosines over all parents.
        frequencies: of the waves.
        noise: values the noise takes, all equally likely.
    """

    parents: tuple[int, ...]
    constant: float
    lines: Float[np.ndarray, " p"]
    tables: Float[np.ndarray, "p points"]
    waves: Float[np.ndarray, " k"]
    frequencies: Float[np.ndarray, "waves p"]
    noise: Float[np.ndarray, " n"]

    def __call__(
        self, scaled: list[Float[np.ndarray, "_ _"]]
    ) -> Float[np.ndarray, "rows draws"]:
        """Its value without noise.

        Args:
            scaled: the parents' values, as `Basis.scaled` gives them; one row or draw
                counts for all.
        """
        value: np.ndarray = np.full((1, 1), self.constant)
        for u, slope, table in zip(scaled, self.lines, self.tables, strict=True):
            value = value + slope * u
            if table.any():
                value = value + np.interp(u, TABLE, table)
        if self.waves.any():
            count = len(self.frequencies)
            sine, cosine = self.waves[:count], self.waves[count:]
            # One cosine for both, and in 32 bits: these are most of a campaign's time.
            size, phase = np.hypot(sine, cosine), np.arctan2(sine, cosine)
            clipped = [np.clip(u, -EDGE, EDGE).astype(np.float32) for u in scaled]
            for row, r, p in zip(
                self.frequencies.tolist(), size.tolist(), phase.tolist(), strict=True
            ):
                angle = sum(f * u for f, u in zip(row, clipped, strict=True))
                value = value + r * np.cos(angle - p)
        return value
