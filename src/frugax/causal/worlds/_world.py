"""One way the world may be: a graph and a function for every variable.

It answers what an intervention would do on average, for many values at once, and can
stand in for the real experiment.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from ._basis import Basis
from ._drawn import Drawn


@dataclasses.dataclass(frozen=True, slots=True)
class World:
    """A structural causal model drawn from what is known.

    Attributes:
        basis: ranges of the variables.
        drawn: the function of each variable; None where nobody asks for it.
        order: the variables, causes first.
    """

    basis: Basis
    drawn: tuple[Drawn | None, ...]
    order: tuple[int, ...]

    def expected(
        self,
        where: Sequence[int],
        values: Float[np.ndarray, "points places"],
        wanted: Sequence[int],
        noise: Int[np.ndarray, "d draws"],
    ) -> Float[np.ndarray, "points wanted"]:
        """What variables are on average when some are set.

        Args:
            where: the variables that are set.
            values: to what, one row for each intervention.
            wanted: the variables that are asked for.
            noise: which of its values each variable's noise takes, modulo their
                number; the same for all interventions, so that they compare well.
        """
        found = self._run(where, values, wanted, noise)
        return np.stack(
            [np.broadcast_to(found[v].mean(1), (len(values),)) for v in wanted], axis=1
        )

    def sample(
        self,
        where: Sequence[int],
        values: Sequence[float],
        rows: int,
        rng: np.random.Generator,
    ) -> Float[np.ndarray, "rows d"]:
        """Data of one experiment, or without one if nothing is set.

        Args:
            where: the variables that are set.
            values: to what.
            rows: how many rows.
            rng: where the noise comes from.
        """
        d = len(self.drawn)
        noise = rng.integers(0, 1 << 30, (d, rows))
        found = self._run(
            where, np.asarray(values, float).reshape(1, -1), range(d), noise, raw=True
        )
        return np.stack(
            [np.broadcast_to(found[v], (1, rows))[0] for v in range(d)], axis=1
        )

    def _run(
        self,
        where: Sequence[int],
        values: Float[np.ndarray, "points places"],
        wanted: Sequence[int],
        noise: Int[np.ndarray, "d draws"],
        *,
        raw: bool = False,
    ) -> dict[int, np.ndarray]:
        needed = self._causes(wanted, where)
        found: dict[int, np.ndarray] = {}
        for v in self.order:
            if v in where:
                found[v] = values[:, where.index(v), None]
            elif v in needed:
                drawn = self._function(v)
                scaled = [self.basis.scaled(found[u], u) for u in drawn.parents]
                shaken = drawn.noise[noise[v] % len(drawn.noise)]
                # On average noise is nothing: without this a few draws would say so
                # only roughly.
                shaken = shaken if raw else shaken - shaken.mean()
                found[v] = drawn(scaled) + shaken
        return found

    def _causes(self, wanted: Sequence[int], where: Sequence[int]) -> set[int]:
        needed, left = set[int](), list(wanted)
        while left:
            v = left.pop()
            if v not in needed:
                needed.add(v)
                if v not in where:
                    left += self._function(v).parents
        return needed

    def _function(self, v: int) -> Drawn:
        drawn = self.drawn[v]
        if drawn is None:
            raise ValueError(f"variable {v} was not wanted when this world was drawn.")
        return drawn
