"""What interventions do on average, in every world, corrected by the experiments.

A world may be wrong: a cause that nobody measured, a bend that the columns cannot show.
So to each world's answer a smooth deviation is added, as large as the experiments done
so far call for and none if they do not, and each is made to agree with what they gave.

References:
    Aglietti et al. 2020, AISTATS, 'Causal Bayesian optimization' (a causal prior for a
    Gaussian process); Wilson et al. 2020, ICML, 'Efficiently sampling functions from
    Gaussian process posteriors' (the update of a sample).
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from ._basis import Basis
from ._belief import Belief

_SIZES = (0.0, 0.05, 0.15, 0.4, 1.0)
# What was not tried is known a little less well than what was: by this share of the
# target's spread, whatever the worlds say.
_DOUBT = 0.05
_LENGTHS = (0.25, 0.6)
DRAWS = 32


@dataclasses.dataclass(frozen=True, slots=True)
class Points:
    """Interventions, sorted by which variables they set.

    Attributes:
        where: for each group the variables that are set.
        values: for each group to what; `[points, variables set]`.
    """

    where: tuple[tuple[int, ...], ...]
    values: tuple[Float[np.ndarray, "_ _"], ...]

    def __len__(self) -> int:
        return sum(map(len, self.values))

    @property
    def group(self) -> Int[np.ndarray, " points"]:
        """Which group each point belongs to."""
        return np.repeat(np.arange(len(self.where)), [len(v) for v in self.values])

    def at(self, index: int) -> tuple[tuple[int, ...], Float[np.ndarray, " places"]]:
        """The variables that a point sets, and to what.

        Raises:
            IndexError: there is no such point.
        """
        for where, values in zip(self.where, self.values, strict=True):
            if index < len(values):
                return where, values[index]
            index -= len(values)
        raise IndexError(index)

    @classmethod
    def of(
        cls, each: Sequence[tuple[tuple[int, ...], Sequence[float] | np.ndarray]]
    ) -> tuple["Points", Int[np.ndarray, " points"]]:
        """Group single interventions; and where each of them has gone."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for i, (where, _) in enumerate(each):
            groups.setdefault(where, []).append(i)
        order = [i for members in groups.values() for i in members]
        values = tuple(
            np.array([each[i][1] for i in members], float).reshape(
                len(members), len(where)
            )
            for where, members in groups.items()
        )
        places = np.empty(len(each), np.int64)
        places[order] = np.arange(len(each))
        return cls(tuple(groups), values), places


@dataclasses.dataclass(frozen=True, slots=True)
class Outcomes:
    """What experiments gave.

    Attributes:
        points: what was done.
        mean: of the target in each experiment; in the order of `points`.
        error: standard error of that mean; > 0.
        expected: the mean that was forecast; NaN where none was.
        spread: standard deviation of that forecast.
        order: in which they were asked for.
        left: the share of their rows that no world has counted.
    """

    points: Points
    mean: Float[np.ndarray, " experiments"]
    error: Float[np.ndarray, " experiments"]
    expected: Float[np.ndarray, " experiments"]
    spread: Float[np.ndarray, " experiments"]
    order: Int[np.ndarray, " experiments"]
    left: Float[np.ndarray, " experiments"]


