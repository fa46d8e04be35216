"""How well each set of parents explains each variable.

Rows in which a variable was set by an intervention say nothing about its mechanism and
are left out for it: that is how interventions tell causes from effects.

A cause that nobody measured makes two variables go together, but not where one of them
was set. So beside its parents a variable may have *companions*: others whose values
explain it in the rows where they were not set, and say nothing in the rest.
"""

import dataclasses
import itertools
from collections.abc import Collection
from math import comb, log

import numpy as np
from jaxtyping import Bool, Float, Int

from ._basis import ROUNDING, Basis, sines, spectrum
from ._evidence import log_evidence

# Columns for one parent when sets are compared: enough to see a bend, few enough that
# a thousand sets cost a tenth of a second. Few variables can have more of them.
_SINES, _SINES_OF_FEW, _FEW = 6, 12, 6
_LENGTHS = (0.3, 1.0)
_GAINS = (3.0, 30.0, 300.0)
# How likely a variable has one more companion. A first one is tried with as many of the
# sets that explain the variable best without, a second with as many of those that do
# best with one: with all of them it would be most of a campaign's time.
_SHARED = 0.1
_TRIED = (32, 8)


@dataclasses.dataclass(frozen=True, slots=True)
class Cases:
    """What may explain one variable.

    Attributes:
        causes: the parents in each case, as bit masks.
        companions: who shares hidden causes with the variable, as bit masks.
        logs: the weight of each case.
    """

    causes: Int[np.ndarray, " cases"]
    companions: Int[np.ndarray, " cases"]
    logs: Float[np.ndarray, " cases"]

    @property
    def before(self) -> Int[np.ndarray, " cases"]:
        """What must come before the variable in each case, as bit masks."""
        return self.causes | self.companions

    def draw(self, before: int, rng: np.random.Generator) -> tuple[int, int]:
        """The causes and the companions, given what comes before the variable."""
        here = np.flatnonzero(self.before == before)
        chosen = here[np.argmax(self.logs[here] + rng.gumbel(size=len(here)))]
        return int(self.causes[chosen]), int(self.companions[chosen])


@dataclasses.dataclass(frozen=True, slots=True)
class Scores:
    """Log posterior weight of each parent set of each variable, before acyclicity.

    Attributes:
        sets: for each variable its sets, as bit masks over the variables; companions
            are in them, as they must come first too.
        logs: for each variable the weight of each of these sets.
        cases: for each variable what these sets add up; empty where nobody asks.
    """

    sets: tuple[Int[np.ndarray, " _"], ...]
    logs: tuple[Float[np.ndarray, " _"], ...]
    cases: tuple[Cases, ...] = ()


def parent_scores(
    values: Float[np.ndarray, "n d"],
    intervened: Bool[np.ndarray, "n d"],
    basis: Basis,
    *,
    max_parents: int,
    curved: bool,
    required: Collection[tuple[int, int]] = (),
    forbidden: Collection[tuple[int, int]] = (),
    trust: float = 1.0,
    weights: Float[np.ndarray, " n"] | None = None,
    hidden: bool = False,
) -> Scores:
    """Score all sets of at most so many parents.

    Args:
        values: the data; rows with a missing value (NaN) are left out.
        intervened: where a value was set by an intervention.
        basis: ranges of the variables.
        max_parents: the largest set.
        curved: whether effects may bend; False scores linear mechanisms only.
        required: pairs (parent, child) that the graph has.
        forbidden: pairs (parent, child) that it has not.
        trust: to which power the evidence is raised.
        weights: as how much of a row each counts; None for whole ones.
        hidden: whether causes that nobody measured may be shared by two variables.
    """
    whole = np.isfinite(values).all(axis=1)
    weights = np.ones(len(values)) if weights is None else weights
    values, intervened, weights = values[whole], intervened[whole], weights[whole]
    d = values.shape[1]
    sines_each = (_SINES_OF_FEW if d <= _FEW else _SINES) if curved else 0
    width = 1 + sines_each
    columns = np.empty((len(values), 1 + d * width))
    columns[:, 0] = 1.0
    for j in range(d):
        at = 1 + j * width
        u = basis.scaled(values[:, j], j)
        columns[:, at] = u
        if curved:
            columns[:, at + 1 : at + width] = sines(u, sines_each)
    cases = tuple(
        _of_one_variable(
            v,
            columns[~intervened[:, v]],
            values[~intervened[:, v], v],
            intervened[~intervened[:, v]] if hidden else None,
            width,
            _allowed_sets(v, d, max_parents, required, forbidden),
            trust,
            weights[~intervened[:, v]],
        )
        for v in range(d)
    )
    found = [_added(case) if hidden else (case.causes, case.logs) for case in cases]
    return Scores(tuple(s for s, _ in found), tuple(w for _, w in found), cases)


def _added(cases: Cases) -> tuple[np.ndarray, np.ndarray]:
    """Each set of what comes before a variable once, and its weight."""
    sets, where = np.unique(cases.before, return_inverse=True)
    logs = np.full(len(sets), -np.inf)
    np.logaddexp.at(logs, where, cases.logs)
    return sets, logs


