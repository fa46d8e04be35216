"""Quantiser of the trellis codec: weights to integers by the Viterbi algorithm.

All numbers of a lane share one grid of integers, but not every integer is allowed
everywhere: a number must be even or odd as the one before says. Naming only half of the
integers saves more than it loses, because an encoder that looks ahead finds a path of
near ones. Of the 1.53 dB that a uniform grid loses, a trellis of 8 states wins back
about one.

The trellis is Ungerboeck's with 8 states; its state is the last three branch bits b:

    n[t] mod 4 = 2 q[t] + b[t-1],    q[t] = b[t] ^ b[t-2] ^ b[t-3]

The best path is found by the Viterbi algorithm, a min-plus product of a vector with one
8 x 8 matrix for each number, in which two entries of a column are finite.

References:
    Ungerboeck 1982, IEEE Trans. Information Theory 28(1), 55-67 (the trellis);
    Marcellin & Fischer 1990, IEEE Trans. Communications 38(1), 82-93 (quantising);
    Marcellin 1994, IEEE Trans. Communications 42(1), 14-16 (with an entropy coder).
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..steps import MAX_LEVEL, Step, compute_type
from ._feedback import Feedback, Stage
from ._scales import run_scales, run_units, scale_runs
from ._tables import Tables, classify_rms, fit_tables

# Steps of the recursion whose branch costs are computed at once.
_TILE = 32
# Each lane costs 4 bytes of state, of which 3/4 of a byte carries information: 0.3% of
# 4-bit numbers. Longer lanes are fewer, and few lanes save no time in NumPy.
MAX_ROW_LANE = 2048
_MIN_RUN = 64
# The Lagrange multiplier: the price of a bit in squared steps. At high rate
# D = 0.26 steps^2 and dD/dR is -2 ln 2 D, 0.36. Measured on normal numbers: anything
# from 0.2 to 0.5 is within 0.03 dB.
_LAMBDA = np.float32(0.36)
# Beyond this many steps of deviation all rates are as good as equal (0.003 dB).
_MAX_RMS_WITH_RATES = 12.0
# Larger numbers share the rate of this one: few are larger, and tables stay small.
_MAX_RATED = 1 << 11
# The chosen integer may be some steps off, and must be exact in float32.
_MAX_SCALED = MAX_LEVEL[4] - 16
# Larger levels are listed apart: of at most this magnitude, which float32 rounds.
MAX_FAR_LEVEL = 1 << 30
_PART = 1 << 20  # numbers in a float64 copy
# Rates are estimated on short pieces of the lanes, many side by side: that is fast.
_PIECE, _PIECES = 128, 256


@dataclasses.dataclass(frozen=True)
class LaneLayout:
    """How the numbers of a block are cut into lanes, and lanes into runs.

    Every lane starts in state 0, so all lanes take a step of the trellis at once.

    Attributes:
        size: how many numbers there are.
        length: of a lane; the last one may be shorter.
        run: how many neighbours share a scale class, a row as a rule; divides `length`.
    """

    size: int
    length: int
    run: int

    @classmethod
    def of_rows(cls, size: int, row: int) -> "LaneLayout":
        """Cut rows of `row` numbers: a run is a row, or some, or part of a long one."""
        if row > MAX_ROW_LANE:
            pieces = -(-row // MAX_ROW_LANE)
            length = -(-row // pieces)
            return cls(size, length, length)
        run = row * -(-_MIN_RUN // row)
        runs = min(max(1, round(MAX_ROW_LANE / run)), -(-size // run))
        return cls(size, run * runs, run)

    @property
    def count(self) -> int:
        """The number of lanes."""
        return -(-self.size // self.length)

    @property
    def runs(self) -> int:
        """The number of runs."""
        return -(-self.size // self.run)

    @property
    def run_lengths(self) -> np.ndarray:
        """How many numbers each run has."""
        lengths = np.full(self.runs, self.run)
        lengths[-1] = self.size - self.run * (self.runs - 1)
        return lengths

    def split(self, flat: np.ndarray) -> np.ndarray:
        """Arrange numbers as `(length, count)`, zeros at the end of the last lane."""
        padded = flat
        if self.size < self.count * self.length:
            padded = np.zeros(self.count * self.length, flat.dtype)
            padded[: self.size] = flat
        return transpose(padded.reshape(self.count, self.length))

    def join(self, lanes: np.ndarray) -> np.ndarray:
        """Invert `split`."""
        return transpose(lanes).reshape(-1)[: self.size]

    def split_runs(self, of_runs: np.ndarray) -> np.ndarray:
        """Arrange one entry for each run as `(length / run, count)`."""
        rows = self.length // self.run
        padded = np.zeros(self.count * rows, of_runs.dtype)
        padded[: len(of_runs)] = of_runs
        return np.ascontiguousarray(padded.reshape(self.count, rows).T)

    def repeat(self, of_runs: np.ndarray) -> np.ndarray:
        """Repeat one entry for each run over the numbers of the run, flat."""
        return np.repeat(of_runs, self.run)[: self.size]


@dataclasses.dataclass(frozen=True)
class GridInput:
    """Weights to quantise.

    Attributes:
        values: flat, finite, at least one.
        step: the unit of the integers.
        lanes: how the values are cut up.
        classes: the scale class of each run.
        exponents: of the scale of each run, int8; None where all are 1.
        feedback: how errors of some rows move the targets of others; None if they
            do not.
        trellis: whether a trellis chooses the integers; otherwise each is the nearest.
    """

    values: np.ndarray
    step: Step
    lanes: LaneLayout
    classes: np.ndarray
    exponents: np.ndarray | None = None
    feedback: Feedback | None = None
    trellis: bool = True

    def decode(self, flat: np.ndarray) -> np.ndarray:
        """Return the values that these integers, flat, stand for."""
        levels = flat.astype(compute_type(self.values.dtype))
        return scale_runs(
            levels, self.step, self.values.dtype, self.lanes.run, self.exponents
        )

    def divide(self, dtype: "type[np.floating[Any]]") -> np.ndarray:
        """Return the values over their steps, in a type of 32 bits or more."""
        if self.exponents is None:
            return self.values.astype(dtype, copy=False) / self.step.size
        units = run_units(self.exponents, self.step, dtype)
        return self.values.astype(dtype, copy=False) / self.lanes.repeat(units)


@dataclasses.dataclass(frozen=True)
class GridLevels:
    """The integers of a block, ready for the entropy coder.

    Attributes:
        lanes: how they are cut up.
        classes: the scale class of each run.
        tables: the frequency tables of the classes.
        flat: the integers in the order of the weights.
        values: the weights that the integers stand for, flat.
        exponents: of the scale of each run; None where all are 1.
    """

    lanes: LaneLayout
    classes: np.ndarray
    tables: Tables
    flat: np.ndarray
    values: np.ndarray
    exponents: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class PathProblem:
    """Weights whose best path through the trellis is wanted.

    Attributes:
        scaled: weights over their step, float32, `(steps, lanes)`: each column is a
            lane, which starts in state 0.
        rates: the cost of each integer in squared steps, `(classes, integers)`,
            float32; an odd count with 0 in the middle; the ends stand for all integers
            beyond them. None if all cost the same.
        classes: the row of `rates` for each weight, `(steps, lanes)`.
        starts: the state that each lane starts in, uint8; None if all start in 0.
    """

    scaled: np.ndarray
    rates: np.ndarray | None
    classes: np.ndarray
    starts: np.ndarray | None = None

    @property
    def start_states(self) -> np.ndarray:
        """The state that each lane starts in, uint8."""
        if self.starts is None:
            return np.zeros(self.scaled.shape[1], np.uint8)
        return self.starts


def transpose(matrix: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Return a contiguous transpose, in `out` if that is given."""
    # Some rows at a time, three times faster where rows are a power of two apart.
    if out is None:
        out = np.empty(matrix.shape[::-1], matrix.dtype)
    for first in range(0, len(matrix), 32):
        out[:, first : first + 32] = matrix[first : first + 32].T
    return out


