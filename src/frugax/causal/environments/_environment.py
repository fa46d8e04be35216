"""A problem with a known answer: a model, what may be changed, and the true optimum.

Reads: an SCM, ranges, and the exact mean of the target. Gives: the best intervention
there is, so that regret is measured against the truth and not against a guess.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from frugax.causal.data import Samples
from frugax.causal.scm import SCM, Intervention, intervene, sample

Mean: TypeAlias = Callable[
    [Mapping[str, Float[np.ndarray, " points"]]], Float[np.ndarray, " points"]
]
"""The target's expectation where variables are set to values, one for each point."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Environment:
    """A simulator to try a campaign on.

    Attributes:
        name: what it is called.
        scm: the true model; its target is the one to optimise.
        ranges: the variables that may be set, and from where to where.
        minimise: whether a small target is good.
        largest_set: how many variables one experiment may set.
        mean: the target's expectation at many points at once, from arrays of values by
            name; `expected` asks it for one intervention.
        grid: points of the search for the optimum along one variable.
    """

    name: str
    scm: SCM
    ranges: Mapping[str, tuple[float, float]]
    minimise: bool = True
    largest_set: int = 2
    mean: Mean
    grid: int = 1201

    def __repr__(self) -> str:
        wants = "minimise" if self.minimise else "maximise"
        ranges = (f"{n} in [{a:g}, {b:g}]" for n, (a, b) in self.ranges.items())
        return (
            f"Environment({self.name}: {wants} {self.target} by {', '.join(ranges)}; "
            f"{self.scm!r})"
        )

    @property
    def target(self) -> str:
        """The variable to optimise."""
        return str(self.scm.target)

    @property
    def variables(self) -> tuple[str, ...]:
        """What samples show: all variables but the hidden ones."""
        return self.scm.observed

    def expected(self, intervention: Intervention | None = None) -> float:
        """The target's expectation under the true model, by quadrature.

        Args:
            intervention: which variables are set; nothing by default.

        Raises:
            ValueError: it does more than to set variables that have a range.
        """
        intervention = intervention or Intervention()
        for change in intervention.changes:
            if change.kind != "perfect" or change.target not in self.ranges:
                raise ValueError(
                    f"{intervention}: in {self.name!r} experiments set "
                    f"{', '.join(self.ranges)} and do nothing else."
                )
        values = {name: np.full(1, v) for name, v in intervention.values.items()}
        return float(self.mean(values)[0])

    def regret(self, intervention: Intervention | None = None) -> float:
        """How much worse than the best its expected target is; >= 0.

        Args:
            intervention: which variables are set; nothing by default.

        Raises:
            ValueError: it does more than to set variables within their ranges, or sets
                more of them at once than `largest_set`.
        """
        values = {} if intervention is None else intervention.values
        for name, value in values.items():
            low, high = self.ranges.get(name, (-np.inf, np.inf))  # `expected` refuses
            slack = 1e-6 * (high - low)  # float32's rounding of an end
            if not low - slack <= value <= high + slack:
                raise ValueError(
                    f"{intervention}: {name!r} is out of [{low:g}, {high:g}], where "
                    "the best was sought that regret counts from; `expected` has no "
                    "such limits."
                )
        if len(values) > self.largest_set:
            raise ValueError(
                f"{intervention} sets {len(values)} variables, but the best that "
                f"regret counts from sets at most {self.largest_set}: see largest_set."
            )
        gap = self.expected(intervention) - self.optimum
        return gap if self.minimise else -gap

    def sample(
        self, n: int, *, seed: int, intervention: Intervention | None = None
    ) -> Samples:
        """What an experiment gives: rows of the true model, hidden variables left out.

        Args:
            n: rows.
            seed: of the noise.
            intervention: what is changed; nothing by default.

        Raises:
            ValueError: the intervention names no variable of the model.
        """
        return sample(self.scm, n, seed=seed, intervention=intervention)

    @property
    def best(self) -> Intervention:
        """An intervention within the ranges with the best expected target."""
        return self._searched[0]

    @property
    def optimum(self) -> float:
        """The expected target of `best`."""
        return self._searched[1]

    @functools.cached_property
    def _searched(self) -> tuple[Intervention, float]:
        """The best of every set of variables, and of doing nothing."""
        sign = 1.0 if self.minimise else -1.0
        found: list[tuple[float, Intervention]] = [
            (sign * self.expected(), Intervention())
        ]
        sizes = range(1, min(self.largest_set, len(self.ranges)) + 1)
        for names in itertools.chain.from_iterable(
            itertools.combinations(self.ranges, size) for size in sizes
        ):
            value, at = smallest(
                lambda points, names=names: (
                    sign * self.mean(dict(zip(names, points.T, strict=True)))
                ),
                [self.ranges[name] for name in names],
                self.grid,
            )
            found.append((value, intervene(**dict(zip(names, at, strict=True)))))
        # The first of equals: a smaller set that is as good costs less.
        value, best = min(found, key=lambda pair: round(pair[0], 9))
        return best, sign * value


def smallest(
    function: Callable[
        [Float[np.ndarray, "points dims"]], Float[np.ndarray, " points"]
    ],
    ranges: list[tuple[float, float]],
    grid: int = 1201,
) -> tuple[float, list[float]]:
    """The least value of a function within a box, and where it is.

    A grid over all of it, then ever finer ones around its best points, which lie apart:
    a second basin is searched too if it is wider than some steps of the first grid.

    Args:
        function: values at points `(points, dims)`.
        ranges: ends of the box.
        grid: points of the first grid in one dimension; fewer along each of several.
    """
    # Ten times as many evaluations for each dimension more, not a thousand times.
    steps = max(int((grid * 10 ** (len(ranges) - 1)) ** (1 / len(ranges))), 5)
    low, high = (np.array(ends, float) for ends in zip(*ranges, strict=True))
    points, values = _grid(function, low, high, steps)
    step = (high - low) / (steps - 1)
    best, at = np.inf, low
    for start in _apart(points[values.argsort()], 2 * step, most=3):
        centre, width = start, step
        while (width > 1e-6 * (high - low)).any():
            ends = np.maximum(centre - width, low), np.minimum(centre + width, high)
            points, values = _grid(function, *ends, 9)
            centre, width = points[values.argmin()], width / 4
            if values.min() < best:
                best, at = float(values.min()), centre
    return best, [float(value) for value in at]


def _apart(points: np.ndarray, gap: np.ndarray, most: int) -> list[np.ndarray]:
    """The first of some points that are further from each other than a gap."""
    chosen: list[np.ndarray] = []
    for point in points:
        if all((np.abs(point - other) > gap).any() for other in chosen):
            chosen.append(point)
        if len(chosen) == most:
            break
    return chosen


def _grid(
    function: Callable[[np.ndarray], np.ndarray],
    low: np.ndarray,
    high: np.ndarray,
    steps: int,
) -> tuple[np.ndarray, np.ndarray]:
    """All points of a grid over a box, and their values."""
    axes = [np.linspace(a, b, steps) for a, b in zip(low, high, strict=True)]
    points = np.stack([axis.ravel() for axis in np.meshgrid(*axes)], 1)
    # In parts whose work fits into the processor's cache.
    return points, np.concatenate(
        [function(part) for part in np.array_split(points, -(-len(points) // 64))]
    )
