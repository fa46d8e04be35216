"""Compile a training step for each signature of its arguments, or else run it eagerly.

A step that cannot be traced or compiled falls back, with one warning, except where the
fallback would break a budget.
"""

import contextlib
import dataclasses
import math
from typing import Any

import jax

from frugax import measure, remat
from frugax.budget import MemoryBudget
from frugax.errors import BudgetExceededError, InfeasibleBudgetError
from frugax.trees import PyTree

from .._frozen import Frozen
from ..compiles import Signature
from ..options import join_first
from ..processes import Layout
from ._build import Builder, Metrics, StepFunction, StepOptions
from ._fallback import (
    FOR_VALUES,
    Mode,
    describe_error,
    has_python_leaves,
    is_compiler_failure,
    is_trace_error,
    is_trace_failure,
    split_batch,
    suggest_fix,
    warn_of_fallback,
)
from ._state import TrainState, check_keeps_type

_WITHOUT_JIT: Mode = "eager without any jit"


@dataclasses.dataclass(frozen=True)
class StepVariant:
    """The function that runs for one signature, and how it was made."""

    signature: Signature
    mode: Mode
    run: StepFunction
    jitted: jax.stages.Wrapped | None = None
    plan: remat.RematPlan | None = None
    program: measure.ProgramCosts | None = None


