"""Arrays of interventions and measured outcomes, and posterior predictions for them."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from ._basis import Domain
from ._ensemble import PosteriorEnsemble

# Draws of the noise for each predicted mean; all interventions share them.
_NUM_DRAWS = 32


@dataclasses.dataclass(frozen=True, slots=True)
class Points:
    """Interventions, grouped by the variables that they set.

    Attributes:
        targets: for each group the variables that it sets.
        values: for each group the values to which they are set; `[points, targets]`.
    """

    targets: tuple[tuple[int, ...], ...]
    values: tuple[Float[np.ndarray, "_ _"], ...]

    def __len__(self) -> int:
        return sum(map(len, self.values))

    @property
    def group(self) -> Int[np.ndarray, " points"]:
        """The group to which each point belongs."""
        sizes = [len(values) for values in self.values]
        return np.repeat(np.arange(len(self.targets)), sizes)

    def at(self, index: int) -> tuple[tuple[int, ...], Float[np.ndarray, " targets"]]:
        """Return the variables that a point sets, and their values."""
        for targets, values in zip(self.targets, self.values, strict=True):
            if index < len(values):
                return targets, values[index]
            index -= len(values)
        raise IndexError(index)

    def find_nearest(
        self, targets: tuple[int, ...], values: Float[np.ndarray, " targets"]
    ) -> int:
        """Return the point nearest to an intervention on the same variables."""
        g = self.targets.index(targets)
        inside = np.argmin(np.abs(self.values[g] - values).sum(1))
        return int(np.flatnonzero(self.group == g)[0] + inside)

    def merge(self, other: "Points") -> "Points":
        """Return the points of both, with one group for each set of variables."""
        groups: dict[tuple[int, ...], list[np.ndarray]] = {}
        for points in (self, other):
            for targets, values in zip(points.targets, points.values, strict=True):
                groups.setdefault(targets, []).append(values)
        return Points(
            tuple(groups), tuple(np.concatenate(values) for values in groups.values())
        )

    @classmethod
    def from_interventions(
        cls, each: Sequence[tuple[tuple[int, ...], Sequence[float] | np.ndarray]]
    ) -> tuple["Points", Int[np.ndarray, " points"]]:
        """Group single interventions; also return the position of each of them."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for i, (targets, _) in enumerate(each):
            groups.setdefault(targets, []).append(i)
        order = [i for members in groups.values() for i in members]
        values = tuple(
            np.array([each[i][1] for i in members], float).reshape(
                len(members), len(targets)
            )
            for targets, members in groups.items()
        )
        positions = np.empty(len(each), np.int64)
        positions[order] = np.arange(len(each))
        return cls(tuple(groups), values), positions


@dataclasses.dataclass(frozen=True, slots=True)
class Outcomes:
    """The measured means of experiments.

    Attributes:
        points: the experiments.
        mean: mean of the measured variable in each experiment.
        error: standard error of that mean; > 0.
    """

    points: Points
    mean: Float[np.ndarray, " experiments"]
    error: Float[np.ndarray, " experiments"]


def predict_means(
    ensemble: PosteriorEnsemble,
    points: Points,
    outputs: Sequence[int],
    rng: np.random.Generator,
) -> Float[np.ndarray, "samples points outputs"]:
    """Predict the means of variables under interventions, in every sample."""
    d = len(ensemble.graphs[0])
    noise = rng.integers(0, 1 << 30, (len(ensemble.samples), d, _NUM_DRAWS))
    return np.stack(
        [
            np.concatenate(
                [
                    sample.predict_means(targets, values, outputs, drawn)
                    for targets, values in zip(
                        points.targets, points.values, strict=True
                    )
                ]
                or [np.empty((0, len(outputs)))]
            )
            for sample, drawn in zip(ensemble.samples, noise, strict=True)
        ]
    )


def rbf_kernel(
    one: Points, other: Points, domain: Domain, length: float
) -> Float[np.ndarray, "one other"]:
    """Compute the squared-exponential kernel between interventions.

    It is 0 between interventions on different sets of variables: an effect of one says
    nothing of how far the predicted effect of another is off.
    """
    found = np.zeros((len(one), len(other)))
    rows, columns = one.group, other.group
    for g, (targets, values) in enumerate(zip(one.targets, one.values, strict=True)):
        if targets not in other.targets:
            continue
        h = other.targets.index(targets)
        half = domain.half_width[list(targets)]
        apart = (values[:, None] - other.values[h][None]) / half / length
        found[np.ix_(rows == g, columns == h)] = np.exp(
            -0.5 * np.sum(apart**2, axis=-1)
        )
    return found