def sum_run_squares(values: np.ndarray, lanes: LaneLayout) -> np.ndarray:
    """Return the sum of squares of each run of flat values."""
    part = max(1, _PART // lanes.run) * lanes.run
    sums = [
        np.add.reduceat(
            np.square(values[at : at + part].astype(np.float64)),
            np.arange(0, min(part, len(values) - at), lanes.run),
        )
        for at in range(0, len(values), part)
    ]
    return np.concatenate(sums)


def classify_runs(
    values: np.ndarray, lanes: LaneLayout, exponents: np.ndarray | None = None
) -> np.ndarray:
    """Return the scale class of each run of flat values, uint8, for any step."""
    squares = sum_run_squares(values, lanes)
    if exponents is not None:
        squares = squares / run_scales(exponents) ** 2
    return classify_rms(squares, lanes.run_lengths)


def quantise(inputs: Sequence[GridInput]) -> list[GridLevels | None]:
    """Find the best integers for each input; None where some are too large.

    No result depends on the other inputs. Memory is needed for all of them at once.
    """
    coarse: dict[int, PathProblem] = {}
    fine: dict[int, PathProblem] = {}
    results: list[GridLevels | None] = [None] * len(inputs)
    for i, part in enumerate(inputs):
        if not part.trellis:
            results[i] = _round(part)
            continue
        scaled = _scale(part)
        if scaled is None:
            continue
        rms = float(np.sqrt(np.mean(np.square(scaled), dtype=np.float64)))
        classes = np.repeat(part.lanes.split_runs(part.classes), part.lanes.run, axis=0)
        problem = PathProblem(part.lanes.split(scaled), None, classes)
        if rms < _MAX_RMS_WITH_RATES:
            coarse[i] = problem
        else:
            fine[i] = problem
    if not (coarse or fine):
        return results
    if coarse:
        coarse = dict(zip(coarse, _estimate_rates([*coarse.values()]), strict=True))
    for group in (coarse, fine):
        plain = [i for i in group if inputs[i].feedback is None]
        paths = dict(zip(plain, viterbi([group[i] for i in plain]), strict=True))
        fed = [i for i in group if inputs[i].feedback is not None]
        paths |= zip(fed, _feed_back([(inputs[i], group[i]) for i in fed]), strict=True)
        for i, levels in paths.items():
            results[i] = _finish(inputs[i], levels)
    return results


def _round(part: GridInput) -> GridLevels | None:
    """Take the integer nearest to each weight; None if some are too large."""
    with np.errstate(over="ignore"):  # an infinite quotient is too large
        scaled = part.divide(compute_type(part.values.dtype))
    largest = _largest(scaled)
    if largest > MAX_LEVEL[scaled.itemsize]:
        return None
    return _describe(part, np.rint(scaled).astype(np.int32 if largest < 2**30 else int))


def _feed_back(
    parts: Sequence[tuple[GridInput, PathProblem]],
) -> list[np.ndarray]:
    """Find the paths of inputs with feedback, one stage of all of them at a time."""
    levels = [np.zeros(problem.scaled.shape, np.int32) for _, problem in parts]
    errors = [np.zeros(part.values.shape, np.float32) for part, _ in parts]
    stages = [part.feedback.stages for part, _ in parts if part.feedback]
    for number in range(max(map(len, stages), default=0)):
        there = [i for i, of_part in enumerate(stages) if number < len(of_part)]
        problems: list[PathProblem] = []
        for i in there:
            part, whole = parts[i]
            problems.append(_stage_problem(part, whole, number, errors[i], levels[i]))
        for i, path in zip(there, viterbi(problems), strict=True):
            part, stage = parts[i][0], stages[i][number]
            steps = slice(stage.first, stage.first + part.lanes.run)
            levels[i][steps, stage.lanes] = path
            _note_errors(part, stage, path, errors[i])
    return levels


def _stage_problem(
    part: GridInput,
    whole: PathProblem,
    number: int,
    errors: np.ndarray,
    levels: np.ndarray,
) -> PathProblem:
    """Return the runs of one stage, moved by the errors that earlier stages made."""
    feedback, lanes = part.feedback, part.lanes
    assert feedback is not None
    stage = feedback.stages[number]
    steps = slice(stage.first, stage.first + lanes.run)
    scaled = np.ascontiguousarray(whole.scaled[steps, stage.lanes])
    if len(stage.matrix):
        before = errors.reshape(-1, feedback.row)[stage.before]
        moved = (stage.matrix @ before).reshape(len(stage.runs), -1)
        units = _units(part)[stage.runs]
        scaled -= (moved / units[:, None]).T
        np.clip(scaled, -_MAX_SCALED, _MAX_SCALED, out=scaled)
    starts = None
    if stage.first:
        starts = _end_states(levels[: stage.first, stage.lanes])
    classes = np.ascontiguousarray(whole.classes[steps, stage.lanes])
    return PathProblem(scaled, whole.rates, classes, starts)


def _note_errors(
    part: GridInput, stage: Stage, path: np.ndarray, errors: np.ndarray
) -> None:
    """Put in how far the numbers of a stage are from the weights."""
    run = part.lanes.run
    of_runs = errors.reshape(-1, run)
    values = part.values.reshape(-1, run)[stage.runs].astype(np.float32)
    decoded = path.T * _units(part)[stage.runs][:, None]
    of_runs[stage.runs] = decoded - values


def _units(part: GridInput) -> np.ndarray:
    """Return the unit of each run, float32."""
    if part.exponents is None:
        return np.full(part.lanes.runs, part.step.size, np.float32)
    return run_units(part.exponents, part.step, np.float32)


def _end_states(levels: np.ndarray) -> np.ndarray:
    """Return the states of lanes after three levels or more, along axis 0."""
    last, middle, first = levels[-1], levels[-2], levels[-3]
    # A parity is the branch bit before it, and the next bit of a level gives its own.
    newest = (last >> 1 & 1) ^ (middle & 1) ^ (first & 1)
    return (((middle & 1) << 2) | ((last & 1) << 1) | newest).astype(np.uint8)


def _scale(part: GridInput) -> np.ndarray | None:
    # Weights over their step, clipped to the integers that float32 holds exactly.
    scaled = part.divide(compute_type(part.values.dtype))
    scaled = scaled.astype(np.float32, copy=False)
    largest = _largest(scaled)
    if largest > _MAX_SCALED:
        np.clip(scaled, -_MAX_SCALED, _MAX_SCALED, out=scaled)
    if largest > MAX_FAR_LEVEL - 4:
        return None
    return scaled


def _finish(part: GridInput, levels: np.ndarray) -> GridLevels:
    flat = part.lanes.join(levels)
    if _largest(flat) >= _MAX_SCALED - 4:
        flat = _restore_clipped(part, flat)
    return _describe(part, flat)


def _describe(part: GridInput, flat: np.ndarray) -> GridLevels:
    classes = part.lanes.repeat(part.classes)
    tables = fit_tables(flat, classes, trellis=part.trellis)
    values = part.decode(flat)
    return GridLevels(part.lanes, part.classes, tables, flat, values, part.exponents)


def _largest(numbers: np.ndarray) -> float:
    # Without a copy for the magnitudes.
    return max(float(numbers.max()), -float(numbers.min()))


def _restore_clipped(part: GridInput, flat: np.ndarray) -> np.ndarray:
    """Move the levels of clipped numbers as near as the residues of the path allow."""
    scaled = part.divide(np.float64)
    there = np.flatnonzero(np.abs(scaled) > _MAX_SCALED - 1)
    residue, out = flat[there] & 3, flat.copy()
    out[there] = residue + 4 * np.rint((scaled[there] - residue) / 4).astype(np.int32)
    return out


def _estimate_rates(problems: Sequence[PathProblem]) -> list[PathProblem]:
    """Fill in rates from how often integers are chosen on pieces of the lanes."""
    # Rates shape the choice and the choice shapes the rates, as in entropy-constrained
    # quantiser design (Chou, Lookabaugh & Gray 1989): two rounds are enough.
    rates: list[np.ndarray | None] = [None] * len(problems)
    pieces = [(_sample_lanes(p.scaled), _sample_lanes(p.classes)) for p in problems]
    for _ in range(2):
        samples = [
            PathProblem(scaled, rate, classes)
            for (scaled, classes), rate in zip(pieces, rates, strict=True)
        ]
        paths = viterbi(samples)
        rates = [
            _count_rates(levels, sample.classes, int(problem.classes.max()) + 1)
            for problem, sample, levels in zip(problems, samples, paths, strict=True)
        ]
    return [
        dataclasses.replace(problem, rates=rate)
        for problem, rate in zip(problems, rates, strict=True)
    ]


def _sample_lanes(lanes: np.ndarray) -> np.ndarray:
    """Cut evenly spread pieces out of the lanes, as lanes of their own."""
    length = min(_PIECE, len(lanes))
    whole = lanes[: len(lanes) // length * length]
    pieces = whole.reshape(-1, length, whole.shape[1]).swapaxes(0, 1)
    pieces = pieces.reshape(length, -1)
    return np.ascontiguousarray(pieces[:, :: -(-pieces.shape[1] // _PIECES)])


def _count_rates(levels: np.ndarray, classes: np.ndarray, count: int) -> np.ndarray:
    """Return -lambda log2 p of each integer, from how often it was chosen."""
    middle = min(int(np.abs(levels).max()), _MAX_RATED)
    width = 2 * middle + 1
    index = classes.astype(np.intp) * width + middle
    index += np.clip(levels, -middle, middle)
    # A quarter of an occurrence for integers never seen: a finite rate.
    seen = np.bincount(index.reshape(-1), minlength=count * width) + 0.25
    seen = seen.reshape(count, width)
    for odd in (0, 1):  # the decoder knows the parity, so each has its own distribution
        same = seen[:, (middle + odd) % 2 :: 2]
        same[:] = -np.log2(same / same.sum(axis=1, keepdims=True))
    return seen.astype(np.float32) * _LAMBDA


def viterbi(problems: Sequence[PathProblem]) -> list[np.ndarray]:
    """Find the paths of integers with the least squared error, or error plus rate.

    No path depends on the other problems. Their lanes stand side by side, because a
    step of few lanes takes NumPy as long as a step of many.
    """
    if not problems:
        return []
    order = sorted(range(len(problems)), key=lambda i: -len(problems[i].scaled))
    ranked = [problems[i] for i in order]
    ends = np.cumsum([part.scaled.shape[1] for part in ranked])
    scaled, classes, rates = _place_side_by_side(ranked)
    state = np.empty(ends[-1], np.uint8)
    # The axes of a cost are the bits of its state, the oldest first, then the lane.
    starts = np.concatenate([part.start_states for part in ranked])
    cost = np.full((2, 2, 2, ends[-1]), np.inf, np.float32)
    cost.reshape(8, -1)[starts, np.arange(ends[-1])] = 0
    decisions: list[np.ndarray] = []  # of each step and lane, a bit for each state
    lengths = [len(part.scaled) for part in ranked]
    for length in sorted(set(lengths)):  # lanes end, the shortest first
        lanes = int(ends[sum(n >= length for n in lengths) - 1])
        cost = np.ascontiguousarray(cost[..., :lanes])
        from_0, from_1 = (np.empty(cost.shape, np.float32) for _ in range(2))
        less = np.empty((_TILE, *cost.shape), bool)
        for first in range(len(decisions), length, _TILE):
            rows = slice(first, min(length, first + _TILE))
            tile = _branch_costs(scaled[rows, :lanes], rates, classes[rows, :lanes])
            for branch, take_1 in zip(tile, less, strict=False):
                # The oldest bit drops out of the state: two predecessors compete.
                np.add(cost[0][:, :, None], branch, out=from_0)
                np.add(cost[1][:, :, None], branch[::-1], out=from_1)
                # Strictly less: equal paths are decided alike on every machine.
                np.less(from_1, from_0, out=take_1)
                np.minimum(from_0, from_1, out=cost)
            decisions.extend(
                _pack_flags(less[: len(tile)].reshape(len(tile), 8, lanes))
            )
        state[:lanes] = cost.reshape(8, lanes).argmin(axis=0)
    # The three branch bits before each lane, the oldest first.
    before = starts >> np.array([[2], [1], [0]], np.uint8) & 1
    bits = np.concatenate([before, _trace_back(state, decisions)])
    integers = _round_to_residue(scaled, residues(bits)[3:])
    paths = [integers] * len(problems)
    for i, part, end in zip(order, ranked, ends, strict=True):
        steps, lanes = part.scaled.shape
        paths[i] = integers[:steps, end - lanes : end]
    return paths


def _place_side_by_side(
    ranked: Sequence[PathProblem],
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Concatenate weights, classes and rates of all problems, the longest first."""
    if len(ranked) == 1:  # nothing to copy
        return ranked[0].scaled, ranked[0].classes, ranked[0].rates
    shape = len(ranked[0].scaled), sum(part.scaled.shape[1] for part in ranked)
    scaled, classes = np.zeros(shape, np.float32), np.zeros(shape, np.int16)
    rates = [part.rates for part in ranked if part.rates is not None]
    width = max((of_part.shape[1] for of_part in rates), default=0)
    at = base = 0
    for part in ranked:
        steps, lanes = part.scaled.shape
        scaled[:steps, at : at + lanes] = part.scaled
        if part.rates is not None:
            classes[:steps, at : at + lanes] = part.classes.astype(np.int16) + base
            base += len(part.rates)
        at += lanes
    if not rates:
        return scaled, classes, None
    padded = [
        np.pad(r, ((0, 0), ((width - r.shape[1]) // 2,) * 2), mode="edge")
        for r in rates
    ]
    return scaled, classes, np.concatenate(padded)


def residues(bits: np.ndarray) -> np.ndarray:
    """Return the integers modulo 4 from the branch bits along axis 0."""
    residue = bits << 1
    residue[2:] ^= bits[:-2] << 1
    residue[3:] ^= bits[:-3] << 1
    residue[1:] |= bits[:-1]
    return residue


def _branch_costs(
    scaled: np.ndarray, rates: np.ndarray | None, classes: np.ndarray
) -> np.ndarray:
    """Return a 16th of the cost of each branch, `(steps, b[t-2], b[t-1], b[t], lanes)`.

    The costs are for b[t-3] = 0; for 1 they are the same with b[t-2] flipped. A power
    of two changes no rounding.
    """
    index, tables = np.zeros(0, np.intp), list[np.ndarray]()
    if rates is not None:
        # The integers that are nearest, one of each residue, follow from the floor.
        end = rates.shape[1] // 2 + 2
        floor = np.arange(-end, end + 1)
        for residue in range(4):
            nearest = floor - 1 + (residue - floor + 1) % 4 + end - 2
            rate = rates.take(nearest, axis=1, mode="clip") / np.float32(16)
            tables.append(rate.reshape(-1))
        at = np.floor(scaled)
        np.clip(at, -end, end, out=at)
        at += classes * np.float32(len(floor)) + np.float32(end)  # below 2^24: exact
        # Two conversions that processors have, where one to 64 bits is slow.
        index = at.astype(np.int32).astype(np.intp)
    # By parity, q and step; with q = 0 once more, because q is b[t] ^ b[t-2].
    costs = np.empty((2, 3, *scaled.shape), np.float32)
    fours = scaled * np.float32(0.25)
    for q, odd in itertools.product((0, 1), repeat=2):
        residue, gap = 2 * q + odd, costs[odd, q]
        # The distance to the nearest integer, in fours.
        np.subtract(fours, np.float32(residue / 4), out=gap)
        gap -= np.rint(gap)
        gap *= gap
        if tables:
            gap += tables[residue].take(index, mode="clip")
    costs[:, 2] = costs[:, 0]
    of_parity, of_q, of_step, of_lane = costs.strides
    return np.lib.stride_tricks.as_strided(
        costs,
        (len(scaled), 2, 2, 2, scaled.shape[1]),
        (of_step, of_q, of_parity, of_q, of_lane),
        writeable=False,
    )


def _pack_flags(flags: np.ndarray) -> np.ndarray:
    """Pack eight flags to a byte; `np.packbits` is slow on this axis."""
    flags = flags.view(np.uint8)
    packed = flags[:, 7].copy()
    for i in range(6, -1, -1):
        packed += packed  # x86 has no vectors of shifts of bytes
        packed |= flags[:, i]
    return packed


def _trace_back(state: np.ndarray, decisions: list[np.ndarray]) -> np.ndarray:
    """Return the branch bits of the paths that end in these states."""
    bits = np.zeros((len(decisions), len(state)), np.uint8)
    for t in range(len(decisions) - 1, -1, -1):
        lanes = len(decisions[t])
        now = state[:lanes]
        np.bitwise_and(now, 1, out=bits[t, :lanes])
        # The survivor's oldest bit enters at the top as the newest one leaves.
        oldest = decisions[t] >> now
        oldest &= 1
        oldest <<= 2
        now >>= 1
        now |= oldest
    return bits


def _round_to_residue(scaled: np.ndarray, residue: np.ndarray) -> np.ndarray:
    out = np.empty(scaled.shape, np.int32)
    for first in range(0, len(scaled), _TILE):  # copies that stay in the cache
        rows = slice(first, first + _TILE)
        fours = scaled[rows] - residue[rows]
        fours *= np.float32(0.25)
        out[rows] = np.rint(fours, out=fours)
        out[rows] *= 4
        out[rows] += residue[rows]
    return out
