"""One compiled training step: loss, gradient, optimiser, in a budget of memory.

Planning and compiling happen before the first step of each batch shape. A new shape
is a new program; `compile_budget` says how many there may be, and the refusal names
the leaf that changed before anything is compiled.
"""

import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Iterator
from typing import Literal, TypeAlias

import jax

from frugax import measure, remat
from frugax.budget import MemoryBudget, Receipt, Spend, format_seconds
from frugax.errors import BudgetExceededError, InfeasibleBudgetError
from frugax.trees import PyTree

from ._build import Builder, Metrics, Recipe
from ._check_call import refuse_another_state, refuse_misuse, refuse_no_rows
from ._ladder import FOR_VALUES, Mode, tell
from ._models import Parts
from ._precision import Precision
from ._programs import Programs, Variant
from ._promote import named
from ._signature import Signature, nearest_changes
from ._state import TrainState, first_state, parts_of, refuse_given_away
from ._watchdog import compiling

OnExcess: TypeAlias = Literal["raise", "warn", "eager"]

# Programs for Python values of the batch after which it is said what they cost.
_MANY = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepInfo:
    """What runs now, and how it came to that.

    Attributes:
        mode: how the step runs.
        precision: what the loss is computed in.
        accum: micro-batches in a step.
        compiles: programs that were compiled so far.
        compile_seconds: wall seconds spent planning and compiling so far.
        causes: for each compile after the first what had changed, in order.
    """

    mode: Mode
    precision: Precision
    accum: int
    compiles: int
    compile_seconds: float
    causes: tuple[str, ...]


