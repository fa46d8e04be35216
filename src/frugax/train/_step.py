"""One compiled training step: loss, gradient, optimiser, in a budget of memory.

Planning and compiling happen before the first step of each batch shape. A new shape
is a new program; `compile_budget` says how many there may be, and the refusal names
the leaf that changed before anything is compiled.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, TypeGuard

import jax
import jax.numpy as jnp
import optax

from frugax import measure, remat
from frugax.budget import MemoryBudget, Receipt, Spend, check_budget
from frugax.errors import BudgetExceededError, InfeasibleBudgetError
from frugax.typing import PyTree

from ._signature import Signature
from ._state import TrainState, check_optimizer, refuse_given_away

Metrics: TypeAlias = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class _Variant:
    """The program for one signature."""

    signature: Signature
    jitted: jax.stages.Wrapped
    plan: remat.RematPlan | None
    compiled: jax.stages.Compiled
    program: measure.Program


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
        loss: Callable[[PyTree, PyTree], Any],
        optimizer: optax.GradientTransformation,
        *,
        budget: MemoryBudget | None,
        compile_budget: int | None,
        donate: bool,
    ) -> None:
        self._loss = loss
        self._optimizer = optax.with_extra_args_support(optimizer)
        self._budget = budget
        self._compile_limit = compile_budget
        self._donate_argnums = (0,) if donate else ()
        self._variants: dict[Signature, _Variant] = {}
        self._current: _Variant | None = None
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
                return self._current.compiled(state, batch)
            except (RuntimeError, TypeError, ValueError) as e:
                # The device's own failures may take the state with them. Other
                # RuntimeErrors are JAX 0.12's word for an array that was given away.
                if isinstance(e, jax.errors.JaxRuntimeError):
                    raise
                refuse_given_away(state)
                if self._current.signature == Signature.of(state=state, batch=batch):
                    raise
        self.prepare(state, batch)
        assert self._current is not None  # prepare has set it
        return self._current.compiled(state, batch)

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
                of `params` are no floating-point numbers, or the step would change
                the type of its own state.
        """
        signature = Signature.of(state=state, batch=batch)
        if signature not in self._variants:
            self._refuse_one_too_many(signature)
            started = time.perf_counter()
            try:
                self._variants[signature] = self._compile(signature, state, batch)
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
            self.compile_seconds += time.perf_counter() - started
        self._current = self._variants[signature]

    def lower(self, state: TrainState, batch: PyTree) -> jax.stages.Lowered:
        """The step for these shapes as `jax.jit(...).lower` gives it, planned."""
        known = self._variants.get(Signature.of(state=state, batch=batch))
        jitted = self._planned(state, batch)[0] if known is None else known.jitted
        return jitted.lower(state, batch)

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
            RuntimeError: nothing was compiled yet.
        """
        if self._current is None:
            raise RuntimeError(
                "this step has no program yet: call step.prepare(state, batch) first."
            )
        return self._current.program

    def report(self) -> Receipt:
        """Memory and compiles, predicted beside measured, one entry for each budget.

        Memory is that of the program that runs now; before there is one, it is left
        out.
        """
        spends: list[Spend] = []
        if self._budget is not None and self.plan is not None:
            spends.append(
                Spend(
                    name=f"{self._budget.kind} memory of one step",
                    unit="bytes",
                    limit=self._budget.limit_bytes,
                    predicted=self.plan.predicted,
                    measured=self.program.bytes_of(self._budget.kind),
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

    def _compile(
        self, signature: Signature, state: TrainState, batch: PyTree
    ) -> _Variant:
        jitted, plan = self._planned(state, batch)
        traced = jitted.trace(state, batch)
        _refuse_changing_state(state, traced.out_info[0])
        self.compiles += 1
        compiled = traced.lower().compile()
        program = measure.program(compiled)
        if self._budget is not None:
            spent = program.bytes_of(self._budget.kind)
            if spent > self._budget.usable_bytes:
                raise BudgetExceededError(
                    f"the compiled step needs {spent:,} bytes, but its plan promised "
                    f"{self._budget.usable_bytes:,}; it was not run. Plan with "
                    "headroom_frac > 0, and report this."
                )
        return _Variant(signature, jitted, plan, compiled, program)

    def _planned(
        self, state: TrainState, batch: PyTree
    ) -> tuple[jax.stages.Wrapped, remat.RematPlan | None]:
        """The step as a jitted function, with its backward pass planned."""
        _refuse_untrainable(state.params)
        has_aux = _has_aux(self._loss, state, batch)
        build = lambda grad_fn: self._build(grad_fn, has_aux=has_aux)
        donate = self._donate_argnums
        if self._budget is None:
            plain = build(jax.value_and_grad(self._loss, has_aux=has_aux))
            return jax.jit(plain, donate_argnums=donate), None
        plan = remat.plan(
            self._loss,
            (state.params, batch),
            self._budget,
            has_aux=has_aux,
            within=remat.Program(
                build=build, args=(state, batch), donate_argnums=donate
            ),
        )
        planned = build(remat.apply(self._loss, plan))
        return jax.jit(planned, donate_argnums=donate), plan

    def _build(
        self, grad_fn: Callable[..., Any], *, has_aux: bool
    ) -> Callable[[TrainState, PyTree], tuple[TrainState, Metrics]]:
        def train_step(state: TrainState, batch: PyTree) -> tuple[TrainState, Metrics]:
            value, grads = grad_fn(state.params, batch)
            loss, aux = value if has_aux else (value, {})
            # optax's own Adam (0.2.8) multiplies an integer by a float, which strict
            # promotion forbids; the user's loss above is held to it all the same.
            with jax.numpy_dtype_promotion("standard"):
                updates, opt_state = self._optimizer.update(
                    grads, state.opt_state, state.params, value=loss
                )
            params = optax.apply_updates(state.params, updates)
            return TrainState(state.step + 1, params, opt_state), {"loss": loss, **aux}

        return train_step

    def _refuse_one_too_many(self, signature: Signature) -> None:
        if self._compile_limit is None or self.compiles < self._compile_limit:
            return
        raise BudgetExceededError(
            f"the compile budget of {self._compile_limit} is spent and "
            f"{self._changes_to(signature)} needs another program. Give every batch "
            "the same shapes (pad or drop the last one), or raise the budget."
        )

    def _changes_to(self, signature: Signature) -> str:
        """What differs from the nearest program that there is."""
        changes = [known.changes_to(signature) for known in self._variants]
        nearest = min(changes, key=len, default=[])
        more = f" (and {len(nearest) - 3} more)" if len(nearest) > 3 else ""
        return "; ".join(nearest[:3]) + more


def make_train_step(
    loss: Callable[[PyTree, PyTree], Any],
    optimizer: optax.GradientTransformation,
    *,
    budget: MemoryBudget | None = None,
    compile_budget: int | None = None,
    donate: bool = True,
) -> TrainStep:
    """Make one compiled training step that keeps within its budgets.

    With a memory budget the backward pass recomputes what does not fit. The whole
    compiled step is what is planned and measured: gradient, optimiser and donation.

    Args:
        loss: `loss(params, batch)` gives a real scalar, or that and a dict of scalars
            to report beside it. All of `params` are floating-point arrays.
        optimizer: from optax, or anything with its `init` and `update`. Those that
            want the loss are given it, as `value=`.
        budget: the most memory the compiled step may need.
        compile_budget: how many programs may be compiled, one for each structure,
            shape and dtype of state and batch; >= 1, or None for any number.
        donate: whether the state's memory may be used again for the next state.

    Raises:
        TypeError: `optimizer` or `budget` is none, but a number or text.
        ValueError: `compile_budget` is below 1.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from frugax import train
        >>> loss = lambda w, x: ((w - x) ** 2).sum()
        >>> optimizer = optax.sgd(0.25)
        >>> step = train.make_train_step(loss, optimizer, compile_budget=1)
        >>> state = train.init_state(jnp.zeros(2), optimizer)
        >>> state, metrics = step(state, jnp.ones(2))
        >>> print(state.params, metrics["loss"])
        [0.5 0.5] 2.0
    """
    check_optimizer(optimizer)
    if budget is not None:
        check_budget(budget, MemoryBudget)
    if compile_budget is not None and compile_budget < 1:
        raise ValueError(f"compile_budget must be >= 1, got {compile_budget}.")
    return TrainStep(
        loss, optimizer, budget=budget, compile_budget=compile_budget, donate=donate
    )


def _has_aux(
    loss: Callable[[PyTree, PyTree], Any], state: TrainState, batch: PyTree
) -> bool:
    """Whether the loss reports a dict of scalars beside itself.

    Raises:
        TypeError: it gives something else.
    """
    out = jax.eval_shape(loss, state.params, batch)
    value, aux = out if isinstance(out, tuple) and len(out) == 2 else (out, None)
    if not (_is_scalar(value) and jnp.issubdtype(value.dtype, jnp.floating)):
        raise TypeError(
            f"loss must give a real scalar, or (scalar, dict of scalars), got {out}."
        )
    if aux is None:
        return False
    if not (isinstance(aux, dict) and all(map(_is_scalar, aux.values()))):
        raise TypeError(
            f"what loss reports beside itself must be a dict of scalars, got {aux}."
        )
    if "loss" in aux:
        raise TypeError(
            "loss reports a metric named 'loss', which is its own name: call it "
            "something else."
        )
    return True


def _is_scalar(x: object) -> TypeGuard[jax.ShapeDtypeStruct]:
    return isinstance(x, jax.ShapeDtypeStruct) and x.shape == ()


def _refuse_untrainable(params: PyTree) -> None:
    """JAX's own words for this do not name the leaf.

    Raises:
        TypeError: some weights have no gradient, being no floating-point numbers.
    """
    found = [
        f"params{jax.tree_util.keystr(path)} is {dtype}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        if not jnp.issubdtype(dtype := jnp.result_type(leaf), jnp.inexact)
    ]
    if found:
        more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
        raise TypeError(
            f"{' and '.join(found[:3])}{more} and cannot be trained: keep it out of "
            "params (frugax.trees.partition), or pass it in the batch."
        )


def _refuse_changing_state(before: TrainState, after: TrainState) -> None:
    """A state of another type would be a new program at every step.

    Raises:
        TypeError: the step gives such a state back.
    """
    changes = Signature.of(state=before).changes_to(Signature.of(state=after))
    if changes:
        raise TypeError(
            f"the step changes the type of its state, {changes[0]}, so the next step "
            "would need another program: cast params or the optimiser's state."
        )
