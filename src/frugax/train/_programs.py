"""From a signature to what runs for it: a compiled program, or the next best way.

A step that cannot be traced or compiled goes down a ladder, and says so once; budgets
that the next rung would break stop it.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import jax

from frugax import measure, remat
from frugax.budget import MemoryBudget
from frugax.errors import BudgetExceededError, InfeasibleBudgetError
from frugax.trees import PyTree

from ._build import Builder, Metrics, Recipe, refuse_changing_state
from ._ladder import (
    FOR_VALUES,
    Mode,
    described,
    hint,
    is_compiler_failure,
    is_trace_failure,
    is_tracing,
    tell,
)
from ._layout import Layout
from ._promote import has_python_leaves, named, split
from ._signature import Signature
from ._state import TrainState
from ._static import Frozen

_LAST: Mode = "eager without any jit"
_Run: TypeAlias = Callable[[TrainState, PyTree], tuple[TrainState, Metrics]]


@dataclasses.dataclass(frozen=True)
class Variant:
    """What runs for one signature."""

    signature: Signature
    mode: Mode
    run: _Run
    jitted: jax.stages.Wrapped | None = None
    plan: remat.RematPlan | None = None
    program: measure.ProgramCosts | None = None


class Programs:
    """Makes what runs for a signature.

    Attributes:
        recipe: what the step does.
        memory: the most memory a compiled step may need.
        compile_limit: how many programs there may be.
        compiles: how many were compiled.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        memory: MemoryBudget | None,
        compile_limit: int | None,
        fallback: bool,
    ) -> None:
        self.recipe = recipe
        self.memory = memory
        self.compile_limit = compile_limit
        self.compiles = 0
        self._fallback = fallback
        self._promoting = False  # once Python values were found, they are looked for
        self._told: set[str] = set()  # what about

    def look_for_text(self, batch: PyTree) -> None:
        """Text in a batch is a Python value for certain; numbers may be traced."""
        if self._fallback and not self._promoting and has_python_leaves(batch):
            self._promoting = any(
                isinstance(leaf, str) for leaf in jax.tree.leaves(batch)
            )

    def signature(self, state: TrainState, batch: PyTree) -> Signature:
        """What a program is compiled for."""
        static = None
        if self._promoting:
            batch, values = split(batch)
            static = values if values.value else None
        # A layout says where all of it lies.
        placed = self.recipe.layout is None
        return Signature.read(
            {"state": state, "batch": batch}, static=static, placed=placed
        )

    def traced(self, batch: PyTree) -> PyTree:
        """The batch without what the program is compiled for."""
        return split(batch).arrays if self._promoting else batch

    def _compile(
        self, state: TrainState, batch: PyTree, mode: Mode, options: dict[str, str]
    ) -> Variant:
        signature = self.signature(state, batch)
        apart = split(batch) if self._promoting else None
        builder = Builder(self.recipe, self.memory, apart and apart.static)
        traced_batch = batch if apart is None else apart.arrays
        if self.recipe.layout is not None:  # wherever they lie now
            state, traced_batch = jax.eval_shape(lambda *x: x, state, traced_batch)
        jitted, plan = builder.jitted(state, traced_batch, options)
        traced = jitted.trace(state, traced_batch)
        refuse_changing_state(state, traced.out_info[0])
        self.compiles += 1
        compiled = traced.lower().compile()
        program = measure.program(compiled)
        if self.memory is not None:
            self._refuse_larger_than_planned(program, self.memory)
        run: _Run = compiled
        if self.recipe.layout is not None:
            run = _spread(run, self.recipe.layout)
        if apart is not None:
            run = _for_values(run, apart.static)
        return Variant(signature, mode, run, jitted, plan, program)

    def _refuse_larger_than_planned(
        self, program: measure.ProgramCosts, memory: MemoryBudget
    ) -> None:
        """A step is measured once it is compiled, and not run if it is too large.

        Raises:
            BudgetExceededError: it is, though its plan was measured too.
            InfeasibleBudgetError: it is; with a layout a plan is an estimate.
        """
        spent = program.bytes_of(memory.kind)
        if spent <= memory.usable_bytes:
            return
        if self.recipe.layout is None:
            raise BudgetExceededError(
                f"the compiled step needs {spent:,} bytes, but its plan promised "
                f"{memory.usable_bytes:,}; it was not run. Plan with headroom_frac > "
                "0, and report this."
            )
        raise InfeasibleBudgetError(
            f"the compiled step, {self.recipe.layout}, on each device",
            needed=math.ceil(spent / (1 - memory.headroom_frac)),
            limit=memory.limit_bytes,
            unit="bytes",
            hint="make the batch smaller, or choose the layout with distributed.plan.",
        )

    # --- ways round -------------------------------------------------------------

    def make(self, signature: Signature, state: TrainState, batch: PyTree) -> Variant:
        """Compile, or find the next best way to run that keeps the budgets."""
        mode: Mode = FOR_VALUES if self._promoting else "compiled"
        before = self.compiles
        try:
            return self._compile(state, batch, mode, {})
        except Exception as e:
            failure = e
        if not self._fallback:
            raise failure
        self.compiles = before
        if is_compiler_failure(failure):
            options = self.recipe.safer_options
            made = self._compile(state, batch, "compiled with safer options", options)
            self._tell(failure, made.mode)
            return made
        if not is_trace_failure(failure):
            raise failure
        if not self._promoting and has_python_leaves(batch):
            self._promoting = True
            try:
                made = self._compile(state, batch, FOR_VALUES, {})
            except Exception as e:
                if not is_trace_failure(e):
                    raise
                self._promoting, self.compiles = False, before
            else:
                self._tell_of_values(failure, split(batch).static.value)
                return made
        return self.eager(signature, state, batch, failure)

    def eager(
        self,
        signature: Signature,
        state: TrainState,
        batch: PyTree,
        failure: Exception,
    ) -> Variant:
        """Run without a program, where no budget needs one.

        Raises:
            TypeError: one does, or not even that is possible.
        """
        needs = None
        if self.memory is not None:
            needs = f"keep the memory budget of {self.memory}"
        elif self.recipe.layout is not None:
            needs = f"run {self.recipe.layout}"
        if needs is not None:
            raise TypeError(
                f"the step cannot be compiled ({described(failure)}), and only a "
                f"compiled step can {needs}, so it was not run. "
                f"{hint(failure).capitalize()}."
            ) from failure
        builder = Builder(self.recipe, None)
        modes: tuple[tuple[Mode, Any], ...] = (
            ("eager", contextlib.nullcontext),
            (_LAST, jax.disable_jit),
        )
        for mode, context in modes:
            run = builder.eager(context)
            try:
                run(state, batch)
            except Exception as e:
                # Without any jit, what only looks like JAX's is the user's own.
                if not (is_tracing(e) if mode == _LAST else is_trace_failure(e)):
                    raise
                continue
            if isinstance(failure, BudgetExceededError):
                self._tell_once(
                    "excess",
                    f"{failure.args[0]} These shapes run without a program, more "
                    'slowly, because of on_excess="eager".',
                )
            else:
                self._tell(failure, mode)
            return Variant(signature, mode, self._for_shapes(run, signature))
        raise TypeError(
            f"the step can be run neither compiled nor eagerly: {described(failure)}. "
            f"{hint(failure).capitalize()}."
        ) from failure

    def _for_shapes(self, run: _Run, signature: Signature) -> _Run:
        """An eager step takes any shapes, but others may have a program."""

        def checked(state: TrainState, batch: PyTree) -> tuple[TrainState, Metrics]:
            if self.signature(state, batch) != signature:
                raise ValueError("these are other shapes")  # prepare mends it
            return run(state, batch)

        return checked

    def _tell(self, failure: Exception, mode: Mode) -> None:
        held = []
        if self.memory is not None:
            held.append("memory")
        if self.compile_limit is not None:
            held.append("compiles")
        lost = "" if mode.startswith("compiled") else " Steps are slower."
        kept = f" Budgets that still hold: {', '.join(held)}." if held else ""
        self._tell_once(
            "failure",
            f"the training step could not be compiled as it is: {described(failure)}. "
            f"It runs {mode}.{kept}{lost} To have it compiled, {hint(failure)}.",
        )

    def _tell_of_values(self, failure: Exception, values: dict[str, Any]) -> None:
        self._tell_once(
            "failure",
            f"the loss needs {named(f'{k} = {v!r:.40}' for k, v in values.items())} as "
            f"it is in Python, not as an array: {described(failure)}. The step was "
            "compiled for that value, and every other one will take another program "
            f"to compile. If there are many, make it an array, and {hint(failure)}.",
        )

    def _tell_once(self, about: str, text: str) -> None:
        if about not in self._told:
            self._told.add(about)
            tell(text)


def _spread(compiled: _Run, layout: Layout) -> _Run:
    """A program whose batch is put on its devices first."""

    def run(state: TrainState, batch: PyTree) -> tuple[TrainState, Metrics]:
        return compiled(state, layout.place_batch(batch))

    return run


def _for_values(compiled: _Run, static: Frozen[Any]) -> _Run:
    """A program that was compiled for certain Python values in the batch."""

    def run(state: TrainState, batch: PyTree) -> tuple[TrainState, Metrics]:
        apart = split(batch)
        if apart.static != static:
            raise ValueError("the batch's Python values are others")  # prepare mends it
        return compiled(state, apart.arrays)

    return run
