"""Which shapes explain a variable best: the slow part of a fit."""

import dataclasses

import numpy as np
from jaxtyping import Float

from ._evidence import log_evidence
from ._shape import NOTHING, Shape, prior_of

_LENGTHS = (0.13, 0.22, 0.4, 0.7, 1.3)
_GAINS = (0.3, 3.0, 30.0, 300.0)
_LINE_GAINS = (1.0, 10.0, 100.0, 1000.0)
_KEPT = 6  # shapes that are kept: some bend where there is no data, some do not
_UNLIKELY = 4.0  # log odds against the best from which a shape is left out
_STALE = 0.8  # share of today's rows with which a shape was found that still holds
_NEAR = 0.1  # half-widths outside of those rows where it still holds


@dataclasses.dataclass(frozen=True, slots=True)
class Shapes:
    """Shapes that explain a variable about as well as each other.

    Attributes:
        each: the shapes.
        odds: how likely each is; they sum to 1.
        rows: how many rows they were found with.
        reach: least and greatest value of each parent in these rows, in half-widths.
    """

    each: tuple[Shape, ...]
    odds: Float[np.ndarray, " shapes"]
    rows: int
    reach: tuple[tuple[float, float], ...]

    def fits(self, u: Float[np.ndarray, "n p"]) -> bool:
        """Whether they are still good enough for more rows, scaled."""
        if not len(u) or self.rows < _STALE * len(u):
            return False
        # One row far outside says more about a shape than all that came before.
        return all(
            x.min() > low - _NEAR and x.max() < high + _NEAR
            for x, (low, high) in zip(u.T, self.reach, strict=True)
        )


def likely(
    visited: dict[Shape, float], rows: int, reach: tuple[tuple[float, float], ...]
) -> Shapes:
    """The most likely of the shapes that were tried.

    Args:
        visited: the log odds of each.
        rows: how many rows they were found with.
        reach: least and greatest value of each parent in these rows.
    """
    best = sorted(visited, key=lambda shape: -visited[shape])[:_KEPT]
    best = [shape for shape in best if visited[shape] > visited[best[0]] - _UNLIKELY]
    odds = np.exp(np.array([visited[shape] - visited[best[0]] for shape in best]))
    return Shapes(tuple(best), odds / odds.sum(), rows, reach)


def search(
    gram: Float[np.ndarray, "k k"],
    against: Float[np.ndarray, " k"],
    square: float,
    rows: float,
    p: int,
    count: int,
    which: int,
    rare: Float[np.ndarray, " r"],
) -> dict[Shape, float]:
    """Log odds of shapes, from climbing one part after the other, twice.

    Args:
        gram: inner products of the columns.
        against: inner products of the columns with the variable.
        square: inner product of the variable with itself.
        rows: how many rows these sum over; a fraction where they count for less.
        p: how many parents.
        count: how many waves.
        which: length of waves.
        rare: prior variances of companions' columns, the last ones.
    """
    visited: dict[Shape, float] = {}

    def climb(here: Shape, options: list[Shape]) -> Shape:
        for shape in [here, *options]:
            if shape not in visited:
                variances = np.concatenate([prior_of(shape, p, count), rare])
                used = variances > NOTHING
                visited[shape] = float(
                    log_evidence(
                        gram[np.ix_(used, used)],
                        against[used],
                        square,
                        rows,
                        variances[used],
                    )
                )
        return max([here, *options], key=lambda shape: visited[shape])

    here = Shape(10.0, ((_LENGTHS[-1], 0.0),) * p, (which, 0.0))
    bends = [(_LENGTHS[-1], 0.0), *((a, g) for a in _LENGTHS for g in _GAINS)]
    for _ in range(2):
        before = here
        for i in range(p):
            here = climb(
                here,
                [
                    dataclasses.replace(
                        here, bends=(*here.bends[:i], bend, *here.bends[i + 1 :])
                    )
                    for bend in bends
                ],
            )
        waves = [(which, gain) for gain in (0.0, *_GAINS)] if count else []
        here = climb(here, [dataclasses.replace(here, waves=w) for w in waves])
        lines = _LINE_GAINS if p else ()
        here = climb(here, [dataclasses.replace(here, line=gain) for gain in lines])
        if here == before:
            break
    return visited