class StepCompiler:
    """Makes the variants of one step."""

    def __init__(self, options: StepOptions) -> None:
        self.options = options
        self.compile_limit = options.compile_budget
        self.compiles = 0
        # Looking for Python values costs time in each call's signature, so it starts
        # only after a loss was found to need one.
        self._splits_values = False
        self._warned: set[str] = set()

    def notice_text(self, batch: PyTree) -> None:
        """Split batches from now on if this one holds text, which no trace accepts."""
        if self.options.fallback and not self._splits_values:
            leaves = jax.tree.leaves(batch)
            self._splits_values = any(isinstance(leaf, str) for leaf in leaves)

    def signature(self, state: TrainState, batch: PyTree) -> Signature:
        """Return the signature that a program is compiled for."""
        static = None
        if self._splits_values:
            batch, values = split_batch(batch)
            static = values if values.value else None
        # With a layout, arrays are moved to their place before the program runs.
        return Signature.read(
            {"state": state, "batch": batch},
            static=static,
            placement=self.options.layout is None,
        )

    def traced(self, batch: PyTree) -> PyTree:
        """Return the batch without the values that the program is compiled for."""
        return split_batch(batch).arrays if self._splits_values else batch

    def _compile(
        self,
        state: TrainState,
        batch: PyTree,
        mode: Mode,
        compiler_options: dict[str, str],
    ) -> StepVariant:
        signature = self.signature(state, batch)
        values, arrays = None, batch
        if self._splits_values:
            arrays, values = split_batch(batch)
        builder = Builder(self.options, values)
        layout = self.options.layout
        if layout is not None:  # the shapes alone: arrays may lie on other devices
            state, arrays = jax.eval_shape(lambda *x: x, state, arrays)
        jitted, plan = builder.jit(state, arrays, compiler_options)
        traced = jitted.trace(state, arrays)
        check_keeps_type(state, traced.out_info[0])
        # Before compiling: a compile that fails for want of memory was attempted too.
        self.compiles += 1
        compiled = traced.lower().compile()
        program = measure.program(compiled)
        if plan is not None:
            self._check_memory(program, plan.budget)
        run: StepFunction = compiled
        if layout is not None:
            run = _place_batch_first(run, layout)
        if values is not None:
            run = _check_values_first(run, values)
        return StepVariant(signature, mode, run, jitted, plan, program)

    # Measure the compiled step, and refuse to run it if it is too large.
    def _check_memory(
        self, program: measure.ProgramCosts, memory: MemoryBudget
    ) -> None:
        found_bytes = program.bytes_of(memory.kind)
        if found_bytes <= memory.usable_bytes:
            return
        if self.options.layout is None:
            raise BudgetExceededError(
                f"the compiled step needs {found_bytes:,} bytes, but its plan states "
                f"{memory.usable_bytes:,}; it was not run. Plan with headroom_frac > "
                "0, and report this."
            )
        raise InfeasibleBudgetError(
            f"the compiled step, {self.options.layout}, on each device",
            needed=math.ceil(found_bytes / (1 - memory.headroom_frac)),
            limit=memory.limit_bytes,
            unit="bytes",
            hint="make the batch smaller, or choose the layout with distributed.plan.",
        )

    # --- fallbacks ----------------------------------------------------------------

    def make(
        self, signature: Signature, state: TrainState, batch: PyTree
    ) -> StepVariant:
        """Compile, or fall back to the next best way that keeps the budgets."""
        mode: Mode = FOR_VALUES if self._splits_values else "compiled"
        compiles_before = self.compiles
        try:
            return self._compile(state, batch, mode, {})
        except Exception as e:
            failure = e
        if not self.options.fallback:
            raise failure
        # The program that could not be made does not count against the budget.
        self.compiles = compiles_before
        if is_compiler_failure(failure):
            # The program is measured again, so the memory budget still holds.
            safer = self.options.safer_options
            variant = self._compile(state, batch, "compiled with safer options", safer)
            self._warn_of_failure(failure, variant.mode)
            return variant
        if not is_trace_failure(failure):
            raise failure
        # Compiling for a boolean or a size keeps every budget, so it comes before
        # eager.
        if not self._splits_values and has_python_leaves(batch):
            self._splits_values = True
            try:
                variant = self._compile(state, batch, FOR_VALUES, {})
            except Exception as e:
                if not is_trace_failure(e):
                    raise
                self._splits_values, self.compiles = False, compiles_before
            else:
                self._warn_of_values(failure, split_batch(batch).static.value)
                return variant
        return self.make_eager(signature, state, batch, failure)

    # Run without a program, where no budget needs one.
    def make_eager(
        self, signature: Signature, state: TrainState, batch: PyTree, failure: Exception
    ) -> StepVariant:
        needs = None
        if self.options.memory is not None:
            needs = f"keep the memory budget of {self.options.memory}"
        elif self.options.layout is not None:
            needs = f"run {self.options.layout}"
        if needs is not None:
            raise TypeError(
                f"the step cannot be compiled ({describe_error(failure)}), and only a "
                f"compiled step can {needs}, so it was not run. "
                f"{suggest_fix(failure).capitalize()}."
            ) from failure
        builder = Builder(self.options)
        modes: tuple[tuple[Mode, Any], ...] = (
            ("eager", contextlib.nullcontext),
            (_WITHOUT_JIT, jax.disable_jit),
        )
        # Running the step is the only way to learn whether it can run. The result is
        # thrown away; eager steps donate nothing, so the state survives.
        for mode, context in modes:
            run = builder.build_eager(context)
            # Without any jit, an error that merely resembles JAX's is the user's own.
            is_jaxs = is_trace_error if mode == _WITHOUT_JIT else is_trace_failure
            try:
                run(state, batch)
            except Exception as e:
                if not is_jaxs(e):
                    raise
                continue
            if isinstance(failure, BudgetExceededError):
                self._warn_once(
                    "excess",
                    f"{failure.args[0]} These shapes run without a program, more "
                    'slowly, because of on_excess="eager".',
                )
            else:
                self._warn_of_failure(failure, mode)
            return StepVariant(signature, mode, self._check_shapes(run, signature))
        raise TypeError(
            "the step can be run neither compiled nor eagerly: "
            f"{describe_error(failure)}. {suggest_fix(failure).capitalize()}."
        ) from failure

    def _check_shapes(self, run: StepFunction, signature: Signature) -> StepFunction:
        """Raise ValueError for other shapes, as a program does; they may have one."""

        def checked(state: TrainState, batch: PyTree) -> tuple[TrainState, Metrics]:
            if self.signature(state, batch) != signature:
                raise ValueError("other shapes")  # TrainStep catches it and prepares
            return run(state, batch)

        return checked

    def _warn_of_failure(self, failure: Exception, mode: Mode) -> None:
        budgets = []
        if self.options.memory is not None:
            budgets.append("memory")
        if self.compile_limit is not None:
            budgets.append("compiles")
        effects = ""
        if budgets:
            effects += f" Budgets that still hold: {', '.join(budgets)}."
        if not mode.startswith("compiled"):
            effects += " Steps are slower."
        self._warn_once(
            "failure",
            "the training step could not be compiled as it is: "
            f"{describe_error(failure)}. It runs {mode}.{effects} To have it "
            f"compiled, {suggest_fix(failure)}.",
        )

    def _warn_of_values(self, failure: Exception, values: dict[str, Any]) -> None:
        places = join_first(f"{k} = {v!r:.40}" for k, v in values.items())
        self._warn_once(
            "failure",
            f"the loss needs {places} as a Python value, not as an array: "
            f"{describe_error(failure)}. The step was compiled for that value, and "
            "every other one needs another compile. If there are many, make it an "
            f"array, and {suggest_fix(failure)}.",
        )

    def _warn_once(self, topic: str, text: str) -> None:
        if topic not in self._warned:
            self._warned.add(topic)
            warn_of_fallback(text)


def _place_batch_first(compiled: StepFunction, layout: Layout) -> StepFunction:
    def run(state: TrainState, batch: PyTree) -> tuple[TrainState, Metrics]:
        return compiled(state, layout.place_batch(batch))

    return run


def _check_values_first(compiled: StepFunction, static: Frozen[Any]) -> StepFunction:
    """Wrap a program that was compiled for certain Python values in the batch."""

    def run(state: TrainState, batch: PyTree) -> tuple[TrainState, Metrics]:
        arrays, values = split_batch(batch)
        if values != static:
            raise ValueError("other values")  # TrainStep catches it and prepares
        return compiled(state, arrays)

    return run
