"""One draw from the posterior: a graph with a sampled function for every variable."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from ._basis import WAVE_EDGE, Domain

# Normalised values at which bends are tabulated. np.interp between them is faster than
# evaluating the sines for each of the thousands of interventions.
TABLE_POINTS = np.linspace(-3.0, 3.0, 301)


@dataclasses.dataclass(frozen=True, slots=True)
class MechanismSample:
    """One function of a variable's parents, and its noise.

    Attributes:
        parents: positions of the parents among the variables.
        constant: constant part.
        slopes: slope for each parent, per half-width.
        bend_tables: bend of each parent, at `TABLE_POINTS`.
        waves: weights of the sines, then of the cosines, over all parents.
        frequencies: frequency vectors of the waves.
        noise: values of the noise, all equally likely.
    """

    parents: tuple[int, ...]
    constant: float
    slopes: Float[np.ndarray, " p"]
    bend_tables: Float[np.ndarray, "p points"]
    waves: Float[np.ndarray, " k"]
    frequencies: Float[np.ndarray, "waves p"]
    noise: Float[np.ndarray, " n"]

    def __call__(
        self, parents: list[Float[np.ndarray, "_ _"]]
    ) -> Float[np.ndarray, "rows draws"]:
        """Evaluate the function without noise."""
        value: np.ndarray = np.full((1, 1), self.constant)
        for u, slope, table in zip(parents, self.slopes, self.bend_tables, strict=True):
            value = value + slope * u
            if table.any():
                value = value + np.interp(u, TABLE_POINTS, table)
        if self.waves.any():
            count = len(self.frequencies)
            sine, cosine = self.waves[:count], self.waves[count:]
            # a sin t + b cos t = r cos (t - p): one cosine for both, and in 32 bits,
            # as these cosines take most of a campaign's time.
            size, phase = np.hypot(sine, cosine), np.arctan2(sine, cosine)[:, None]
            clipped = np.stack(
                [part.ravel() for part in np.broadcast_arrays(*parents)], axis=0
            )
            clipped = np.clip(clipped, -WAVE_EDGE, WAVE_EDGE).astype(np.float32)
            angles = self.frequencies.astype(np.float32) @ clipped
            waves = size @ np.cos(angles - phase.astype(np.float32))
            value = value + waves.reshape(np.broadcast(*parents).shape)
        return value


@dataclasses.dataclass(frozen=True, slots=True)
class PosteriorSample:
    """A structural causal model drawn from the posterior.

    It predicts the mean effect of many interventions at once.

    Attributes:
        domain: ranges of the variables.
        mechanisms: function of each variable that the outputs need.
        order: the variables, causes first.
    """

    domain: Domain
    mechanisms: Mapping[int, MechanismSample]
    order: tuple[int, ...]

    def predict_means(
        self,
        targets: Sequence[int],
        values: Float[np.ndarray, "points targets"],
        outputs: Sequence[int],
        noise: Int[np.ndarray, "d draws"],
    ) -> Float[np.ndarray, "points outputs"]:
        """Predict the means of variables under interventions."""
        needed = find_ancestors(lambda v: self.mechanisms[v].parents, outputs, targets)
        found: dict[int, np.ndarray] = {}
        for v in self.order:
            if v in targets:
                found[v] = values[:, targets.index(v), None]
            elif v in needed:
                mechanism = self.mechanisms[v]
                parents = [
                    self.domain.normalize(found[u], u) for u in mechanism.parents
                ]
                drawn = mechanism.noise[noise[v] % len(mechanism.noise)]
                # Control variate: the noise has mean 0, and that of a few draws would
                # add its own error to every predicted mean.
                drawn = drawn - drawn.mean()
                found[v] = mechanism(parents) + drawn
        return np.stack(
            [np.broadcast_to(found[v].mean(1), (len(values),)) for v in outputs], axis=1
        )


def find_ancestors(
    parents: Callable[[int], Iterable[int]],
    outputs: Iterable[int],
    targets: Collection[int] = (),
) -> set[int]:
    """Return the outputs and their causes, without the causes of set variables."""
    found, pending = set[int](), list(outputs)
    while pending:
        v = pending.pop()
        if v not in found:
            found.add(v)
            if v not in targets:
                pending += parents(v)
    return found
