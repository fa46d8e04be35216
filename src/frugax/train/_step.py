"""One compiled training step: loss, gradient, optimiser, in a budget of memory.

Planning and compiling happen before the first step of each batch shape. A new shape
is a new program; `compile_budget` says how many there may be, and the refusal names
the leaf that changed before anything is compiled.
"""

import contextlib
import dataclasses
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

import jax
import optax

from frugax import measure, remat
from frugax.budget import MemoryBudget, Receipt, Spend, TimeBudget, check_budget
from frugax.errors import BudgetExceededError, InfeasibleBudgetError
from frugax.typing import PyTree

from ._build import Builder, Metrics, Recipe, check_loss, refuse_changing_state
from ._ladder import (
    FallbackWarning,
    Mode,
    hint,
    is_compiler_failure,
    is_trace_failure,
    tell,
    where,
)
from ._layout import Layout
from ._models import Parts, take_apart
from ._precision import COMPUTE, Precision
from ._promote import Split, has_python_leaves, split
from ._signature import Signature, nearest_changes
from ._state import TrainState, check_optimizer, first_state, refuse_given_away
from ._static import Frozen
from ._watchdog import compiling

_Run: TypeAlias = Callable[[TrainState, PyTree], tuple[TrainState, Metrics]]
OnExcess: TypeAlias = Literal["raise", "warn", "eager"]
Budgets: TypeAlias = (
    MemoryBudget | TimeBudget | Sequence["MemoryBudget | TimeBudget"] | None
)


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


@dataclasses.dataclass(frozen=True)
class _Variant:
    """What runs for one signature."""

    signature: Signature
    mode: Mode
    run: _Run
    jitted: jax.stages.Wrapped | None = None
    plan: remat.RematPlan | None = None
    program: measure.Program | None = None


