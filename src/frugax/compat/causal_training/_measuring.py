"""Measure compile cost, sustained speed-ups and memory under the guide's names.

A first call beside a second one measures the cost of compiling, not how much faster a
program became. A speed-up needs two programs that take turns; it is a ratio with an
interval.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from frugax import measure
from frugax.options import check_integer

_REPEATS = 5


@dataclasses.dataclass(frozen=True, slots=True)
class CompilationCost:
    """A function's first call beside its later ones; unpacks as the guide's triple.

    Attributes:
        compile_s: wall seconds of the first call minus those of a later one, spent on
            tracing, lowering and compiling.
        run_s: wall seconds of the fastest later call.
        first: result of the first call.
        second: result of the second call.
    """

    compile_s: float
    run_s: float
    first: Any
    second: Any

    @property
    def speedup(self) -> float:
        """The ratio `compile_s / run_s`, which the guide calls a speed-up.

        It only says after how many calls compiling is half of the total time. For a
        speed-up see `SustainedThroughput`.
        """
        return self.compile_s / self.run_s

    def __iter__(self) -> Iterator[Any]:
        return iter((self.speedup, self.first, self.second))


def measure_compilation_speedup(
    step: Callable[..., Any], *args: Any
) -> CompilationCost:
    """Time a jitted function's first call and five later ones.

    Args:
        step: a jitted function, not called with arguments of these shapes before.
        args: its arguments, copied for each call, so that it may donate them.
    """
    first, first_s = _time_call(step, args)
    later = [_time_call(step, args) for _ in range(_REPEATS)]
    # The fastest call: other processes can only make a call slower.
    run_s = min(seconds for _, seconds in later)
    # The first call also runs the program once, so one run is taken off.
    return CompilationCost(max(first_s - run_s, 0.0), run_s, first, later[0][0])


@dataclasses.dataclass(frozen=True, slots=True)
class SustainedThroughput:
    """The ratio of two functions' times, as a number with `float(s)`.

    Attributes:
        ratio: seconds of the slow function over seconds of the fast one, the median
            over rounds in which both ran.
        low: lower end of the ratio's 90% bootstrap interval.
        high: upper end of that interval.
    """

    ratio: float
    low: float
    high: float

    def __float__(self) -> float:
        return self.ratio


def benchmark_sustained_performance(
    fast: Callable[..., Any],
    slow: Callable[..., Any],
    args: Sequence[Any],
    n_runs: int = 10,
) -> SustainedThroughput:
    """Run two functions in turns and compare their times pairwise.

    Args:
        fast: the function expected to be faster, usually a jitted one.
        slow: the other function.
        args: arguments of both, copied for each call.
        n_runs: rounds after one warm-up round; >= 2.

    Raises:
        TypeError: `n_runs` is not an integer.
        ValueError: `n_runs` is below 2.
    """
    check_integer("n_runs", n_runs, minimum=2)
    seconds: dict[str, list[float]] = {"fast": [], "slow": []}
    functions = {"fast": fast, "slow": slow}
    for turn in range(n_runs + 1):
        # The order changes, or one function would always run in the other's wake (warm
        # caches, a clock that was just raised).
        for name in ("fast", "slow") if turn % 2 else ("slow", "fast"):
            seconds[name].append(_time_call(functions[name], args)[1])
    # The first round compiles. Ratios within a round, because load changes more between
    # rounds than within one.
    found = measure.Interval.of(np.divide(seconds["slow"][1:], seconds["fast"][1:]))
    return SustainedThroughput(found.middle, found.low, found.high)


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryUse:
    """The memory of one call as XLA plans it; unpacks as the guide's triple.

    Attributes:
        result: result of the call.
        increase_bytes: results that do not reuse an argument's memory.
        peak_bytes: arguments, results and temporaries together, each counted once.
        argument_bytes: the arguments.
        temp_bytes: needed beside arguments and results while the program runs.
    """

    result: Any
    increase_bytes: int
    peak_bytes: int
    argument_bytes: int
    temp_bytes: int

    def __iter__(self) -> Iterator[Any]:
        return iter((self.result, self.increase_bytes, self.peak_bytes))


def monitor_memory_usage(function: Callable[..., Any], *args: Any) -> MemoryUse:
    """Compile a function for these arguments, run it once and report its memory.

    The bytes are those that XLA reserves. `tracemalloc`, which the guide uses, counts
    Python objects only and no JAX array.

    Args:
        function: a function that is jitted, by equinox or flax nnx too, or can be.
        args: its arguments, copied, so that it may donate them.
    """
    jitted: Any = function if hasattr(function, "lower") else jax.jit(function)
    compiled = jitted.lower(*args).compile()
    # equinox and flax wrap the object that JAX compiled.
    costs = measure.program(getattr(compiled, "compiled", compiled))
    return MemoryUse(
        result=compiled(*measure.copy_args(args)),
        increase_bytes=costs.output_bytes - costs.alias_bytes,
        peak_bytes=costs.total_bytes,
        argument_bytes=costs.argument_bytes,
        temp_bytes=costs.temp_bytes,
    )


def _time_call(function: Callable[..., Any], args: Sequence[Any]) -> tuple[Any, float]:
    copies = measure.copy_args(args)
    started = time.perf_counter()
    # JAX returns before the work is done; without waiting, a call would seem to take
    # the time of its dispatch.
    result = jax.block_until_ready(function(*copies))
    return result, time.perf_counter() - started
