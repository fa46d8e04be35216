"""The shared cases of `benchmarks/remat.py`: nets, plans, compiled programs.

Plans are made once for each net and limit, and planning is timed.
"""

import dataclasses
import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
from benchmarks.nets import NETS, Net

from frugax import InfeasibleBudgetError, MemoryBudget, measure, remat
from frugax.jaxprs import flops

SHARES = (0.75, 0.5, 0.35, 0.25)
# Without it XLA on CPU drops the barriers of `jax.checkpoint` before it last merges
# equal operations.
KEEP_BARRIERS = {"xla_disable_hlo_passes": "cse_barrier_expander"}
# For few live buffers, where the default is for concurrency.
SAVING_SCHEDULE = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}

_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
_compile_seconds: list[float] = []


def _note_compiling(event: str, duration_secs: float, **_: str | int) -> None:
    if event == _COMPILE_EVENT:
        _compile_seconds.append(duration_secs)


jax.monitoring.register_event_duration_secs_listener(_note_compiling)


@dataclasses.dataclass(frozen=True)
class Planned:
    """The outcome of planning.

    Attributes:
        plan: the plan, or None if nothing fitted.
        needed: the limit at which planning should succeed, if nothing fitted.
        seconds: that it took.
        compile_seconds: of these in XLA.
    """

    plan: remat.RematPlan | None
    needed: int | None
    seconds: float
    compile_seconds: float


@dataclasses.dataclass(frozen=True)
class Built:
    """A compiled program, and what XLA says of it."""

    run: Callable[..., Any]
    temp_bytes: int
    output_bytes: int
    xla_flops: float | None


@functools.cache
def net(name: str) -> Net:
    return NETS[name]()


def gradient(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Wrapped, so that JAX compiles each again and does not reuse a known program."""
    both = jax.value_and_grad(loss)
    return lambda *args: both(*args)


def by_hand(name: str) -> Callable[..., Any]:
    """The gradient with `jax.checkpoint` around each layer."""
    return gradient(net(name).by_layer(jax.checkpoint))


def build(
    name: str, function: Callable[..., Any], options: dict[str, str] | None = None
) -> Built:
    """Compile `function` of the net's arguments."""
    jitted = jax.jit(function, compiler_options=options)
    compiled = jitted.lower(*net(name).shapes).compile()
    costs = measure.program(compiled)
    # XLA counts the body of a loop once, however often it runs.
    flops_seen = costs.flops if net(name).unrolled else None
    return Built(compiled, costs.temp_bytes, costs.output_bytes, flops_seen)


def build_plan(name: str, plan: remat.RematPlan) -> Built:
    """Compile the net's loss with this plan."""
    step = remat.apply(net(name).loss, plan)
    return build(name, lambda *args: step(*args))


@functools.cache
def plain(name: str) -> Built:
    return build(name, gradient(net(name).loss))


def traced_flops(name: str, function: Callable[..., Any]) -> int:
    """Flops of a function as written, with loops counted by their iterations."""
    return flops(jax.make_jaxpr(function)(*net(name).shapes).jaxpr)


@functools.cache
def planned(name: str, limit_bytes: int) -> Planned:
    """Plan the net within a number of bytes."""
    said(f"{name}: plan for {limit_bytes:,} bytes")
    before, begun = len(_compile_seconds), time.perf_counter()
    plan, needed = None, None
    try:
        plan = remat.plan(
            net(name).loss,
            MemoryBudget(limit_bytes=limit_bytes),
            example_args=net(name).shapes,
            cache=False,
        )
    except InfeasibleBudgetError as e:
        needed = int(e.needed)
    seconds = time.perf_counter() - begun
    return Planned(plan, needed, seconds, sum(_compile_seconds[before:]))


def limit_of(name: str, share: float) -> int:
    """A share of the bytes that the net needs without a plan."""
    return int(share * plain(name).temp_bytes)


def load() -> float:
    """Programs that wanted to run, on average over the last minute."""
    return round(os.getloadavg()[0], 2)


def said(text: str) -> None:
    """A line of progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def markdown(head: list[str], rows: list[list[Any]]) -> str:
    """A table; text to the left, numbers to the right."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