def answers(
    belief: Belief,
    points: Points,
    wanted: Sequence[int],
    rng: np.random.Generator,
) -> Float[np.ndarray, "worlds points wanted"]:
    """What variables are on average under interventions, in every world.

    Args:
        belief: the worlds.
        points: the interventions.
        wanted: the variables asked for.
        rng: where the noise comes from.
    """
    d = len(belief.graphs[0])
    noise = rng.integers(0, 1 << 30, (len(belief.worlds), d, DRAWS))
    return np.stack(
        [
            np.concatenate(
                [
                    world.expected(where, values, wanted, shaken)
                    for where, values in zip(points.where, points.values, strict=True)
                ]
                or [np.empty((0, len(wanted)))]
            )
            for world, shaken in zip(belief.worlds, noise, strict=True)
        ]
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Deviation:
    """How far the experiments are from the worlds.

    Attributes:
        size: standard deviation of the deviation, in the target's unit; 0 for none.
        length: over which it changes, in half-widths of a range.
    """

    size: float
    length: float


def deviation(
    worlds: Float[np.ndarray, "worlds experiments"],
    outcomes: Outcomes,
    basis: Basis,
    scale: float,
) -> Deviation:
    """The deviation that explains the experiments best.

    Args:
        worlds: what each world says of the experiments.
        outcomes: what they gave.
        basis: ranges of the variables.
        scale: standard deviation of the target, in its unit.
    """
    experiments = worlds.shape[1]
    best, found = -np.inf, Deviation(0.0, _LENGTHS[0])
    if experiments < 2:
        return found
    spread = worlds - worlds.mean(0)
    shared = spread.T @ spread / len(worlds)
    # One wild answer makes the worlds differ by so much that rounding alone exceeds the
    # rest of the diagonal.
    rounding = 1e-12 * np.diag(shared).max()
    shared += np.diag(outcomes.error**2 + (1e-3 * scale) ** 2 + rounding)
    gap = outcomes.mean - worlds.mean(0)
    for size in _SIZES:
        for length in _LENGTHS if size else _LENGTHS[:1]:
            among = kernel(outcomes.points, outcomes.points, basis, length)
            root = np.linalg.cholesky(shared + (size * scale) ** 2 * among)
            half = np.linalg.solve(root, gap)
            score = -0.5 * half @ half - np.log(np.diag(root)).sum()
            # Worlds that are right are as likely as all that are not.
            score -= np.log(2 * len(_LENGTHS) * len(_SIZES)) if size else np.log(2)
            if score > best:
                best, found = score, Deviation(size * scale, length)
    return found


def corrected(
    worlds: Float[np.ndarray, "worlds points"],
    points: Points,
    at_experiments: Float[np.ndarray, "worlds experiments"],
    outcomes: Outcomes,
    basis: Basis,
    each: Sequence[Deviation],
    rng: np.random.Generator,
) -> Float[np.ndarray, "worlds points"]:
    """Each world's answers, with a deviation that agrees with the experiments.

    Args:
        worlds: what each world says of the points.
        points: interventions.
        at_experiments: what it says of the experiments.
        outcomes: what they gave.
        basis: ranges of the variables.
        each: how large each world's deviation is.
        rng: where the deviations come from.
    """
    result = np.empty_like(worlds)
    for found in dict.fromkeys(each):
        these = np.array([found == other for other in each])
        result[these] = _deviated(
            worlds[these], points, at_experiments[these], outcomes, basis, found, rng
        )
    return result


def _deviated(
    worlds: Float[np.ndarray, "worlds points"],
    points: Points,
    at_experiments: Float[np.ndarray, "worlds experiments"],
    outcomes: Outcomes,
    basis: Basis,
    found: Deviation,
    rng: np.random.Generator,
) -> Float[np.ndarray, "worlds points"]:
    if not found.size:
        return worlds
    result = worlds.copy()
    groups = {where: g for g, where in enumerate(outcomes.points.where)}
    done, group = outcomes.points.group, points.group
    for g, (where, values) in enumerate(zip(points.where, points.values, strict=True)):
        known = groups.get(where)
        there = (
            np.empty((0, len(where)))
            if known is None
            else outcomes.points.values[known]
        )
        at = np.flatnonzero(done == known) if known is not None else np.empty(0, int)
        both = np.concatenate([values, there])
        kernel = found.size**2 * _rbf(both, both, where, basis, found.length)
        root = np.linalg.cholesky(kernel + 1e-6 * found.size**2 * np.eye(len(both)))
        drawn = rng.standard_normal((len(worlds), len(both))) @ root.T
        n = len(values)
        add = drawn[:, :n]
        if len(at):
            error = outcomes.error[at]
            noisy = rng.standard_normal((len(worlds), len(at))) * error
            gap = outcomes.mean[at] + noisy - at_experiments[:, at] - drawn[:, n:]
            inner = kernel[n:, n:] + np.diag(error**2 + 1e-6 * found.size**2)
            add = add + gap @ np.linalg.solve(inner, kernel[n:, :n])
        result[:, group == g] += add
    return result


def doubt(
    points: Points,
    at_experiments: Float[np.ndarray, " experiments"],
    outcomes: Outcomes,
    basis: Basis,
    scale: float,
) -> tuple[Float[np.ndarray, " points"], Float[np.ndarray, " points"]]:
    """How far the worlds' mean may be off where nobody has tried.

    Args:
        points: interventions.
        at_experiments: what the worlds say of the experiments on average, corrected.
        outcomes: what those gave.
        basis: ranges of the variables.
        scale: standard deviation of the target, in its unit.

    Returns:
        What to add to the mean, and the standard deviation that is left; none of both
        before there are experiments.
    """
    if not len(outcomes.mean):
        return np.zeros(len(points)), np.zeros(len(points))
    size, length = _DOUBT * scale, _LENGTHS[0]
    among = size**2 * kernel(outcomes.points, outcomes.points, basis, length)
    cross = size**2 * kernel(points, outcomes.points, basis, length)
    inner = among + np.diag(outcomes.error**2)
    solved = np.linalg.solve(inner, cross.T)
    left = size**2 - np.einsum("ij,ji->i", cross, solved)
    shift = (outcomes.mean - at_experiments) @ solved
    return shift, np.sqrt(np.maximum(left, 0.0))


def kernel(
    one: Points, other: Points, basis: Basis, length: float
) -> Float[np.ndarray, "one other"]:
    """How deviations go together: not at all for different sets of variables."""
    found = np.zeros((len(one), len(other)))
    rows, columns = one.group, other.group
    for g, (where, values) in enumerate(zip(one.where, one.values, strict=True)):
        for h, (there, others) in enumerate(
            zip(other.where, other.values, strict=True)
        ):
            if where == there:
                found[np.ix_(rows == g, columns == h)] = _rbf(
                    values, others, where, basis, length
                )
    return found


def _rbf(
    one: Float[np.ndarray, "n places"],
    other: Float[np.ndarray, "m places"],
    where: tuple[int, ...],
    basis: Basis,
    length: float,
) -> Float[np.ndarray, "n m"]:
    half = basis.half[list(where)]
    apart = (one[:, None] - other[None]) / half / length
    return np.exp(-0.5 * np.sum(apart**2, axis=-1))