def _allowed_sets(
    v: int,
    d: int,
    max_parents: int,
    required: Collection[tuple[int, int]],
    forbidden: Collection[tuple[int, int]],
) -> list[tuple[int, ...]]:
    must = {a for a, b in required if b == v}
    may = [u for u in range(d) if u != v and (u, v) not in set(forbidden)]
    most = max(max_parents, len(must))
    return [
        s
        for k in range(min(most, len(may)) + 1)
        for s in itertools.combinations(may, k)
        if must <= set(s)
    ]


def _of_one_variable(
    v: int,
    columns: Float[np.ndarray, "n k"],
    y: Float[np.ndarray, " n"],
    intervened: Bool[np.ndarray, "n d"] | None,
    width: int,
    sets: list[tuple[int, ...]],
    trust: float,
    weights: Float[np.ndarray, " n"],
) -> Cases:
    d = (columns.shape[1] - 1) // width
    spread = y.std() if len(y) else 0.0
    told = spread > ROUNDING * np.abs(y).max(initial=0.0)
    y = (y - y.mean()) / spread if told else np.zeros_like(y)
    ever_set = [False] * d
    if intervened is not None:
        ever_set = [bool(intervened[:, u].any()) for u in range(d)]
        parts = [
            _unset(columns[:, 1 + u * width : 1 + (u + 1) * width], intervened[:, u])
            for u in range(d)
        ]
        columns = np.concatenate([columns, *parts], axis=1)
    heavy = weights[:, None] * columns
    gram, against = columns.T @ heavy, heavy.T @ y
    square, rows = float(weights @ y**2), float(weights.sum())

    def weigh(each: list[tuple[int, ...]]) -> np.ndarray:
        logs = np.empty(len(each))
        sizes = np.array([len(s) for s in each])
        for k in np.unique(sizes):
            which = np.flatnonzero(sizes == k)
            members = np.array([each[i] for i in which], np.int64)
            members = members.reshape(len(which), k)
            logs[which] = trust * _mean_evidence(
                gram, against, square, rows, members, width
            )
        return logs

    # Equal odds for every size, then for every set of that size.
    cases: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}

    def add(each: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
        evidence = weigh([(*s, *(d + u for u in more)) for s, more in each])
        for (s, more), found in zip(each, evidence.tolist(), strict=True):
            rare = len(more) * log(_SHARED / max(d - 1, 1))
            cases[s, more] = found + rare - log(comb(d - 1, len(s)))

    add([(s, ()) for s in sets])
    for many, most in enumerate(_TRIED if any(ever_set) else ()):
        last = [case for case in cases if len(case[1]) == many]
        tried = sorted(last, key=lambda case: -cases[case])[:most]
        add(
            sorted(
                {
                    (s, tuple(sorted((*more, u))))
                    for s, more in tried
                    for u in range(d)
                    # What was never set would say the same as a parent.
                    if u != v and u not in more and (u not in s or ever_set[u])
                }
            )
        )
    mask = lambda members: sum(1 << u for u in members)
    return Cases(
        np.array([mask(s) for s, _ in cases], np.int64),
        np.array([mask(more) for _, more in cases], np.int64),
        np.array([*cases.values()]),
    )


def _unset(
    columns: Float[np.ndarray, "n width"], intervened: Bool[np.ndarray, " n"]
) -> Float[np.ndarray, "n width"]:
    """A variable's columns where it was not set; on average nothing, and else 0."""
    if intervened.all():
        return np.zeros_like(columns)
    centre = columns[~intervened].mean(0)
    return np.where(intervened[:, None], 0.0, columns - centre)


def _mean_evidence(
    gram: Float[np.ndarray, "k k"],
    against: Float[np.ndarray, " k"],
    square: float,
    rows: float,
    members: Int[np.ndarray, "sets size"],
    width: int,
) -> Float[np.ndarray, " sets"]:
    """The evidence of sets of one size, averaged over how strong and how bent."""
    size = members.shape[1]
    shapes: list[tuple[int, np.ndarray]] = [(1, np.ones(1))]
    if width > 1 and size:
        shapes += [
            (width, np.concatenate([[1.0], spectrum(width - 1, length)]))
            for length in _LENGTHS
        ]
    found: list[np.ndarray] = []
    for used, shape in shapes:
        index = (1 + members[:, :, None] * width + np.arange(used)).reshape(
            len(members), -1
        )
        index = np.concatenate([np.zeros((len(index), 1), np.int64), index], axis=1)
        grams = gram[index[:, :, None], index[:, None, :]]
        wide = np.concatenate([[100.0], np.tile(shape, size)])
        for gain in _GAINS:
            prior = wide.copy()
            prior[1:] *= gain
            # Half of the odds are on straight lines.
            odds = (
                -log(len(shapes))
                if len(shapes) == 1
                else log(0.5 if used == 1 else 0.5 / len(_LENGTHS))
            )
            found.append(
                odds + log_evidence(grams, against[index], square, rows, prior)
            )
    return np.logaddexp.reduce(np.stack(found), axis=0) - log(len(_GAINS))
