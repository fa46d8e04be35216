"""A block of weights cut into lanes, and the trellis numbers that fit it best.

All lanes walk the trellis of `_trellis.py` at once, each from state 0. Runs of
neighbours, rows as a rule, are sorted into classes of like size, so that each is coded
with a table of its own.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from ._quantised import MOST_LEVEL, Step, values_of, working_type
from ._trellis import Wanted, best_levels
from ._trellis_tables import Tables, build, classes_of

# Each lane costs 4 bytes of state, 3/4 of a byte of which carries something: 0.3% of
# 4-bit numbers. Longer lanes are fewer, and a step of few lanes is no faster in NumPy.
LANE = 2048
_LEAST_RUN = 64
# What a bit is worth, in squared steps: at high rate D = 0.26 steps^2 and dD/dR is
# -2 ln 2 D, 0.36. Measured on normal numbers: 0.2 to 0.5 are alike within 0.03 dB.
_BIT = np.float32(0.36)
# Beyond this many steps of deviation, rates are as good as equal (0.003 dB).
_RATES_UP_TO = 12.0
# Few are larger, and the largest has the rate of these: tables stay small.
_MOST_RATES = 1 << 11
# The number that is taken may be some steps off, and must be exact in float32.
_MOST_SCALED = MOST_LEVEL[4] - 16
# Larger ones are listed: a level of at most this, which float32 rounds.
FARTHEST = 1 << 30
_PART = 1 << 20  # numbers in a float64 copy
# Rates are learnt on short pieces of the lanes, many side by side: that is quick.
_PIECE, _PIECES = 128, 256


@dataclasses.dataclass(frozen=True)
class Lanes:
    """How the numbers of a block are cut up.

    Attributes:
        size: how many numbers.
        length: of a lane, the last one perhaps shorter.
        run: how many numbers in a row share a class; divides `length`.
    """

    size: int
    length: int
    run: int

    @classmethod
    def of_rows(cls, size: int, row: int) -> "Lanes":
        """Cut rows of `row` numbers: runs are rows, or even parts of a long one."""
        if row > LANE:
            pieces = -(-row // LANE)
            length = -(-row // pieces)
            return cls(size, length, length)
        run = row * -(-_LEAST_RUN // row)
        runs = min(max(1, round(LANE / run)), -(-size // run))
        return cls(size, run * runs, run)

    @property
    def count(self) -> int:
        """How many lanes."""
        return -(-self.size // self.length)

    @property
    def runs(self) -> int:
        """How many runs."""
        return -(-self.size // self.run)

    def split(self, flat: np.ndarray) -> np.ndarray:
        """The numbers as `(length, count)`, zeros at the end of the last lane."""
        padded = np.zeros(self.count * self.length, flat.dtype)
        padded[: self.size] = flat
        return np.ascontiguousarray(padded.reshape(self.count, self.length).T)

    def join(self, lanes: np.ndarray) -> np.ndarray:
        """What `split` cut up."""
        return np.ascontiguousarray(lanes.T).reshape(-1)[: self.size]

    def spread(self, of_runs: np.ndarray) -> np.ndarray:
        """One entry for each run, as `(length / run, count)`."""
        rows = self.length // self.run
        padded = np.zeros(self.count * rows, of_runs.dtype)
        padded[: len(of_runs)] = of_runs
        return np.ascontiguousarray(padded.reshape(self.count, rows).T)


@dataclasses.dataclass(frozen=True)
class Coded:
    """The numbers of a block, ready to be coded.

    Attributes:
        lanes: how they are cut up.
        levels: the numbers, `(lanes.length, lanes.count)`.
        classes: the class of each run.
        tables: what codes them.
    """

    lanes: Lanes
    levels: np.ndarray
    classes: np.ndarray
    tables: Tables

    @property
    def flat(self) -> np.ndarray:
        """The numbers in their order."""
        return self.lanes.join(self.levels)


def run_squares(values: np.ndarray, lanes: Lanes) -> np.ndarray:
    """Sum of squares of each run of flat values."""
    part = max(1, _PART // lanes.run) * lanes.run
    found = [
        np.add.reduceat(
            np.square(values[at : at + part].astype(np.float64)),
            np.arange(0, min(part, len(values) - at), lanes.run),
        )
        for at in range(0, len(values), part)
    ]
    return np.concatenate(found)


def run_classes(values: np.ndarray, lanes: Lanes) -> np.ndarray:
    """The class of each run of flat values, uint8; whatever the step will be."""
    lengths = np.full(lanes.runs, lanes.run)
    lengths[-1] = lanes.size - lanes.run * (lanes.runs - 1)
    return classes_of(run_squares(values, lanes), lengths)


@dataclasses.dataclass(frozen=True)
class Part:
    """Weights to be quantised.

    Attributes:
        values: flat, finite, at least one.
        step: what the numbers are multiples of.
        lanes: how they are cut up.
        classes: the class of each run.
    """

    values: np.ndarray
    step: Step
    lanes: Lanes
    classes: np.ndarray


def quantise(parts: Sequence[Part]) -> list[Coded | None]:
    """Find the best numbers for each; None where some are too large.

    They do not depend on what else is asked for. Memory is needed for all at once.
    """
    rough: dict[int, Wanted] = {}
    fine: dict[int, Wanted] = {}
    for i, part in enumerate(parts):
        scaled = _scaled(part)
        if scaled is None:
            continue
        rms = float(np.sqrt(np.mean(np.square(scaled), dtype=np.float64)))
        spread = np.repeat(part.lanes.spread(part.classes), part.lanes.run, axis=0)
        wanted = Wanted(part.lanes.split(scaled), None, spread)
        (rough if rms < _RATES_UP_TO else fine)[i] = wanted
    rough = dict(zip(rough, _with_rates([*rough.values()]), strict=True))
    found: list[Coded | None] = [None] * len(parts)
    for group in (rough, fine):
        paths = best_levels([*group.values()])
        for i, levels in zip(group, paths, strict=True):
            found[i] = _coded(parts[i], levels)
    return found


def _scaled(part: Part) -> np.ndarray | None:
    working = working_type(part.values.dtype)
    scaled = (part.values.astype(working) / part.step.size).astype(np.float32)
    largest = np.abs(scaled).max()
    if largest > _MOST_SCALED:
        np.clip(scaled, -_MOST_SCALED, _MOST_SCALED, out=scaled)
    return None if largest > FARTHEST - 4 else scaled


def _far_out(part: Part, flat: np.ndarray) -> np.ndarray:
    """The levels, those of clipped numbers as near as the path's residues let them."""
    scaled = part.values.astype(np.float64) / part.step.size
    there = np.flatnonzero(np.abs(scaled) > _MOST_SCALED - 1)
    residue, out = flat[there] & 3, flat.copy()
    out[there] = residue + 4 * np.rint((scaled[there] - residue) / 4).astype(np.int32)
    return out


