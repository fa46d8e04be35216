"""`paired_ratio`: compare the times of programs that run in turns on a noisy machine.

A program's ratio to another that ran within the same tenth of a second means more than
its seconds, because anything that slows one of them slows both.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

_BOOTSTRAP_RESAMPLES = 2000
# The clock may be too coarse to time one call: this keeps the number of calls finite.
_SHORTEST_CALL_S = 1e-7


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """A median with its 5% and 95% bootstrap percentiles.

    Attributes:
        low: the 5% percentile, at most `middle`.
        middle: the median.
        high: the 95% percentile, at least `middle`.
    """

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Float[np.ndarray, " rounds"]) -> "Interval":
        """Bootstrap the median (Efron & Tibshirani 1993, chapter 13)."""
        # A fixed seed: the same times give the same interval.
        rng = np.random.default_rng(0)
        picks = rng.integers(len(values), size=(_BOOTSTRAP_RESAMPLES, len(values)))
        low, high = np.percentile(np.median(values[picks], axis=1), [5, 95])
        middle = float(np.median(values))
        # With few rounds the percentiles may both lie on one side of the median.
        return cls(min(float(low), middle), middle, max(float(high), middle))

    @property
    def noise(self) -> float:
        """The larger distance from the median to a bound."""
        return max(self.high - self.middle, self.middle - self.low)


@dataclasses.dataclass(frozen=True, slots=True)
class InterleavedTimes:
    """Seconds per call of several programs that ran in turns.

    Attributes:
        seconds: seconds per call in each round, by program.
        calls: calls of each program in a round.
    """

    seconds: Mapping[str, Float[np.ndarray, " rounds"]]
    calls: int

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return min(map(len, self.seconds.values()))

    def ratio(self, name: str, to: str) -> Interval:
        """Return how many times longer one program takes than another."""
        return Interval.of(self.seconds[name] / self.seconds[to])

    def added(self, name: str, to: str) -> Interval:
        """Return how many seconds longer one program takes than another."""
        return Interval.of(self.seconds[name] - self.seconds[to])


def time_interleaved(
    programs: Mapping[str, Callable[..., Any]],
    args: Sequence[Any],
    *,
    seconds: float,
    chunk_s: float,
    donates: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> InterleavedTimes:
    """Time programs in turns, in an order that is drawn anew for each round.

    Args:
        programs: the programs by name; each is called four times first, so that it is
            compiled.
        args: arguments of every program.
        seconds: total time to measure, roughly; there are at least three rounds.
        chunk_s: duration of one turn of the fastest program, roughly.
        donates: whether the programs donate their arguments; each call then gets copies
            that are made outside of the measured time.
        clock: a monotonic clock in seconds.

    Raises:
        ValueError: `seconds` or `chunk_s` is not positive and finite.
    """
    for name, value in (("seconds", seconds), ("chunk_s", chunk_s)):
        if not 0 < value < float("inf"):
            raise ValueError(f"{name} must be > 0 and finite, got {value!r}.")

    def time_turn(program: Callable[..., Any], calls: int) -> float:
        batch = [copy_args(args) if donates else tuple(args) for _ in range(calls)]
        started = clock()
        out = None
        for call_args in batch:
            out = program(*call_args)
        # JAX returns before the work is done; without this only the dispatch is timed.
        jax.block_until_ready(out)
        return (clock() - started) / calls

    estimate: dict[str, float] = {}
    for name, program in programs.items():
        time_turn(program, 1)
        # The least of three, because interruptions only ever add time (Chen & Revels
        # 2016, arXiv:1608.04295).
        fastest = min(time_turn(program, 1) for _ in range(3))
        estimate[name] = max(fastest, _SHORTEST_CALL_S)
    calls = max(1, round(chunk_s / min(estimate.values())))
    rounds = max(3, round(seconds / (sum(estimate.values()) * calls)))
    # A drawn order: in a fixed one each program would always follow the same neighbour
    # and inherit its caches and its processor frequency.
    rng = np.random.default_rng(0)
    names = list(programs)
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for i in rng.permutation(len(names)):
            name = names[i]
            times[name].append(time_turn(programs[name], calls))
    return InterleavedTimes({n: np.asarray(s) for n, s in times.items()}, calls)


def paired_ratio(
    program: Callable[..., Any],
    baseline: Callable[..., Any],
    args: Sequence[Any],
    *,
    seconds: float = 5.0,
    chunk_s: float = 0.005,
    donates: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> Interval:
    """Measure how many times longer a program takes than a baseline.

    Args:
        program: the program.
        baseline: the program it is compared with.
        args: arguments of both.
        seconds: total time to measure, roughly.
        chunk_s: duration of one turn, roughly.
        donates: whether the programs donate their arguments.
        clock: a monotonic clock in seconds.

    Raises:
        ValueError: `seconds` or `chunk_s` is not positive and finite.
    """
    times = time_interleaved(
        {"program": program, "baseline": baseline},
        args,
        seconds=seconds,
        chunk_s=chunk_s,
        donates=donates,
        clock=clock,
    )
    return times.ratio("program", "baseline")


def copy_args(args: Sequence[Any]) -> tuple[Any, ...]:
    """Return the arguments in arrays of their own, once the copies are ready."""
    copy = lambda x: jnp.array(x) if isinstance(x, jax.Array) else x
    return tuple(jax.block_until_ready(jax.tree.map(copy, tuple(args))))
