"""Bayesian scores of all parent sets of a variable, by the rows where it was not set.

Rows in which a variable was set by an intervention say nothing about its mechanism and
are left out for it (Cooper & Yoo 1999, UAI). This is how interventions tell causes from
effects: the mechanism of an effect stays the same whatever is done to its causes, and
that of a cause does not depend on its effects (Peters, Janzing & Schölkopf 2017,
Elements of Causal Inference, chapter 7).

A cause that nobody measured makes two variables go together, but not where one of them
was set. So a variable may have *companions* besides its parents: others whose values
explain it in the rows where they were not set, and say nothing in the rest.
"""

import dataclasses
import itertools
from collections.abc import Collection
from math import comb, log

import numpy as np
from jaxtyping import Bool, Float, Int

from ._basis import ROUNDING, Domain, evaluate_sines, spectral_density
from ._evidence import log_evidence

# Sines of one parent when sets are compared: enough to see a bend, few enough that a
# thousand sets take a tenth of a second. With few variables there is time for more.
_NUM_SINES, _NUM_SINES_FEW_VARIABLES, _FEW_VARIABLES = 6, 12, 6
_LENGTHS = (0.3, 1.0)
_GAINS = (3.0, 30.0, 300.0)
# Parents may act only together, as two switches in series: products of so many sines of
# either one. Their number grows with the square of the variables.
_JOINT_SINES, _JOINT_SINES_FEW_VARIABLES = 2, 4
_JOINT_PROB = 0.2
# Prior odds of one more companion. A first one is tried with the 16 parent sets that
# explain the variable best without, a second with the 4 cases that do best with one:
# with all of them this search would be most of a campaign's time.
_COMPANION_PROB = 0.1
_COMPANION_TRIALS = (16, 4)


@dataclasses.dataclass(frozen=True, slots=True)
class ParentCases:
    """Parents and companions that may explain one variable."""

    parents: Int[np.ndarray, " cases"]  # bit masks
    companions: Int[np.ndarray, " cases"]  # bit masks
    logs: Float[np.ndarray, " cases"]  # log weights

    @property
    def predecessors(self) -> Int[np.ndarray, " cases"]:
        """The variables that must precede this one in each case, as bit masks."""
        return self.parents | self.companions

    def sample(self, predecessors: int, rng: np.random.Generator) -> tuple[int, int]:
        """Draw parents and companions whose union is `predecessors`."""
        here = np.flatnonzero(self.predecessors == predecessors)
        chosen = here[np.argmax(self.logs[here] + rng.gumbel(size=len(here)))]
        return int(self.parents[chosen]), int(self.companions[chosen])


@dataclasses.dataclass(frozen=True, slots=True)
class ParentScores:
    """Log posterior weight of each parent set of each variable, before acyclicity.

    Attributes:
        sets: parent sets of each variable, as bit masks. Companions count as parents
            here, as they must precede the variable too.
        logs: log weight of each of these sets.
        cases: the cases that each set sums; empty if they were not requested.
    """

    sets: tuple[Int[np.ndarray, " _"], ...]
    logs: tuple[Float[np.ndarray, " _"], ...]
    cases: tuple[ParentCases, ...] = ()


def score_parent_sets(
    values: Float[np.ndarray, "n d"],
    intervened: Bool[np.ndarray, "n d"],
    domain: Domain,
    *,
    max_parents: int,
    curved: bool,
    required: Collection[tuple[int, int]] = (),
    forbidden: Collection[tuple[int, int]] = (),
    power: float = 1.0,
    row_weights: Float[np.ndarray, " n"] | None = None,
    companions: bool = False,
) -> ParentScores:
    """Score every parent set of every variable."""
    complete = np.isfinite(values).all(axis=1)
    if row_weights is None:
        row_weights = np.ones(len(values))
    values, intervened = values[complete], intervened[complete]
    row_weights = row_weights[complete]
    d = values.shape[1]
    num_sines = 0
    if curved:
        num_sines = _NUM_SINES_FEW_VARIABLES if d <= _FEW_VARIABLES else _NUM_SINES
    width = 1 + num_sines
    columns = np.empty((len(values), 1 + d * width))
    columns[:, 0] = 1.0
    for j in range(d):
        at = 1 + j * width
        u = domain.normalize(values[:, j], j)
        columns[:, at] = u
        if curved:
            columns[:, at + 1 : at + width] = evaluate_sines(u, num_sines)
    num_joint = 0
    if curved and max_parents > 1:
        num_joint = _JOINT_SINES_FEW_VARIABLES if d <= _FEW_VARIABLES else _JOINT_SINES
    products = _multiply_sines(columns, width, num_joint)
    cases: list[ParentCases] = []
    for v in range(d):
        free = ~intervened[:, v]
        sets = _list_parent_sets(v, d, max_parents, required, forbidden)
        cases.append(
            _score_variable(
                v,
                columns[free],
                values[free, v],
                intervened[free] if companions else None,
                width,
                num_joint,
                {pair: part[free] for pair, part in products.items()},
                sets,
                power,
                row_weights[free],
            )
        )
    if not companions:
        return ParentScores(
            tuple(case.parents for case in cases),
            tuple(case.logs for case in cases),
            tuple(cases),
        )
    merged = [_sum_cases(case) for case in cases]
    return ParentScores(
        tuple(sets for sets, _ in merged),
        tuple(logs for _, logs in merged),
        tuple(cases),
    )