def _coded(part: Part, levels: np.ndarray) -> Coded | None:
    flat = part.lanes.join(levels)
    if np.abs(flat).max() >= _MOST_SCALED - 4:
        flat = _far_out(part, flat)
        levels = part.lanes.split(flat)
    if not np.isfinite(values_of(flat, part.step, part.values.dtype)).all():
        return None
    spread = np.repeat(part.classes, part.lanes.run)[: part.lanes.size]
    return Coded(part.lanes, levels, part.classes, build(flat, spread))


def _with_rates(wanted: Sequence[Wanted]) -> list[Wanted]:
    """Rates come from how often numbers are taken in pieces of the lanes."""
    rates: list[np.ndarray | None] = [None] * len(wanted)
    pieces = [(_pieces(w.scaled), _pieces(w.classes)) for w in wanted]
    for _ in range(2):
        samples = [Wanted(s, r, c) for (s, c), r in zip(pieces, rates, strict=True)]
        rates = [
            _rates(levels, sample.classes, int(w.classes.max()) + 1)
            for w, sample, levels in zip(
                wanted, samples, best_levels(samples), strict=True
            )
        ]
    return [dataclasses.replace(w, rates=r) for w, r in zip(wanted, rates, strict=True)]


def _pieces(lanes: np.ndarray) -> np.ndarray:
    """Some pieces of the lanes, evenly spread, as lanes of their own."""
    length = min(_PIECE, len(lanes))
    whole = lanes[: len(lanes) // length * length]
    pieces = whole.reshape(-1, length, whole.shape[1]).swapaxes(0, 1)
    pieces = pieces.reshape(length, -1)
    return np.ascontiguousarray(pieces[:, :: -(-pieces.shape[1] // _PIECES)])


def _rates(levels: np.ndarray, classes: np.ndarray, count: int) -> np.ndarray:
    """What each number costs, in squared steps, from how often it was taken."""
    middle = min(int(np.abs(levels).max()), _MOST_RATES)
    width = 2 * middle + 1
    index = classes.astype(np.intp) * width + middle
    index += np.clip(levels, -middle, middle)
    seen = np.bincount(index.reshape(-1), minlength=count * width) + 0.25
    seen = seen.reshape(count, width)
    for odd in (0, 1):
        same = seen[:, (middle + odd) % 2 :: 2]
        same[:] = -np.log2(same / same.sum(axis=1, keepdims=True))
    return seen.astype(np.float32) * _BIT