class TrainStep:
    """`step(state, batch) -> (state, metrics)`, compiled; see `make_train_step`.

    Attributes:
        compiles: programs of this step that were compiled, one for each signature.
            What planning compiled to measure is not among them; `CompileLedger`
            counts that too.
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
        self._recipe = recipe
        self._memory = memory
        self._compile_limit = compile_budget
        self._on_excess: OnExcess = on_excess
        self._fallback = fallback
        self._promoting = False  # once Python values were found, they are looked for
        self._told = False
        self._variants: dict[Signature, _Variant] = {}
        self._current: _Variant | None = None
        self._causes: list[str] = []
        self.compiles = 0
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
            ValueError: the state was given away before, or an array lies on other
                devices than the step was compiled for.
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
                refuse_given_away(state)
                if self._current.signature == self._signature(state, batch):
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
        parts = take_apart(model, carried)
        layout = self._recipe.layout
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
        return jax.eval_shape(self._first, take_apart(model, carried))

    def _first(self, parts: Parts) -> TrainState:
        recipe = self._recipe
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
            TypeError: the loss is not a scalar with an optional dict of scalars, some
                of `params` are no floating-point numbers, the step would change the
                type of its own state, or the loss cannot be traced and no way round
                is left.
        """
        if self._fallback and not self._promoting and has_python_leaves(batch):
            self._promoting = any(
                isinstance(leaf, str) for leaf in jax.tree.leaves(batch)
            )
        signature = self._signature(state, batch)
        if signature not in self._variants:
            excess = self._one_too_many(signature)
            started = time.perf_counter()
            try:
                with compiling():
                    if excess is not None:
                        variant = self._eager(signature, state, batch, excess)
                    else:
                        variant = self._down_the_ladder(signature, state, batch)
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
            self.compile_seconds += time.perf_counter() - started
        self._current = self._variants[signature]

    def lower(self, state: TrainState, batch: PyTree) -> jax.stages.Lowered:
        """The step for these shapes as `jax.jit(...).lower` gives it, planned.

        Raises:
            TypeError: the step runs eagerly for these shapes, so there is no program.
        """
        known = self._variants.get(self._signature(state, batch))
        if known is not None and known.jitted is None:
            raise TypeError(f"the step runs {known.mode}: there is nothing to lower.")
        builder = Builder(self._recipe, self._memory)
        jitted = known.jitted if known else builder.jitted(state, batch)[0]
        assert jitted is not None
        return jitted.lower(state, self._traced(batch))

    @property
    def info(self) -> StepInfo:
        """What runs now.

        Raises:
            RuntimeError: nothing was compiled yet.
        """
        current = self._started()
        return StepInfo(
            mode=current.mode,
            precision=self._recipe.precision,
            accum=self._recipe.accum,
            compiles=self.compiles,
            compile_seconds=self.compile_seconds,
            causes=tuple(self._causes),
        )

    @property
    def plan(self) -> remat.RematPlan | None:
        """How the backward pass fits the memory budget; None if there is none."""
        return None if self._current is None else self._current.plan

    @property
    def unplanned_bytes(self) -> int | None:
        """What the same step would need without a plan; None if there is no plan."""
        return None if self.plan is None else self.plan.unplanned_bytes

    @property
    def program(self) -> measure.Program:
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
        if self._memory is not None and self.plan is not None:
            layout = self._recipe.layout
            spread = 1 if layout is None else layout.data_size
            where = "" if layout is None else " on each device"
            spends.append(
                Spend(
                    name=f"{self._memory.kind} memory of one step{where}",
                    unit="bytes",
                    limit=self._memory.limit_bytes,
                    predicted=self.plan.predicted / spread,
                    measured=self.program.bytes_of(self._memory.kind),
                    source="memory_analysis() of the compiled step",
                )
            )
        if self._compile_limit is not None:
            spends.append(
                Spend(
                    name="compiles of the step",
                    unit="compiles",
                    limit=self._compile_limit,
                    predicted=1,
                    measured=self.compiles,
                    source="programs compiled by this step",
                )
            )
        return Receipt(tuple(spends))

    @contextlib.contextmanager
    def limit_compiles(self, limit: int | None) -> Iterator[None]:
        """For the length of a block, allow `limit` compiles in all, if that is less."""
        before = self._compile_limit
        limits = [n for n in (before, limit) if n is not None]
        self._compile_limit = min(limits, default=None)
        try:
            yield
        finally:
            self._compile_limit = before

    # --- one signature ----------------------------------------------------------

    def _signature(self, state: TrainState, batch: PyTree) -> Signature:
        if self._recipe.layout is not None:  # which says where all of it lies
            return Signature.of_types(state=state, batch=batch)
        if not self._promoting:
            return Signature.of(state=state, batch=batch)
        apart = split(batch)
        return Signature.of(static=apart.static, state=state, batch=apart.arrays)

    def _traced(self, batch: PyTree) -> PyTree:
        return split(batch).arrays if self._promoting else batch

    def _started(self) -> _Variant:
        if self._current is None:
            raise RuntimeError(
                "this step has no program yet: call step.prepare(state, batch) first."
            )
        return self._current

    def _compile(
        self, state: TrainState, batch: PyTree, mode: Mode, options: dict[str, str]
    ) -> _Variant:
        signature = self._signature(state, batch)
        apart = split(batch) if self._promoting else None
        builder = Builder(self._recipe, self._memory, apart and apart.static)
        traced_batch = batch if apart is None else apart.arrays
        if self._recipe.layout is not None:  # wherever they lie now
            state, traced_batch = jax.eval_shape(lambda *x: x, state, traced_batch)
        jitted, plan = builder.jitted(state, traced_batch, options)
        traced = jitted.trace(state, traced_batch)
        refuse_changing_state(state, traced.out_info[0])
        self.compiles += 1
        compiled = traced.lower().compile()
        program = measure.program(compiled)
        if self._memory is not None:
            spent = program.bytes_of(self._memory.kind)
            if spent > self._memory.usable_bytes:
                raise BudgetExceededError(
                    f"the compiled step needs {spent:,} bytes, but its plan promised "
                    f"{self._memory.usable_bytes:,}; it was not run. Plan with "
                    "headroom_frac > 0, and report this."
                )
        run: _Run = compiled
        if apart is not None:
            run = _for_values(run, apart.static)
        elif self._recipe.layout is not None:
            run = _spread(run, self._recipe.layout)
        return _Variant(signature, mode, run, jitted, plan, program)

    # --- ways round -------------------------------------------------------------

    def _down_the_ladder(
        self, signature: Signature, state: TrainState, batch: PyTree
    ) -> _Variant:
        """Compile, or find the next best way to run that keeps the budgets."""
        mode: Mode = "compiled"
        if self._promoting:
            mode = "compiled for the batch's Python values"
        before = self.compiles
        try:
            return self._compile(state, batch, mode, {})
        except Exception as e:
            failure = e
        if not self._fallback:
            raise failure
        self.compiles = before
        if is_compiler_failure(failure):
            options = self._recipe.safer_options
            made = self._compile(state, batch, "compiled with safer options", options)
            self._tell(failure, made.mode)
            return made
        if not is_trace_failure(failure):
            raise failure
        if not self._promoting and has_python_leaves(batch):
            self._promoting = True
            mode = "compiled for the batch's Python values"
            try:
                made = self._compile(state, batch, mode, {})
            except Exception as e:
                if not is_trace_failure(e):
                    raise
                self._promoting, self.compiles = False, before
            else:
                self._tell(failure, mode)
                return made
        return self._eager(signature, state, batch, failure)

    def _eager(
        self,
        signature: Signature,
        state: TrainState,
        batch: PyTree,
        failure: Exception,
    ) -> _Variant:
        needs = None
        if self._memory is not None:
            needs = f"keep the memory budget of {self._memory}"
        elif self._recipe.layout is not None:
            needs = f"run {self._recipe.layout}"
        if needs is not None:
            raise TypeError(
                f"the step cannot be compiled ({type(failure).__name__} at "
                f"{where(failure)}), and only a compiled step can {needs}, so it was "
                f"not run. {hint(failure).capitalize()}."
            ) from failure
        builder = Builder(self._recipe, None)
        modes: tuple[tuple[Mode, Any], ...] = (
            ("eager", contextlib.nullcontext),
            ("eager without any jit", jax.disable_jit),
        )
        for mode, context in modes:
            run = builder.eager(context)
            try:
                run(state, batch)
            except Exception as e:
                if not is_trace_failure(e):
                    raise
                continue
            self._tell(failure, mode)
            return _Variant(signature, mode, self._for_shapes(run, signature))
        raise TypeError(
            f"the step can be run neither compiled nor eagerly: "
            f"{type(failure).__name__} at {where(failure)}. "
            f"{hint(failure).capitalize()}."
        ) from failure

    def _for_shapes(self, run: _Run, signature: Signature) -> _Run:
        """An eager step takes any shapes, but others may have a program."""

        def checked(state: TrainState, batch: PyTree) -> tuple[TrainState, Metrics]:
            if self._signature(state, batch) != signature:
                raise ValueError("these are other shapes")  # prepare mends it
            return run(state, batch)

        return checked

    def _tell(self, failure: Exception, mode: Mode) -> None:
        if self._told:
            return
        self._told = True
        held = []
        if self._memory is not None:
            held.append("memory")
        if self._compile_limit is not None:
            held.append("compiles")
        lost = "" if mode.startswith("compiled") else " Steps are slower."
        kept = f"Budgets that still hold: {', '.join(held)}." if held else ""
        tell(failure, mode, f"{kept}{lost}".strip() or "No budget was lost.")

    # --- how many compiles ------------------------------------------------------

    def _one_too_many(self, signature: Signature) -> BudgetExceededError | None:
        """What to do about a program beyond the budget; the error where it is eager."""
        if self._compile_limit is None or self.compiles < self._compile_limit:
            return None
        error = BudgetExceededError(
            f"the compile budget of {self._compile_limit} is spent and "
            f"{self._changes_to(signature)} needs another program. Give every batch "
            "the same shapes (pad or drop the last one), or raise the budget."
        )
        if self._on_excess == "raise":
            raise error
        if self._on_excess == "warn":
            warnings.warn(str(error), FallbackWarning, stacklevel=4)
            return None
        return error

    def _changes_to(self, signature: Signature) -> str:
        """What differs from the nearest program that there is."""
        nearest = nearest_changes(self._variants, signature)
        more = f" (and {len(nearest) - 3} more)" if len(nearest) > 3 else ""
        return "; ".join(map(str, nearest[:3])) + more


