"""`Environment`: a simulated system with a known optimum, to measure regret."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

from frugax.causal.data import Samples
from frugax.causal.scm import (
    SCM,
    Intervention,
    intervene,
    interventional_mean,
    sample,
)

Mean: TypeAlias = Callable[
    [Mapping[str, Float[np.ndarray, " points"]]], Float[np.ndarray, " points"]
]
"""The mean of the target where variables are set to values, one for each point."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Environment:
    """A simulated system to run a campaign on.

    Attributes:
        name: used in messages.
        scm: the true model; a campaign optimises its target.
        ranges: the settable variables, each with its lowest and highest value.
        minimize: whether less of the target is better.
        max_targets: most variables that one experiment may set.
        mean: means of the target at many points, from arrays of values by name;
            `expected` evaluates it for one intervention.
        grid: points of the search for the optimum along one variable.
    """

    name: str
    scm: SCM
    ranges: Mapping[str, tuple[float, float]]
    minimize: bool = True
    max_targets: int = 2
    mean: Mean
    grid: int = 1201

    def __repr__(self) -> str:
        goal = {True: "minimize", False: "maximize"}[self.minimize]
        ranges = (f"{n} in [{a:g}, {b:g}]" for n, (a, b) in self.ranges.items())
        return (
            f"Environment({self.name}: {goal} {self.target} by {', '.join(ranges)}; "
            f"{self.scm!r})"
        )

    @property
    def target(self) -> str:
        """The variable to optimise."""
        return str(self.scm.target)

    @property
    def variables(self) -> tuple[str, ...]:
        """The observed variables: all but the hidden ones."""
        return self.scm.observed

    def expected(self, intervention: Intervention | None = None) -> float:
        """Compute the mean of the target under the true model, by quadrature.

        Args:
            intervention: a hard intervention; none by default.

        Raises:
            ValueError: it is not hard, or sets a variable without a range.
        """
        intervention = intervention or Intervention()
        # `mean` sets variables to values. It cannot express shifts or noisy
        # interventions.
        for part in intervention.parts:
            if part.kind != "perfect" or part.target not in self.ranges:
                raise ValueError(
                    f"{intervention}: in {self.name!r} experiments set "
                    f"{', '.join(self.ranges)} only."
                )
        values = {name: np.full(1, v) for name, v in intervention.values.items()}
        return float(self.mean(values)[0])

    def regret(self, intervention: Intervention | None = None) -> float:
        """Compute by how much the mean target is worse than the optimum; >= 0.

        Args:
            intervention: a hard intervention; none by default.

        Raises:
            ValueError: it is not hard, a value is out of its range, or it sets more
                than `max_targets` variables.
        """
        intervention = intervention or Intervention()
        values = intervention.values
        for name, value in values.items():
            low, high = self.ranges.get(name, (-np.inf, np.inf))  # see `expected`
            slack = 1e-6 * (high - low)  # float32's rounding of an end
            if not low - slack <= value <= high + slack:
                raise ValueError(
                    f"{intervention}: {name!r} is out of [{low:g}, {high:g}], in which "
                    "the optimum was sought; `expected` has no such limits."
                )
        if len(values) > self.max_targets:
            raise ValueError(
                f"{intervention} sets {len(values)} variables, but the optimum sets at "
                f"most {self.max_targets}: increase max_targets."
            )
        gap = self.expected(intervention) - self.optimum
        return self._sign * gap

    @property
    def _sign(self) -> float:
        return 1.0 if self.minimize else -1.0

    def sample(
        self, n: int, *, seed: int, intervention: Intervention | None = None
    ) -> Samples:
        """Run an experiment: sample rows of the true model, without hidden variables.

        Args:
            n: rows.
            seed: of the noise.
            intervention: none by default.

        Raises:
            ValueError: the intervention is on an unknown variable.
        """
        return sample(self.scm, n, seed=seed, intervention=intervention)

    @property
    def best(self) -> Intervention:
        """An intervention within the ranges with the best mean of the target."""
        return self._solution[0]

    @property
    def optimum(self) -> float:
        """The mean of the target under `best`."""
        return self._solution[1]

    # `cached_property` writes to `__dict__`, which a frozen dataclass allows and one
    # with slots would not.
    @functools.cached_property
    def _solution(self) -> tuple[Intervention, float]:
        """Search every set of variables, and no intervention."""
        # Every subset is searched, because setting more variables can be worse than
        # setting fewer (Lee & Bareinboim 2018, NeurIPS, "Structural causal bandits").
        sign = self._sign
        found: list[tuple[float, Intervention]] = [
            (sign * self.expected(), Intervention())
        ]
        sizes = range(1, min(self.max_targets, len(self.ranges)) + 1)
        for names in itertools.chain.from_iterable(
            itertools.combinations(self.ranges, size) for size in sizes
        ):
            value, at = minimize_in_box(
                lambda points, names=names: (
                    sign * self.mean(dict(zip(names, points.T, strict=True)))
                ),
                [self.ranges[name] for name in names],
                self.grid,
            )
            found.append((value, intervene(**dict(zip(names, at, strict=True)))))
        # The first of equals: among equally good sets the smallest costs least.
        value, best = min(found, key=lambda pair: round(pair[0], 9))
        return best, sign * value


