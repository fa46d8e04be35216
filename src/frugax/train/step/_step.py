"""`TrainStep`: one compiled training step that keeps budgets of memory and compiles.

Planning and compiling happen before the first step of each batch shape. A new shape is
a new program; `compile_budget` limits their number, and the refusal names the leaf that
changed before anything is compiled.
"""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator
from typing import Literal

import jax

from frugax import measure, remat
from frugax.budget import MemoryBudget, Receipt, Spend, SpendName
from frugax.errors import BudgetExceededError, InfeasibleBudgetError
from frugax.options import join_first
from frugax.targets import Target
from frugax.trees import PyTree

from ..compiles import Signature, find_nearest_changes
from ..processes import Layout, pause_watchdogs
from ._build import Builder, Metrics, StepDescription, StepOptions
from ._check_parts import check_parts
from ._compiler import StepVariant, compile_step
from ._gradients import Precision
from ._model_parts import ModelParts
from ._state import (
    TrainState,
    check_belongs,
    check_call,
    check_has_rows,
    check_not_donated,
    make_first_state,
    split_for_init,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepInfo:
    """The current form of the step, and the decisions that led to it.

    Attributes:
        precision: precision of the loss.
        accum: micro-batches in a step.
        compiles: programs compiled so far.
        compile_seconds: wall seconds spent planning and compiling so far.
        causes: the change that caused each compile after the first, in order.
    """

    precision: Precision
    accum: int
    compiles: int
    compile_seconds: float
    causes: tuple[str, ...]


class TrainStep:
    """`step(state, batch) -> (state, metrics)`, compiled; see `make_train_step`.

    Attributes:
        compiles: programs that were compiled, one for each signature. Those that
            planning compiles to measure are not included; `CompileLedger` counts them
            too.
        compile_seconds: wall seconds spent planning and compiling so far.
    """

    def __init__(self, options: StepOptions) -> None:
        self._options = options
        self._compile_limit = options.compile_budget
        self._prepare_lock = threading.RLock()
        self._variants: dict[Signature, StepVariant] = {}
        self._current: StepVariant | None = None
        self._causes: list[str] = []
        self._has_unchecked_parts = options.accum > 1
        self.compiles = 0
        self.compile_seconds = 0.0

    def __call__(self, state: TrainState, batch: PyTree) -> tuple[TrainState, Metrics]:
        """Take one step.

        Args:
            state: the current state. Its memory is donated (unless `donate=False`):
                continue with the returned state.
            batch: the second argument of `loss`.

        Returns:
            The next state, and a dict of arrays on the device: `"loss"` before the step
            and the metrics of `loss`. The call does not wait for them.

        Raises:
            BudgetExceededError: these shapes need a compile beyond the budget.
            TypeError: see `prepare`.
            RuntimeError: the device failed, for example because its memory is full.
            ValueError: the state was donated before, the batch has no rows, or an array
                is on other devices than the step was compiled for.
        """
        if self._has_unchecked_parts:
            self._check_parts(state, batch)
        if self._current is not None:
            # The compiled program checks its arguments itself, in C++. Reading the
            # signature at each call would cost more than a small step.
            try:
                return self._current.run(state, batch)
            except (RuntimeError, TypeError, ValueError) as e:
                # A failure of the device may destroy the state. JAX 0.12 raises other
                # RuntimeErrors for a donated array.
                if isinstance(e, jax.errors.JaxRuntimeError):
                    raise
                check_call(state, batch)
                check_not_donated(state)
                if self._current.signature == self._signature(state, batch):
                    raise
        self.prepare(state, batch)
        assert self._current is not None  # prepare has set it
        return self._current.run(state, batch)

    def _check_parts(self, state: TrainState, batch: PyTree) -> None:
        """Check once, on the first batch, that it can be divided."""
        self.prepare(state, batch)
        check_not_donated(state)
        self._has_unchecked_parts = False
        started = time.perf_counter()
        check_parts(self._options, self.program, state, batch)
        self.compile_seconds += time.perf_counter() - started

    def init(self, model: PyTree, *, carried: PyTree = None) -> TrainState:
        """Return the state before the first step; see `init_state`."""
        parts = split_for_init(model, carried)
        layout = self._options.layout
        if layout is None:
            return self._make_first(parts)
        # Created with its sharding: no device holds the whole state even for a moment.
        shardings = layout.state_sharding(jax.eval_shape(self._make_first, parts))
        return jax.jit(self._make_first, out_shardings=shardings)(parts)

    def init_shapes(self, model: PyTree, *, carried: PyTree = None) -> TrainState:
        """Return the result of `init` as `jax.ShapeDtypeStruct`s, without computing it.

        The model's arrays may be shapes only.
        """
        return jax.eval_shape(self._make_first, split_for_init(model, carried))

    def _make_first(self, parts: ModelParts) -> TrainState:
        options = self._options
        return make_first_state(parts, options.optimizer, precision=options.precision)

    def prepare(self, state: TrainState, batch: PyTree) -> None:
        """Plan and compile for these shapes, without taking a step.

        Args:
            state: any state of the right shapes; it is not changed.
            batch: any batch of the right shapes.

        Raises:
            BudgetExceededError: this compile exceeds `compile_budget`, or the compiled
                step needs more memory than its plan states.
            InfeasibleBudgetError: no plan fits the memory budget. If other shapes were
                planned before, the message names the change.
            TypeError: `state` is not a TrainState, or of another optimiser or
                precision; a leaf of `batch` is not a valid JAX type; the call is inside
                of `jit`; the loss does not return a scalar with an optional dict of
                scalars; some of `params` are not floating-point numbers; the step would
                change the type of its own state; or the loss cannot be traced.
            ValueError: the batch has no rows, or cannot be divided as requested.
        """
        with self._prepare_lock:  # or two threads compile the same program twice
            self._prepare(state, batch)

    def _prepare(self, state: TrainState, batch: PyTree) -> None:
        check_call(state, batch)
        signature = self._signature(state, batch)
        # A shape that was seen before only switches the current variant.
        if signature not in self._variants:
            # Planning compiles candidates as well; all of it is the price of this
            # signature.
            started = time.perf_counter()
            check_has_rows(batch)
            self._check_belongs(state)
            variant = self._make_variant(signature, state, batch)
            if self._variants:
                self._causes.append(self._describe_changes(signature))
            self._variants[signature] = variant
            self.compile_seconds += time.perf_counter() - started
        self._current = self._variants[signature]

    def _make_variant(
        self, signature: Signature, state: TrainState, batch: PyTree
    ) -> StepVariant:
        self._check_compile_budget(signature)
        try:
            with pause_watchdogs():
                return compile_step(
                    self._options,
                    signature,
                    state,
                    batch,
                    on_compile=self._count_compile,
                )
        except InfeasibleBudgetError as e:
            if not self._variants:
                raise
            changes = self._describe_changes(signature)
            raise e.restate(f"with {changes}, {e.what}") from e

    def _count_compile(self) -> None:
        self.compiles += 1

    def _signature(self, state: TrainState, batch: PyTree) -> Signature:
        """Return the signature that a program is compiled for."""
        # With a layout, arrays are moved to their place before the program runs.
        placement = self._options.layout is None
        return Signature.read({"state": state, "batch": batch}, placement=placement)

    def _check_belongs(self, state: TrainState) -> None:
        options = self._options
        check_belongs(state, precision=options.precision, optimizer=options.optimizer)

    def check_loss(
        self, state: TrainState, batch: PyTree
    ) -> dict[str, jax.ShapeDtypeStruct]:
        """Trace the loss alone, and return the shapes of its metrics by name.

        Raises:
            TypeError: the loss does not return a scalar with an optional dict of
                scalars, or changes the type of a carried array.
            ValueError: the batch cannot be divided as requested.
        """
        return Builder(self._options).check_loss(state, batch)

    def lower(self, state: TrainState, batch: PyTree) -> jax.stages.Lowered:
        """Plan the step for these shapes, and lower it as `jax.jit(...).lower` does."""
        return self.trace(state, batch).lower()

    def trace(self, state: TrainState, batch: PyTree) -> jax.stages.Traced:
        """Plan the step for these shapes, and trace it as `jax.jit(...).trace` does."""
        check_call(state, batch)
        known = self._variants.get(self._signature(state, batch))
        if known is None:
            self._check_belongs(state)
            jitted, _ = Builder(self._options).jit(state, batch)
        else:
            jitted = known.jitted
        return jitted.trace(state, batch)

    def with_options(
        self,
        *,
        layout: Layout | None,
        accum: int,
        memory: MemoryBudget | None = None,
    ) -> "TrainStep":
        """Return the same step with another layout and number of micro-batches.

        Args:
            layout: as for `make_train_step`.
            accum: as for `make_train_step`.
            memory: another memory budget; by default the same.
        """
        memory_kept = memory or self._options.memory
        return TrainStep(
            dataclasses.replace(
                self._options, layout=layout, accum=accum, memory=memory_kept
            )
        )

    def describe(self, state: TrainState, batch: PyTree) -> StepDescription:
        """Return the gradient inside of the step and the program around it.

        Nothing is planned or compiled; arguments may be shapes only.

        Raises:
            TypeError: see `prepare`.
            ValueError: the batch cannot be divided as requested.
        """
        check_call(state, batch)
        self._check_belongs(state)
        return Builder(self._options).describe(state, batch)

    @property
    def accum(self) -> int:
        """Number of micro-batches in a step."""
        return self._options.accum

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        """The donated arguments of a call, as `jax.jit` names them."""
        return self._options.donate_argnums

    @property
    def info(self) -> StepInfo:
        """How the step runs now.

        Raises:
            RuntimeError: nothing was compiled yet.
        """
        self._get_current()
        return StepInfo(
            precision=self._options.precision,
            accum=self._options.accum,
            compiles=self.compiles,
            compile_seconds=self.compile_seconds,
            causes=tuple(self._causes),
        )

    @property
    def layout(self) -> Layout | None:
        """The placement of state and batch on devices; None for one device."""
        return self._options.layout

    @property
    def plan(self) -> remat.RematPlan | None:
        """How the backward pass fits the memory budget; None without a budget.

        Its bytes are those of one device.
        """
        return None if self._current is None else self._current.plan

    @property
    def unplanned_bytes(self) -> int | None:
        """Bytes of one device that the same step would need without a plan.

        None without a plan.
        """
        return None if self.plan is None else self.plan.unplanned_bytes

    @property
    def program(self) -> measure.ProgramCosts:
        """Bytes and flops of the compiled step that runs now.

        Raises:
            RuntimeError: nothing was compiled yet.
        """
        return self._get_current().program

    def predict_time(self) -> measure.StepTime:
        """Predict how long a step takes on its devices, as `measure.step_time` does.

        Raises:
            RuntimeError: nothing was compiled yet.
        """
        compiled = self._get_current().compiled
        sharding = jax.tree.leaves(compiled.input_shardings)[0]
        devices = sorted(sharding.device_set, key=lambda device: device.id)
        return measure.step_time(compiled, Target.of_devices(devices))

    def report(self) -> Receipt:
        """Return memory and compiles, predicted beside measured, one row per budget.

        Memory is that of the largest program so far; it is left out before a compile.
        """
        spends: list[Spend] = []
        memory = self._options.memory
        if memory is not None:
            largest = self._find_largest(memory.kind)
            if largest is not None and largest.plan is not None:
                plan, is_spread = largest.plan, self.layout is not None
                spends.append(
                    Spend(
                        name=SpendName.step_memory(
                            plan.budget.kind, each_device=is_spread
                        ),
                        unit="bytes",
                        limit=plan.budget.limit_bytes,
                        predicted=plan.predicted,
                        measured=largest.program.bytes_of(plan.budget.kind),
                        source="memory_analysis() of the compiled step",
                    )
                )
        if self._compile_limit is not None:
            spends.append(
                Spend(
                    name=SpendName.COMPILES,
                    unit="compiles",
                    limit=self._compile_limit,
                    predicted=1,
                    measured=self.compiles,
                    source="programs compiled by this step",
                )
            )
        return Receipt(tuple(spends))

    def _find_largest(self, kind: Literal["temp", "total"]) -> StepVariant | None:
        """Return the variant whose program needs the most memory."""
        size = lambda variant: variant.program.bytes_of(kind)
        return max(self._variants.values(), key=size, default=None)

    @contextlib.contextmanager
    def limit_compiles(self, limit: int | None) -> Iterator[None]:
        """Allow at most `limit` compiles in total within a block, if that is fewer."""
        before = self._compile_limit
        limits = [n for n in (before, limit) if n is not None]
        self._compile_limit = min(limits, default=None)
        try:
            yield
        finally:
            self._compile_limit = before

    def _get_current(self) -> StepVariant:
        if self._current is None:
            raise RuntimeError(
                "this step has no program yet: call step.prepare(state, batch) first."
            )
        return self._current

    def _check_compile_budget(self, signature: Signature) -> None:
        limit = self._compile_limit
        if limit is None or self.compiles < limit:
            return
        raise BudgetExceededError(
            f"the compile budget of {limit} is spent and "
            f"{self._describe_changes(signature)} needs another program. Give every "
            "batch the same shapes (pad or drop the last one), or raise the budget."
        )

    def _describe_changes(self, signature: Signature) -> str:
        """Describe the differences from the nearest program."""
        changes = find_nearest_changes(self._variants, signature)
        return join_first(changes, separator="; ")