def _multiply_sines(
    columns: Float[np.ndarray, "n k"], width: int, count: int
) -> dict[tuple[int, int], Float[np.ndarray, "n products"]]:
    """Multiply the first sines of each two variables, and take their own effects out.

    The rest is not in any sum of functions of one variable each (a functional analysis
    of variance), so it cannot lend a straight line more prior variance than it has.
    """
    found: dict[tuple[int, int], np.ndarray] = {}
    for pair in itertools.combinations(range(columns.shape[1] // width), 2):
        if not count:
            break
        own = [columns[:, 1 + u * width : 1 + (u + 1) * width] for u in pair]
        a, b = (each[:, 1 : count + 1] for each in own)
        product = (a[:, :, None] * b[:, None]).reshape(len(a), count**2)
        alone = np.concatenate([columns[:, :1], *own], axis=1)
        found[pair] = product - alone @ np.linalg.lstsq(alone, product, rcond=1e-9)[0]
    return found


def _sum_cases(cases: ParentCases) -> tuple[np.ndarray, np.ndarray]:
    """Sum the weights of the cases that have the same predecessors."""
    sets, where = np.unique(cases.predecessors, return_inverse=True)
    logs = np.full(len(sets), -np.inf)
    np.logaddexp.at(logs, where, cases.logs)
    return sets, logs


def _list_parent_sets(
    v: int,
    d: int,
    max_parents: int,
    required: Collection[tuple[int, int]],
    forbidden: Collection[tuple[int, int]],
) -> list[tuple[int, ...]]:
    must = {a for a, b in required if b == v}
    may = [u for u in range(d) if u != v and (u, v) not in set(forbidden)]
    largest = min(max(max_parents, len(must)), len(may))
    return [
        s
        for k in range(largest + 1)
        for s in itertools.combinations(may, k)
        if must <= set(s)
    ]


def _score_variable(
    v: int,
    columns: Float[np.ndarray, "n k"],
    y: Float[np.ndarray, " n"],
    intervened: Bool[np.ndarray, "n d"] | None,
    width: int,
    num_joint: int,
    products: dict[tuple[int, int], np.ndarray],
    sets: list[tuple[int, ...]],
    power: float,
    row_weights: Float[np.ndarray, " n"],
) -> ParentCases:
    d = (columns.shape[1] - 1) // width
    spread = 0.0
    if len(y):
        spread = y.std()
    if spread > ROUNDING * np.abs(y).max(initial=0.0):
        y = (y - y.mean()) / spread
    else:
        y = np.zeros_like(y)
    ever_set = [False] * d
    if intervened is not None:
        ever_set = [bool(intervened[:, u].any()) for u in range(d)]
        parts = [
            _mask_interventions(
                columns[:, 1 + u * width : 1 + (u + 1) * width], intervened[:, u]
            )
            for u in range(d)
        ]
        # Variable u has its columns as a parent at u, and as a companion at d + u.
        columns = np.concatenate([columns, *parts], axis=1)
    joint: dict[tuple[int, int], int] = {}
    if products:
        pairs = [p for p in products if v not in p]
        joint = {p: columns.shape[1] + i * num_joint**2 for i, p in enumerate(pairs)}
        columns = np.concatenate([columns, *(products[p] for p in pairs)], axis=1)
    # All sets share one Gram matrix: a set costs a slice of it and a factorisation.
    weighted = row_weights[:, None] * columns
    gram, against = columns.T @ weighted, weighted.T @ y
    square, rows = float(row_weights @ y**2), float(row_weights.sum())

    def score(each: list[tuple[int, ...]]) -> np.ndarray:
        logs = np.empty(len(each))
        kinds: dict[tuple[int, int], list[int]] = {}
        for i, s in enumerate(each):
            kinds.setdefault((len(s), sum(u < d for u in s)), []).append(i)
        for (k, parents), which in kinds.items():
            members = np.array([each[i] for i in which], np.int64)
            members = members.reshape(len(which), k)
            starts = np.array(
                [
                    [joint[p] for p in itertools.combinations(s[:parents], 2)]
                    for s in members.tolist()
                    if joint
                ],
                np.int64,
            ).reshape(len(which), -1)
            logs[which] = power * _average_evidence(
                gram, against, square, rows, members, width, starts, num_joint
            )
        return logs

    cases: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}

    def add(each: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
        evidence = score([(*s, *(d + u for u in more)) for s, more in each])
        for (s, more), found in zip(each, evidence.tolist(), strict=True):
            # Equal prior odds for every number of parents, then for every set of that
            # size: a uniform prior over sets favours the many large ones.
            companion_prior = len(more) * log(_COMPANION_PROB / max(d - 1, 1))
            cases[s, more] = found + companion_prior - log(comb(d - 1, len(s)))

    add([(s, ()) for s in sets])
    for count, trials in enumerate(_COMPANION_TRIALS if any(ever_set) else ()):
        last = [case for case in cases if len(case[1]) == count]
        best = sorted(last, key=lambda case: -cases[case])[:trials]
        add(
            sorted(
                {
                    (s, tuple(sorted((*more, u))))
                    for s, more in best
                    for u in range(d)
                    # Without interventions on u, its columns as a companion are those
                    # as a parent, and would count the same explanation twice.
                    if u != v and u not in more and (u not in s or ever_set[u])
                }
            )
        )
    mask = lambda members: sum(1 << u for u in members)
    return ParentCases(
        np.array([mask(s) for s, _ in cases], np.int64),
        np.array([mask(more) for _, more in cases], np.int64),
        np.array([*cases.values()]),
    )


def _mask_interventions(
    columns: Float[np.ndarray, "n width"], intervened: Bool[np.ndarray, " n"]
) -> Float[np.ndarray, "n width"]:
    """Centre columns where their variable was not set, and fill 0 where it was."""
    if intervened.all():
        return np.zeros_like(columns)
    centre = columns[~intervened].mean(0)
    return np.where(intervened[:, None], 0.0, columns - centre)


def _average_evidence(
    gram: Float[np.ndarray, "k k"],
    against: Float[np.ndarray, " k"],
    square: float,
    rows: float,
    members: Int[np.ndarray, "sets size"],
    width: int,
    joint: Int[np.ndarray, "sets pairs"],
    num_joint: int,
) -> Float[np.ndarray, " sets"]:
    """Average the evidence of sets of one size over gains and length scales.

    `joint` has the first of the columns of each pair of parents.
    """
    size, pairs = members.shape[1], joint.shape[1]
    shapes: list[tuple[int, int, np.ndarray, float]] = [(1, 0, np.ones(size), 0.0)]
    if width > 1 and size:
        # Half of the prior odds are on straight lines.
        shapes = [(1, 0, np.ones(size), log(0.5))]
        together = _JOINT_PROB if pairs else 0.0
        for length in _LENGTHS:
            spectrum = spectral_density(width - 1, length)
            alone = np.tile(np.concatenate([[1.0], spectrum]), size)
            odds = 0.5 / len(_LENGTHS)
            shapes.append((width, 0, alone, log(odds * (1 - together))))
            if pairs:
                product = np.outer(spectrum[:num_joint], spectrum[:num_joint])
                both = np.concatenate([alone, np.tile(product.ravel(), pairs)])
                shapes.append((width, num_joint**2, both, log(odds * together)))
    found: list[np.ndarray] = []
    for num_columns, num_products, shape, log_odds in shapes:
        index = 1 + members[:, :, None] * width + np.arange(num_columns)
        products = joint[:, :, None] + np.arange(num_products)
        index = np.concatenate(
            [
                np.zeros((len(members), 1), np.int64),
                index.reshape(len(members), -1),
                products.reshape(len(members), -1),
            ],
            axis=1,
        )
        grams = gram[index[:, :, None], index[:, None, :]]
        prior = np.concatenate([[100.0], shape])
        for gain in _GAINS:
            scaled = prior.copy()
            scaled[1:] *= gain
            found.append(
                log_odds + log_evidence(grams, against[index], square, rows, scaled)
            )
    return np.logaddexp.reduce(np.stack(found), axis=0) - log(len(_GAINS))
