"""Compile a training step for one signature of its arguments, and measure it."""

import dataclasses
from collections.abc import Callable

import jax

from frugax import measure, remat
from frugax.budget import MemoryBudget
from frugax.errors import BudgetExceededError, InfeasibleBudgetError
from frugax.trees import PyTree

from ..compiles import Signature
from ..processes import Layout
from ._build import Builder, Metrics, StepFunction, StepOptions
from ._state import TrainState, check_keeps_type
from ._trace_errors import TRACE_ERRORS, describe_trace_error


@dataclasses.dataclass(frozen=True)
class StepVariant:
    """The program that runs for one signature."""

    signature: Signature
    run: StepFunction
    jitted: jax.stages.Wrapped
    plan: remat.RematPlan | None
    program: measure.ProgramCosts
    compiled: jax.stages.Compiled


def compile_step(
    options: StepOptions,
    signature: Signature,
    state: TrainState,
    batch: PyTree,
    *,
    on_compile: Callable[[], None],
) -> StepVariant:
    """Plan and compile a step, and refuse one that is larger than its plan.

    Args:
        options: of the step.
        signature: of state and batch.
        state: any state of the right shapes.
        batch: any batch of the right shapes.
        on_compile: called when the step is traced and about to be compiled.

    Raises:
        BudgetExceededError: the compiled step needs more memory than its plan states.
        InfeasibleBudgetError: no plan fits the memory budget.
        TypeError: the step cannot be traced, or changes the type of its own state.
    """
    layout = options.layout
    if layout is not None:  # the shapes alone: arrays may lie on other devices
        state, batch = jax.eval_shape(lambda *x: x, state, batch)
    try:
        jitted, plan = Builder(options).jit(state, batch)
        traced = jitted.trace(state, batch)
    except TRACE_ERRORS as e:
        raise TypeError(describe_trace_error(e)) from e
    check_keeps_type(state, traced.out_info[0])
    # Before compiling: a compile that fails for want of memory was attempted too.
    on_compile()
    compiled = traced.lower().compile()
    program = measure.program(compiled)
    if plan is not None:
        _check_memory(program, plan.budget, layout)
    run: StepFunction = compiled
    if layout is not None:
        run = _place_batch_first(run, layout)
    return StepVariant(signature, run, jitted, plan, program, compiled)


def _check_memory(
    program: measure.ProgramCosts, memory: MemoryBudget, layout: Layout | None
) -> None:
    found_bytes = program.bytes_of(memory.kind)
    if found_bytes <= memory.usable_bytes:
        return
    if layout is None:
        raise BudgetExceededError(
            f"the compiled step needs {found_bytes:,} bytes, but its plan states "
            f"{memory.usable_bytes:,}; it was not run. Plan with headroom_frac > "
            "0, and report this."
        )
    raise InfeasibleBudgetError(
        f"the compiled step, {layout}, on each device",
        needed=memory.with_usable(found_bytes).limit_bytes,
        limit=memory.limit_bytes,
        unit="bytes",
        hint="make the batch smaller, or choose the layout with fit.search.",
    )


def _place_batch_first(compiled: StepFunction, layout: Layout) -> StepFunction:
    def run(state: TrainState, batch: PyTree) -> tuple[TrainState, Metrics]:
        return compiled(state, layout.place_batch(batch))

    return run