class TrainStep:
    """`step(state, batch) -> (state, metrics)`, compiled; see `make_train_step`.

    Attributes:
        compile_seconds: wall seconds spent planning and compiling so far.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        memory: MemoryBudget | None,
        compile_budget: int | None,
        on_excess: OnExcess,
        fallback: bool,
    ) -> None:
        self._programs = Programs(
            recipe, memory=memory, compile_limit=compile_budget, fallback=fallback
        )
        self._on_excess: OnExcess = on_excess
        self._preparing = threading.RLock()
        self._variants: dict[Signature, Variant] = {}
        self._current: Variant | None = None
        self._causes: list[str] = []
        self.compile_seconds = 0.0

    def __call__(self, state: TrainState, batch: PyTree) -> tuple[TrainState, Metrics]:
        """Take one step.

        Args:
            state: where training is. Its memory is given away (unless `donate=False`):
                go on with the state that comes back.
            batch: what `loss` takes as its second argument.

        Returns:
            The next state, and a dict of arrays on the device: `"loss"` before the
            step and what `loss` reports beside it. Nothing is waited for.

        Raises:
            BudgetExceededError: these shapes need a compile that is not in the budget.
            TypeError: see `prepare`.
            RuntimeError: the device failed, for example for want of memory.
            ValueError: the state was given away before, the batch has no rows, or an
                array lies on other devices than the step was compiled for.
        """
        if self._current is not None:
            # The compiled program checks its arguments itself, in C++; reading off
            # the signature each time would cost more than a small step.
            try:
                return self._current.run(state, batch)
            except (RuntimeError, TypeError, ValueError) as e:
                # The device's own failures may take the state with them. Other
                # RuntimeErrors are JAX 0.12's word for an array that was given away.
                if isinstance(e, jax.errors.JaxRuntimeError):
                    raise
                refuse_misuse(state, batch)
                refuse_given_away(state)
                self._programs.look_for_text(batch)
                if self._current.signature == self._programs.signature(state, batch):
                    raise
        self.prepare(state, batch)
        assert self._current is not None  # prepare has set it
        return self._current.run(state, batch)

    def init(self, model: PyTree, *, carried: PyTree = None) -> TrainState:
        """The state before the first step, from weights or a module.

        Args:
            model: see `init_state`.
            carried: see `init_state`.
        """
        parts = parts_of(model, carried)
        layout = self._programs.recipe.layout
        if layout is None:
            return self._first(parts)
        # Born where it belongs: no device holds all of it for a moment.
        where = layout.of_state(jax.eval_shape(self._first, parts))
        return jax.jit(self._first, out_shardings=where)(parts)

    def init_shapes(self, model: PyTree, *, carried: PyTree = None) -> TrainState:
        """What `init` gives as `jax.ShapeDtypeStruct`s; nothing is computed.

        Args:
            model: see `init_state`; its arrays may be shapes only.
            carried: see `init_state`.
        """
        return jax.eval_shape(self._first, parts_of(model, carried))

    def _first(self, parts: Parts) -> TrainState:
        recipe = self._programs.recipe
        return first_state(parts, recipe.optimizer, precision=recipe.precision)

    def prepare(self, state: TrainState, batch: PyTree) -> None:
        """Plan and compile for these shapes, without taking a step.

        Args:
            state: any state of the right shapes; it is not changed.
            batch: any batch of the right shapes.

        Raises:
            BudgetExceededError: one compile more than `compile_budget`, or the
                compiled step needs more memory than its plan promised.
            InfeasibleBudgetError: no plan fits the memory budget; with these shapes,
                if others were planned before, and then it names the change.
            TypeError: `state` is none, or of another optimiser or precision; a part
                of `batch` is nothing that JAX takes; the call is inside of `jit`; the
                loss is not a scalar with an optional dict of scalars; some of `params`
                are no floating-point numbers; the step would change the type of its
                own state; or the loss cannot be traced and no way round is left.
            ValueError: the batch has no rows, or cannot be cut or split as was asked.
        """
        with self._preparing:  # or two threads compile the same, beyond the budget
            self._prepare(state, batch)

    def _prepare(self, state: TrainState, batch: PyTree) -> None:
        refuse_misuse(state, batch)
        self._programs.look_for_text(batch)
        signature = self._programs.signature(state, batch)
        if signature not in self._variants:
            started = time.perf_counter()
            refuse_no_rows(batch)
            refuse_another_state(state, self._programs.recipe)
            excess = self._one_too_many(signature)
            try:
                with compiling():
                    if excess is not None:
                        variant = self._programs.eager(signature, state, batch, excess)
                    else:
                        variant = self._programs.make(signature, state, batch)
            except InfeasibleBudgetError as e:
                if not self._variants:
                    raise
                raise InfeasibleBudgetError(
                    f"with {self._changes_to(signature)}, {e.what}",
                    needed=e.needed,
                    limit=e.limit,
                    unit=e.unit,
                    hint=e.hint,
                ) from e
            if self._variants:
                self._causes.append(self._changes_to(variant.signature))
            self._variants[variant.signature] = variant
            signature = variant.signature
            self._tell_of_many_values(variant)
            self.compile_seconds += time.perf_counter() - started
        self._current = self._variants[signature]

    def lower(self, state: TrainState, batch: PyTree) -> jax.stages.Lowered:
        """The step for these shapes as `jax.jit(...).lower` gives it, planned.

        Raises:
            TypeError: the step runs eagerly for these shapes, so there is no program.
        """
        refuse_misuse(state, batch)
        known = self._variants.get(self._programs.signature(state, batch))
        if known is None:
            refuse_another_state(state, self._programs.recipe)
        elif known.jitted is None:
            raise TypeError(f"the step runs {known.mode}: there is nothing to lower.")
        builder = Builder(self._programs.recipe, self._programs.memory)
        jitted = known.jitted if known else builder.jitted(state, batch)[0]
        assert jitted is not None
        return jitted.lower(state, self._programs.traced(batch))

    @property
    def compiles(self) -> int:
        """Programs of this step that were compiled, one for each signature.

        What planning compiled to measure is not among them; `CompileLedger` counts
        that too.
        """
        return self._programs.compiles

    @property
    def info(self) -> StepInfo:
        """What runs now.

        Raises:
            RuntimeError: nothing was compiled yet.
        """
        current = self._started()
        return StepInfo(
            mode=current.mode,
            precision=self._programs.recipe.precision,
            accum=self._programs.recipe.accum,
            compiles=self.compiles,
            compile_seconds=self.compile_seconds,
            causes=tuple(self._causes),
        )

    @property
    def _spread(self) -> int:
        """Over how many devices a plan for all of them is spread."""
        layout = self._programs.recipe.layout
        return 1 if layout is None else layout.data_size

    @property
    def plan(self) -> remat.RematPlan | None:
        """How the backward pass fits the memory budget; None if there is none.

        With a layout its bytes are those of all devices together.
        """
        return None if self._current is None else self._current.plan

    @property
    def unplanned_bytes(self) -> int | None:
        """What the same step would need without a plan; None if there is no plan.

        With a layout this is what the plan expects on each device.
        """
        if self.plan is None:
            return None
        return math.ceil(self.plan.unplanned_bytes / self._spread)

    @property
    def program(self) -> measure.ProgramCosts:
        """Bytes and flops of the compiled step that runs now.

        Raises:
            RuntimeError: nothing was compiled yet, or the step runs eagerly.
        """
        program = self._started().program
        if program is None:
            raise RuntimeError("this step runs eagerly, so it has no program.")
        return program

    def report(self) -> Receipt:
        """Memory and compiles, predicted beside measured, one entry for each budget.

        Memory is that of the program that runs now; before there is one, it is left
        out.
        """
        spends: list[Spend] = []
        if self._programs.memory is not None and self.plan is not None:
            alone = self._programs.recipe.layout is None
            where = "" if alone else " on each device"
            spends.append(
                Spend(
                    name=f"{self._programs.memory.kind} memory of one step{where}",
                    unit="bytes",
                    limit=self._programs.memory.limit_bytes,
                    predicted=self.plan.predicted / self._spread,
                    measured=self.program.bytes_of(self._programs.memory.kind),
                    source="memory_analysis() of the compiled step",
                )
            )
        if self._programs.compile_limit is not None:
            spends.append(
                Spend(
                    name="compiles of the step",
                    unit="compiles",
                    limit=self._programs.compile_limit,
                    predicted=1,
                    measured=self.compiles,
                    source="programs compiled by this step",
                )
            )
        return Receipt(tuple(spends))

    @contextlib.contextmanager
    def limit_compiles(self, limit: int | None) -> Iterator[None]:
        """For the length of a block, allow `limit` compiles in all, if that is less."""
        before = self._programs.compile_limit
        limits = [n for n in (before, limit) if n is not None]
        self._programs.compile_limit = min(limits, default=None)
        try:
            yield
        finally:
            self._programs.compile_limit = before

    def _started(self) -> Variant:
        if self._current is None:
            raise RuntimeError(
                "this step has no program yet: call step.prepare(state, batch) first."
            )
        return self._current

    def _one_too_many(self, signature: Signature) -> BudgetExceededError | None:
        """What to do about a program beyond the budget; the error where it is eager."""
        limit = self._programs.compile_limit
        if limit is None or self.compiles < limit:
            return None
        remedy = "Give every batch the same shapes (pad or drop the last one)"
        if values := self._changed_values(signature):
            remedy = f"Make {named(values)} an array, or keep to few values"
        error = BudgetExceededError(
            f"the compile budget of {limit} is spent and "
            f"{self._changes_to(signature)} needs another program. {remedy}, or raise "
            "the budget."
        )
        if self._on_excess == "raise":
            raise error
        if self._on_excess == "warn":
            tell(f'{error.args[0]} It is compiled all the same: on_excess="warn".')
            return None
        return error

    def _tell_of_many_values(self, variant: Variant) -> None:
        """A counter in the batch would be compiled for at every step."""
        for_values = [v for v in self._variants.values() if v.mode == FOR_VALUES]
        if variant.mode != FOR_VALUES or len(for_values) != _MANY:
            return
        *others, last = (v.signature for v in for_values)
        values = [c.place for c in nearest_changes(others, last)]
        tell(
            f"{_MANY} programs were compiled for as many values of {named(values)}, in "
            f"{format_seconds(self.compile_seconds)}, and each other value takes one "
            "more: make it an array, leave it out of the batch, or limit the "
            "programs with compile_budget=."
        )

    def _changed_values(self, signature: Signature) -> list[str]:
        """The Python values of the batch that are others than in any program."""
        changes = nearest_changes(self._variants, signature)
        return [c.place for c in changes if c.kind == "static value"]

    def _changes_to(self, signature: Signature) -> str:
        """What differs from the nearest program that there is."""
        nearest = nearest_changes(self._variants, signature)
        more = f" (and {len(nearest) - 3} more)" if len(nearest) > 3 else ""
        return "; ".join(map(str, nearest[:3])) + more