def _spread(compiled: _Run, layout: Layout) -> _Run:
    """A program whose batch is put on its devices first."""

    def run(state: TrainState, batch: PyTree) -> tuple[TrainState, Metrics]:
        return compiled(state, layout.place_batch(batch))

    return run


def _for_values(compiled: _Run, static: Frozen[Any]) -> _Run:
    """A program that was compiled for certain Python values in the batch."""

    def run(state: TrainState, batch: PyTree) -> tuple[TrainState, Metrics]:
        apart: Split = split(batch)
        if apart.static != static:
            raise ValueError("the batch's Python values are others")  # prepare mends it
        return compiled(state, apart.arrays)

    return run


def make_train_step(
    loss: Callable[..., Any],
    optimizer: optax.GradientTransformation,
    *,
    budget: Budgets = None,
    static: Any = None,
    accum: int = 1,
    clip: float | None = None,
    precision: Precision = "f32",
    compile_budget: int | None = None,
    on_excess: OnExcess = "raise",
    fallback: bool = True,
    donate: bool = True,
    layout: Layout | None = None,
) -> TrainStep:
    """Make one compiled training step that keeps within its budgets.

    With a memory budget the backward pass recomputes what does not fit. The whole
    compiled step is what is planned and measured: gradient, optimiser and donation.

    Args:
        loss: `loss(model, batch)` gives a real scalar, or that and a dict of scalars
            to report beside it. `model` is what `step.init` was given, with the
            weights of now. With `carried` arrays in the state it is called as
            `loss(model, batch, carried)` and gives scalar, dict and new ones; with
            `static`, that comes last.
        optimizer: from optax, or anything with its `init` and `update`. Those that
            want the loss are given it, as `value=`.
        budget: the most memory the compiled step may need; a `TimeBudget` with
            `compiles`; or several of them.
        static: Python values that the program is compiled for: see `Frozen`.
        accum: micro-batches that each batch is cut into along its first axis, one
            after the other in a compiled loop; gradients and metrics are their means.
        clip: scale gradients down to this global norm, and report the norm before as
            `"gradient_norm"`.
        precision: what the loss and its gradient are computed in. Weights and
            optimiser stay float32. `"f16"` scales the loss, reports `"loss_scale"`,
            and skips steps whose gradients are not finite; its state is made by
            `step.init`.
        compile_budget: how many programs may be compiled, one for each structure,
            shape and dtype of state and batch; >= 1, or None for any number.
        on_excess: what to do about a program beyond that: raise, warn and compile it,
            or run these shapes eagerly.
        fallback: where JAX cannot trace or compile the step, run it in the next best
            way that keeps the budgets, and warn once.
        donate: whether the state's memory may be used again for the next state.
        layout: where state and batch lie on a mesh of devices, in one process or in
            several; the state is made by `step.init`. See `frugax.train.distributed`.

    Raises:
        TypeError: `optimizer` or `budget` is none, but a number or text.
        ValueError: a number is out of its range, or a name unknown.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from frugax import train
        >>> loss = lambda w, x: ((w - x) ** 2).sum()
        >>> optimizer = optax.sgd(0.25)
        >>> step = train.make_train_step(loss, optimizer, compile_budget=1)
        >>> state = step.init(jnp.zeros(2))
        >>> state, metrics = step(state, jnp.ones(2))
        >>> print(state.params, metrics["loss"])
        [0.5 0.5] 2.0
    """
    check_optimizer(optimizer)
    check_loss(loss)
    memory, compiles = _sorted_out(budget)
    limits = [n for n in (compile_budget, compiles) if n is not None]
    if compile_budget is not None and compile_budget < 1:
        raise ValueError(f"compile_budget must be >= 1, got {compile_budget}.")
    if accum < 1:
        raise ValueError(f"accum must be >= 1, got {accum}.")
    if clip is not None and not clip > 0:
        raise ValueError(f"clip must be > 0, got {clip}.")
    if precision not in COMPUTE:
        raise ValueError(
            f"precision must be one of {', '.join(COMPUTE)}, got {precision!r}."
        )
    if on_excess not in ("raise", "warn", "eager"):
        raise ValueError(
            f'on_excess must be "raise", "warn" or "eager", got {on_excess!r}.'
        )
    recipe = Recipe(
        loss=loss,
        optimizer=optax.with_extra_args_support(optimizer),
        static=None if static is None else Frozen(static),
        accum=accum,
        clip=clip,
        precision=precision,
        donate=donate,
        layout=layout,
    )
    return TrainStep(
        recipe,
        memory=memory,
        compile_budget=min(limits, default=None),
        on_excess=on_excess,
        fallback=fallback,
    )


def _sorted_out(budget: Budgets) -> tuple[MemoryBudget | None, int | None]:
    """The memory budget and the number of compiles among some budgets.

    Raises:
        TypeError: something is no budget, or there are two for memory.
    """
    memory: MemoryBudget | None = None
    compiles: int | None = None
    several = budget if isinstance(budget, (tuple, list)) else [budget]
    for one in several:
        if one is None:
            continue
        if isinstance(one, TimeBudget):
            compiles = one.compiles
            continue
        check_budget(one, MemoryBudget)
        assert isinstance(one, MemoryBudget)  # for the type checker: just checked
        if memory is not None:
            raise TypeError(f"two memory budgets were given: {memory} and {one}.")
        memory = one
    return memory, compiles