def environment_from_scm(
    scm: SCM,
    ranges: Mapping[str, tuple[float, float]] | tuple[float, float] = (-3.0, 3.0),
    *,
    minimize: bool = True,
    max_targets: int = 1,
    nodes: int = 2048,
) -> Environment:
    """Build an environment from a model; quadrature finds the true optimum.

    Args:
        scm: the model; it must have a target.
        ranges: the settable variables, each with its lowest and highest value; or one
            pair for every observed variable but the target.
        minimize: whether less of the target is better.
        max_targets: most variables that one experiment may set.
        nodes: quadrature points; see `interventional_mean`.

    Raises:
        ValueError: the model has no target, or a range is empty, or is of a variable
            that is discrete or cannot be set.

    Example:
        >>> scm = SCM.linear({"x": {}, "y": {"x": -2.0}}, target="y")
        >>> print(environment_from_scm(scm).best)
        do(x = 3)
    """
    target = scm.target
    if target is None:
        raise ValueError("the model has no target: scm.with_target(name) gives one.")
    free = [name for name in scm.observed if name != target]
    if not isinstance(ranges, Mapping):
        ranges = dict.fromkeys(free, ranges)
    for name, (low, high) in ranges.items():
        if name not in free:
            raise ValueError(
                f"ranges has {name!r}, which cannot be set: choose from "
                f"{', '.join(free):.200}."
            )
        if states := scm.states(name):
            raise ValueError(
                f"{name!r} has the states {', '.join(states):.200} and no range to "
                "search: compare them by interventional_mean(scm, target, values)."
            )
        # NaN fails every comparison, and so this check.
        if not -np.inf < low < high < np.inf:
            raise ValueError(f"range of {name!r} must go up, not from {low} to {high}.")
    causes = scm.ancestors(target)

    def mean(do: Mapping[str, Any]) -> np.ndarray:
        # Only ancestors of the target have an effect on it.
        effective = {name: value for name, value in do.items() if name in causes}
        means = interventional_mean(scm, target, effective, nodes=nodes)
        points = max((len(value) for value in do.values()), default=1)
        return np.broadcast_to(means, (points,))

    return Environment(
        name="model",
        scm=scm,
        ranges=dict(ranges),
        minimize=minimize,
        max_targets=max_targets,
        mean=mean,
        # The quadrature of a whole model is dearer than a closed form, hence coarser.
        grid=121,
    )


def minimize_in_box(
    function: Callable[
        [Float[np.ndarray, "points dims"]], Float[np.ndarray, " points"]
    ],
    ranges: list[tuple[float, float]],
    grid: int = 1201,
) -> tuple[float, list[float]]:
    """Minimize a function in a box; return the minimum and its place.

    The search evaluates a grid over the whole box, then ever finer grids around the
    three best points that lie apart. A second basin is found too if it is wider than a
    few steps of the first grid.
    """
    # Each further dimension multiplies the evaluations by ten, not by `grid`.
    steps = max(int((grid * 10 ** (len(ranges) - 1)) ** (1 / len(ranges))), 5)
    low, high = (np.array(ends, float) for ends in zip(*ranges, strict=True))
    points, values = _grid(function, low, high, steps)
    step = (high - low) / (steps - 1)
    best, at = np.inf, low
    for start in _spaced(points[values.argsort()], 2 * step, most=3):
        centre, width = start, step
        # At a smooth minimum an error of the place counts squared in the value: finer
        # steps would gain less than the error of the quadrature.
        while (width > 1e-6 * (high - low)).any():
            # Clipped and not rejected: the optimum may be an end of a range, as in PSA.
            ends = np.maximum(centre - width, low), np.minimum(centre + width, high)
            points, values = _grid(function, *ends, 9)
            # Nine points over two widths lie a quarter of a width apart.
            centre, width = points[values.argmin()], width / 4
            if values.min() < best:
                best, at = float(values.min()), centre
    return best, [float(value) for value in at]


def _spaced(points: np.ndarray, gap: np.ndarray, most: int) -> list[np.ndarray]:
    """Select the first points that are further apart than a gap."""
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
    """Evaluate a function on a grid over a box."""
    axes = [np.linspace(a, b, steps) for a, b in zip(low, high, strict=True)]
    points = np.stack([axis.ravel() for axis in np.meshgrid(*axes)], 1)
    # In chunks whose intermediate arrays fit into the processor's cache.
    return points, np.concatenate(
        [function(part) for part in np.array_split(points, -(-len(points) // 64))]
    )
