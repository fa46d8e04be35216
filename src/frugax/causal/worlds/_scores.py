"""How well each set of parents explains each variable.

Rows in which a variable was set by an intervention say nothing about its mechanism and
are left out for it: that is how interventions tell causes from effects.
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


@dataclasses.dataclass(frozen=True, slots=True)
class Scores:
    """Log posterior weight of each parent set of each variable, before acyclicity.

    Attributes:
        sets: for each variable its sets, as bit masks over the variables.
        logs: for each variable the weight of each of these sets.
    """

    sets: tuple[Int[np.ndarray, " _"], ...]
    logs: tuple[Float[np.ndarray, " _"], ...]


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
        trust: to which power the likelihood is raised.
    """
    whole = np.isfinite(values).all(axis=1)
    values, intervened = values[whole], intervened[whole]
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
    found = [
        _of_one_variable(
            v,
            columns[~intervened[:, v]],
            values[~intervened[:, v], v],
            width,
            _allowed_sets(v, d, max_parents, required, forbidden),
            trust,
        )
        for v in range(d)
    ]
    return Scores(tuple(s for s, _ in found), tuple(w for _, w in found))


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
    width: int,
    sets: list[tuple[int, ...]],
    trust: float,
) -> tuple[np.ndarray, np.ndarray]:
    d = (columns.shape[1] - 1) // width
    spread = y.std() if len(y) else 0.0
    told = spread > ROUNDING * np.abs(y).max(initial=0.0)
    y = (y - y.mean()) / spread if told else np.zeros_like(y)
    gram, against, square = columns.T @ columns, columns.T @ y, float(y @ y)
    masks = np.array([sum(1 << u for u in s) for s in sets], np.int64)
    logs = np.empty(len(sets))
    sizes = np.array([len(s) for s in sets])
    for k in np.unique(sizes):
        which = np.flatnonzero(sizes == k)
        members = np.array([sets[i] for i in which], np.int64).reshape(len(which), k)
        # Equal odds for every size, then for every set of that size.
        evidence = _mean_evidence(gram, against, square, len(y), members, width)
        logs[which] = trust * evidence - log(comb(d - 1, k))
    return masks, logs


def _mean_evidence(
    gram: Float[np.ndarray, "k k"],
    against: Float[np.ndarray, " k"],
    square: float,
    rows: int,
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
