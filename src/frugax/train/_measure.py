"""What compiling costs and what it saves, measured so that the figures mean something.

A first call beside a second one says what compiling costs, not how much faster a
program became. For that two programs must take turns, and the answer is a ratio with
an interval. What "the guide" is docs/train.md says, under Static arguments.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax import measure
from frugax.budget import format_seconds

from ._check_options import check_arguments, check_function, check_whole
from ._compiles import CompileLedger

_RESAMPLES = 2000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompilationCost:
    """A function's first call beside its later ones; unpacks as the guide's triple.

    Attributes:
        compile_s: wall seconds of the first call less those of a later one: tracing,
            lowering, compiling.
        run_s: wall seconds of a later call, the fastest of a few.
        programs: that the first call had compiled or fetched; 0 says that the
            function had been compiled before.
        first: result of the first call.
        second: result of the second.
    """

    compile_s: float
    run_s: float
    programs: int
    first: Any
    second: Any

    @property
    def speedup(self) -> float:
        """`compile_s / run_s`: calls after which compiling is half of all the time.

        The guide calls this a speed-up. It is none: see `Sustained`.
        """
        return self.compile_s / self.run_s

    def break_even(self, eager_s: float) -> float:
        """Calls after which compiling has paid, against calls of `eager_s` seconds."""
        gain = eager_s - self.run_s
        return float("inf") if gain <= 0 else self.compile_s / gain

    def __iter__(self) -> Iterator[Any]:
        return iter((self.speedup, self.first, self.second))

    def __str__(self) -> str:
        return (
            f"compile {format_seconds(self.compile_s)}, then "
            f"{format_seconds(self.run_s)} a call"
        )


def measure_compilation_speedup(
    step: Callable[..., Any], *args: Any, repeats: int = 5
) -> CompilationCost:
    """Call a jitted function first and again, and say what compiling cost.

    Args:
        step: a jitted function, not called with such arguments before.
        args: its arguments; copied for each call, so that it may donate them.
        repeats: later calls, of which the fastest counts; >= 1.

    Raises:
        TypeError: `step` cannot be called, or `repeats` is no whole number.
        ValueError: `repeats` is below 1.
    """
    check_function("step", step, example="step(*args)")
    check_whole("repeats", repeats)
    copies = _copied(args)  # copying compiles too
    with CompileLedger() as ledger:
        first, first_s = _timed(step, copies)
    runs = [_timed(step, _copied(args)) for _ in range(repeats)]
    run_s = min(seconds for _, seconds in runs)
    return CompilationCost(
        compile_s=max(first_s - run_s, 0.0),
        run_s=run_s,
        programs=sum(f.compiles for f in ledger.functions.values()),
        first=first,
        second=runs[0][0],
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sustained:
    """How much faster one function is than another; a number, `float(s)`.

    Attributes:
        ratio: seconds of the slow one over seconds of the fast one: the median over
            rounds, in each of which both ran.
        low: lower end of the ratio's 95% bootstrap interval.
        high: its upper end.
        control: the same ratio of the fast one to itself: what is not 1 is noise.
        fast_s: median seconds of the fast one.
        slow_s: median seconds of the slow one.
        rounds: how many.
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
            f"{self.ratio:.3g} times ({self.low:.3g} to {self.high:.3g}, 95%; control "
            f"{self.control:.3g}; {self.rounds} rounds)"
        )


def benchmark_sustained_performance(
    fast: Callable[..., Any],
    slow: Callable[..., Any],
    args: Sequence[Any],
    n_runs: int = 10,
) -> Sustained:
    """Run two functions in turns and compare their times pairwise.

    Args:
        fast: the one that should be faster, mostly a jitted one.
        slow: the other one.
        args: arguments of both; copied for each call.
        n_runs: rounds, after one of each to warm up; >= 2.

    Raises:
        TypeError: one cannot be called, `args` is no tuple or list, or `n_runs` is no
            whole number.
        ValueError: `n_runs` is below 2.
    """
    check_function("fast", fast, example="fast(*args)")
    check_function("slow", slow, example="slow(*args)")
    check_arguments("args", args)
    check_whole("n_runs", n_runs, least=2)
    functions = {"fast": fast, "slow": slow, "again": fast}
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(n_runs + 1):
        # The order changes from round to round, or one would always follow the other.
        names = list(functions)
        for name in names[turn % 3 :] + names[: turn % 3]:
            _, taken = _timed(functions[name], _copied(tuple(args)))
            if turn:
                seconds[name].append(taken)
    times = {name: np.asarray(taken) for name, taken in seconds.items()}
    ratios = times["slow"] / times["fast"]
    low, high = _interval(ratios)
    return Sustained(
        ratio=float(np.median(ratios)),
        low=low,
        high=high,
        control=float(np.median(times["again"] / times["fast"])),
        fast_s=float(np.median(times["fast"])),
        slow_s=float(np.median(times["slow"])),
        rounds=n_runs,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryUse:
    """What a call needs, as XLA plans it; unpacks as the guide's triple.

    Attributes:
        result: what the call gave.
        program: bytes of the compiled program.
    """

    result: Any
    program: measure.Program

    @property
    def argument_bytes(self) -> int:
        """Its arguments."""
        return self.program.argument_bytes

    @property
    def temp_bytes(self) -> int:
        """What it needs besides arguments and results while it runs."""
        return self.program.temp_bytes

    @property
    def increase_bytes(self) -> int:
        """What there is more of afterwards: results that lie in no argument's place."""
        return self.program.output_bytes - self.program.alias_bytes

    @property
    def peak_bytes(self) -> int:
        """Arguments, results and temporaries together, each byte once."""
        return self.program.total_bytes

    def __iter__(self) -> Iterator[Any]:
        return iter((self.result, self.increase_bytes, self.peak_bytes))

    def __str__(self) -> str:
        return str(self.program)


def monitor_memory_usage(function: Callable[..., Any], *args: Any) -> MemoryUse:
    """Compile a function for these arguments, run it once, and say what it needs.

    The bytes are those that XLA reserves. `tracemalloc`, which the guide uses, sees
    Python's own objects only and no array of JAX.

    Args:
        function: a jitted function, of equinox or flax nnx too, or one that can be.
        args: its arguments; copied, so that it may donate them.

    Raises:
        TypeError: `function` cannot be called.
    """
    check_function("function", function, example="function(*args)")
    jitted: Any = function if hasattr(function, "lower") else jax.jit(function)
    compiled = jitted.lower(*args).compile()
    # equinox and flax wrap what JAX compiled.
    program = measure.program(getattr(compiled, "compiled", compiled))
    return MemoryUse(compiled(*_copied(args)), program)


def _timed(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, float]:
    started = time.perf_counter()
    result = jax.block_until_ready(function(*args))
    return result, time.perf_counter() - started


def _copied(args: tuple[Any, ...]) -> tuple[Any, ...]:
    def copy(x: Any) -> Any:
        return jnp.array(x) if isinstance(x, jax.Array) else x

    return jax.block_until_ready(jax.tree.map(copy, args))


def _interval(ratios: np.ndarray) -> tuple[float, float]:
    """95% percentile bootstrap of the median (Efron & Tibshirani 1993, ch. 13)."""
    rng = np.random.default_rng(0)
    picks = rng.integers(len(ratios), size=(_RESAMPLES, len(ratios)))
    medians = np.median(ratios[picks], axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    middle = float(np.median(ratios))
    return min(float(low), middle), max(float(high), middle)
