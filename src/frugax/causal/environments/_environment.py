"""`Environment`: a simulated system with a known optimum, to measure regret."""

import dataclasses
import functools
import itertools
from collections.abc import Mapping

import numpy as np
import scipy.optimize
from jaxtyping import Float

from frugax.causal.data import Samples
from frugax.causal.scm import (
    SCM,
    Intervention,
    intervene,
    interventional_mean,
    sample,
)

_ROUGH_NODES = 128  # of the first look at a box


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Environment:
    """A simulated system to run a campaign on.

    Attributes:
        name: used in messages.
        scm: the true model; a campaign optimises its target.
        ranges: the settable variables, each with its lowest and highest value.
        minimize: whether less of the target is better.
        max_targets: most variables that one experiment may set.
        nodes: quadrature points of every mean; see `interventional_mean`.
    """

    name: str
    scm: SCM
    ranges: Mapping[str, tuple[float, float]]
    minimize: bool = True
    max_targets: int = 1
    nodes: int = 2048

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

    def mean(
        self, values: Mapping[str, Float[np.ndarray, " points"]]
    ) -> Float[np.ndarray, " points"]:
        """Compute the means of the target at many points, by quadrature.

        Args:
            values: for each variable that is set its value at each point.
        """
        causes = self.scm.ancestors(self.target)
        # Only ancestors of the target have an effect on it.
        effective = {name: value for name, value in values.items() if name in causes}
        means = interventional_mean(self.scm, self.target, effective, nodes=self.nodes)
        points = max((len(value) for value in values.values()), default=1)
        return np.broadcast_to(means, (points,))

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
            value, at = self._search(names)
            found.append((value, intervene(**dict(zip(names, at, strict=True)))))
        # The first of equals: among equally good sets the smallest costs least.
        value, best = min(found, key=lambda pair: round(pair[0], 9))
        return best, sign * value

    def _search(self, names: tuple[str, ...]) -> tuple[float, list[float]]:
        """Return the least loss where these variables are set, and their values.

        A grid over the box, with fewer nodes, then a search from the three best points
        that lie apart. A second basin is found too if it is wider than a few steps.
        """

        def loss(points: Float[np.ndarray, "points dims"], nodes: int) -> np.ndarray:
            by_name = dict(zip(names, points.T, strict=True))
            return self._sign * dataclasses.replace(self, nodes=nodes).mean(by_name)

        low, high = np.array([self.ranges[name] for name in names]).T
        # Each further dimension multiplies the evaluations by ten.
        steps = int((12.1 * 10 ** len(names)) ** (1 / len(names)))
        axes = np.meshgrid(*np.linspace(low, high, steps).T)
        points = np.stack([axis.ravel() for axis in axes], 1)
        # In chunks whose intermediate arrays fit into the processor's cache.
        chunks = np.array_split(points, -(-len(points) // 64))
        rough = np.concatenate([loss(part, _ROUGH_NODES) for part in chunks])
        gap = 2 * (high - low) / (steps - 1)
        best, at = np.inf, low
        for start in _spaced(points[rough.argsort()], gap, most=3):
            # The optimum may be an end of a range, where a simplex would collapse.
            if (value := float(loss(start[None], self.nodes)[0])) < best:
                best, at = value, start
            found = scipy.optimize.minimize(
                lambda x: float(loss(x[None], self.nodes)[0]),
                start,
                method="Nelder-Mead",
                bounds=list(zip(low, high, strict=True)),
                options={"xatol": 1e-4 * float((high - low).max()), "fatol": 1e-7},
            )
            if found.fun < best:
                best, at = float(found.fun), found.x
        return best, [float(value) for value in at]


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
            that cannot be set.

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
        # NaN fails every comparison, and so this check.
        if not -np.inf < low < high < np.inf:
            raise ValueError(f"range of {name!r} must go up, not from {low} to {high}.")
    return Environment(
        name="model",
        scm=scm,
        ranges=dict(ranges),
        minimize=minimize,
        max_targets=max_targets,
        nodes=nodes,
    )


def _spaced(points: np.ndarray, gap: np.ndarray, most: int) -> list[np.ndarray]:
    """Select the first points that are further apart than a gap."""
    chosen: list[np.ndarray] = []
    for point in points:
        if all((np.abs(point - other) > gap).any() for other in chosen):
            chosen.append(point)
        if len(chosen) == most:
            break
    return chosen
