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
from frugax.budget import format_seconds
from frugax.train import CompileLedger
from frugax.train.options import check_arguments, check_function, check_integer

_REPEATS = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompilationCost:
    """A function's first call beside its later ones; unpacks as the guide's triple.

    Attributes:
        compile_s: wall seconds of the first call minus those of a later one, spent on
            tracing, lowering and compiling.
        run_s: wall seconds of the fastest later call.
        programs: programs that the first call compiled or fetched; 0 if the function
            was already compiled.
        first: result of the first call.
        second: result of the second call.
    """

    compile_s: float
    run_s: float
    programs: int
    first: Any
    second: Any

    @property
    def speedup(self) -> float:
        """The ratio `compile_s / run_s`, which the guide calls a speed-up.

        It only says after how many calls compiling is half of the total time. For a
        speed-up see `SustainedThroughput`.
        """
        return self.compile_s / self.run_s

    def break_even(self, eager_s: float) -> float:
        """Return the number of calls after which compiling has paid off.

        Args:
            eager_s: seconds of one call that is not compiled.
        """
        gain_s = eager_s - self.run_s
        return self.compile_s / gain_s if gain_s > 0 else float("inf")

    def __iter__(self) -> Iterator[Any]:
        return iter((self.speedup, self.first, self.second))

    def __str__(self) -> str:
        return (
            f"compile {format_seconds(self.compile_s)}, then "
            f"{format_seconds(self.run_s)} a call"
        )


def measure_compilation_speedup(
    step: Callable[..., Any], *args: Any
) -> CompilationCost:
    """Time a jitted function's first call and five later ones.

    Args:
        step: a jitted function, not called with arguments of these shapes before.
        args: its arguments, copied for each call, so that it may donate them.

    Raises:
        TypeError: `step` is not callable.
    """
    check_function("step", step, example="step(*args)")
    copies = measure.copy_args(args)  # outside the ledger, because copying compiles too
    with CompileLedger() as ledger:
        first, first_s = _time_call(step, copies)
    calls = [_time_call(step, measure.copy_args(args)) for _ in range(_REPEATS)]
    # The fastest call: other processes can only make a call slower.
    run_s = min(seconds for _, seconds in calls)
    return CompilationCost(
        # The first call also runs the program once, so one run is taken off.
        compile_s=max(first_s - run_s, 0.0),
        run_s=run_s,
        programs=sum(f.compiles for f in ledger.functions.values()),
        first=first,
        second=calls[0][0],
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SustainedThroughput:
    """The ratio of two functions' times, as a number with `float(s)`.

    Attributes:
        ratio: seconds of the slow function over seconds of the fast one, the median
            over rounds in which both ran.
        low: lower end of the ratio's 90% bootstrap interval.
        high: upper end of that interval.
        control: the same ratio of the fast function to itself; its distance from 1 is
            noise.
        fast_s: median seconds of the fast function.
        slow_s: median seconds of the slow function.
        rounds: number of rounds.
    """

    ratio: float
    low: float
    high: float
    control: float
    fast_s: float
    slow_s: float
    rounds: int

    def __float__(self) -> float:
        return self.ratio

    def __str__(self) -> str:
        return (
            f"{self.ratio:.3g} times ({self.low:.3g} to {self.high:.3g}, 90%; control "
            f"{self.control:.3g}; {self.rounds} rounds)"
        )


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
        TypeError: a function is not callable, `args` is not a tuple or list, or
            `n_runs` is not an integer.
        ValueError: `n_runs` is below 2.
    """
    check_function("fast", fast, example="fast(*args)")
    check_function("slow", slow, example="slow(*args)")
    check_arguments("args", args)
    check_integer("n_runs", n_runs, minimum=2)
    # The control is the fast function under another name: its ratio shows the noise
    # that the rotation leaves.
    functions = {"fast": fast, "slow": slow, "control": fast}
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    names = list(functions)
    for turn in range(n_runs + 1):
        # The order rotates, or one function would always run in another's wake (warm
        # caches, a clock that was just raised).
        for name in names[turn % 3 :] + names[: turn % 3]:
            _, call_s = _time_call(functions[name], measure.copy_args(args))
            # The first round warms up and is not counted, as it compiles.
            if turn:
                seconds[name].append(call_s)
    times = {name: np.asarray(values) for name, values in seconds.items()}
    # Ratios within a round, because load changes more between rounds than within one.
    ratio = measure.Interval.of(times["slow"] / times["fast"])
    return SustainedThroughput(
        ratio=ratio.middle,
        low=ratio.low,
        high=ratio.high,
        control=float(np.median(times["control"] / times["fast"])),
        fast_s=float(np.median(times["fast"])),
        slow_s=float(np.median(times["slow"])),
        rounds=n_runs,
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
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

    Raises:
        TypeError: `function` is not callable.
    """
    check_function("function", function, example="function(*args)")
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


def _time_call(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    started = time.perf_counter()
    # JAX returns before the work is done; without waiting, a call would seem to take
    # the time of its dispatch.
    result = jax.block_until_ready(function(*args))
    return result, time.perf_counter() - started
