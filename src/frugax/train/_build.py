"""The functions that a training step is made of, to be jitted or run as they are."""

import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypeAlias, TypeGuard

import jax
import jax.numpy as jnp
import optax

from frugax import remat
from frugax.budget import MemoryBudget
from frugax.errors import InfeasibleBudgetError
from frugax.trees import PyTree

from ._gradients import Inputs, Objective, gradient, micro_batch
from ._ladder import SAFER_OPTIONS
from ._layout import Layout
from ._models import Rest, carried_in, holds_carried, whole
from ._precision import Precision, all_finite, next_scale
from ._promote import join
from ._signature import Signature
from ._state import TrainState
from ._static import Frozen

Metrics: TypeAlias = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """What `make_train_step` was asked for; see there."""

    loss: Callable[..., Any]
    optimizer: optax.GradientTransformationExtraArgs
    static: Frozen[Any] | None
    accum: int
    clip: float | None
    precision: Precision
    donate: bool
    layout: Layout | None = None

    @property
    def own_metrics(self) -> tuple[str, ...]:
        """Names of what the step itself reports."""
        clip = () if self.clip is None else ("gradient_norm",)
        scale = ("loss_scale", "skipped") if self.precision == "f16" else ()
        return ("loss", *clip, *scale)

    @property
    def safer_options(self) -> dict[str, str]:
        """Compiler options that go round a known fault; none off the CPU."""
        return SAFER_OPTIONS if jax.default_backend() == "cpu" else {}


@dataclasses.dataclass(frozen=True)
class Builder:
    """Makes the step for one signature.

    Attributes:
        recipe: what was asked for.
        memory: the memory budget, if any.
        values: Python values of the batch that are part of the program, if any.
    """

    recipe: Recipe
    memory: MemoryBudget | None
    values: Frozen[dict[str, Any]] | None = None

    def jitted(
        self, state: TrainState, batch: PyTree, options: dict[str, str] | None = None
    ) -> tuple[jax.stages.Wrapped, remat.RematPlan | None]:
        """The step as a jitted function, with its backward pass planned."""
        refuse_untrainable(state.params)
        objective = self._objective(state, batch)
        build = lambda grad_fn: self._step(grad_fn)
        donate = (0,) if self.recipe.donate else ()
        layout = self.recipe.layout
        placed: dict[str, Any] = {}
        if layout is not None:
            where = layout.of_state(state)
            placed["in_shardings"] = (where, layout.of_batch(batch))
            placed["out_shardings"] = (where, layout.copied)
        jit = lambda step: jax.jit(
            step, donate_argnums=donate, compiler_options=options or None, **placed
        )
        if self.memory is None:
            return jit(build(jax.value_and_grad(objective, has_aux=True))), None
        part = jax.eval_shape(lambda b: micro_batch(b, self.recipe.accum), batch)
        whole = remat.EnclosingProgram(
            build=build, args=(state, batch), donate_argnums=donate
        )
        plan_for = lambda memory: remat.plan(
            objective,
            memory,
            example_args=(state.params, _inputs(state, part)),
            has_aux=True,
            within=whole,
        )
        if layout is None:
            plan = plan_for(self.memory)
        else:
            plan = _plan_of_all(plan_for, self.memory, layout)
        return jit(build(remat.apply(objective, plan))), plan

    def eager(
        self, context: Callable[[], contextlib.AbstractContextManager[Any]]
    ) -> Callable[[TrainState, PyTree], tuple[TrainState, Metrics]]:
        """The step run operation by operation, the optimiser's part compiled."""
        update = jax.jit(self._update)

        def step(state: TrainState, batch: PyTree) -> tuple[TrainState, Metrics]:
            with context():
                metrics, grads, carried = gradient(
                    jax.value_and_grad(
                        Objective(self._loss, self.recipe.precision), has_aux=True
                    ),
                    state.params,
                    _inputs(state, batch),
                    parts=self.recipe.accum,
                    loop=False,
                )
            return update(state, metrics, grads, carried)

        return step

    def _loss(
        self, params: PyTree, batch: PyTree, carried: PyTree, rest: Rest | None
    ) -> tuple[Any, dict[str, Any], PyTree]:
        """The user's loss of the whole model: its value, metrics, what is carried.

        Raises:
            TypeError: it gave something else.
        """
        static = self.recipe.static
        extra = () if static is None else (static.value,)
        if self.values is not None:
            batch = join(batch, self.values)
        model = whole(params, carried, rest)
        inside = holds_carried(rest)
        if carried is None or inside:
            out = self.recipe.loss(model, batch, *extra)
            value, metrics = read_out(out, self.recipe.own_metrics)
            return value, metrics, carried_in(model, rest) if inside else None
        out = self.recipe.loss(model, batch, carried, *extra)
        if not (isinstance(out, tuple) and len(out) == 3):
            raise TypeError(
                "a loss that is given carried arrays must give them back: (scalar, "
                f"dict of scalars, carried), got {_types(out)}."
            )
        return *read_out(out[:2], self.recipe.own_metrics), out[2]

    def _objective(self, state: TrainState, batch: PyTree) -> Objective:
        objective = Objective(self._loss, self.recipe.precision)
        if state.carried is None and self.memory is None:
            return objective  # tracing it says all there is to say, and only once
        part = jax.eval_shape(lambda b: micro_batch(b, self.recipe.accum), batch)
        inputs = _inputs(state, part)
        _, (_, carried) = jax.eval_shape(objective, state.params, inputs)
        types = Signature.of_types(carried=state.carried)
        changes = types.changes_to(Signature.of_types(carried=carried))
        if changes:
            raise TypeError(
                f"the loss changes the type of what is carried, {changes[0]}, so the "
                "next step would need another program: cast it."
            )
        return objective

    def _step(
        self, grad_fn: Callable[..., Any]
    ) -> Callable[[TrainState, PyTree], tuple[TrainState, Metrics]]:
        def train_step(state: TrainState, batch: PyTree) -> tuple[TrainState, Metrics]:
            metrics, grads, carried = gradient(
                grad_fn,
                state.params,
                _inputs(state, batch),
                parts=self.recipe.accum,
            )
            return self._update(state, metrics, grads, carried)

        return train_step

    def _update(
        self, state: TrainState, metrics: Metrics, grads: PyTree, carried: PyTree
    ) -> tuple[TrainState, Metrics]:
        scale, finite = state.scale, None
        if scale is not None:
            grads = jax.tree.map(lambda g: g / scale.scale, grads)
            finite = all_finite(grads)
        if self.recipe.clip is not None:
            norm = optax.tree.norm(grads)
            factor = jnp.minimum(1.0, self.recipe.clip / jnp.maximum(norm, 1e-16))
            grads = jax.tree.map(lambda g: g * factor.astype(g.dtype), grads)
            metrics = {**metrics, "gradient_norm": norm}
        # optax's own Adam (0.2.8) multiplies an integer by a float, which strict
        # promotion forbids; the user's loss is held to it all the same.
        with jax.numpy_dtype_promotion("standard"):
            updates, opt_state = self.recipe.optimizer.update(
                grads, state.opt_state, state.params, value=metrics["loss"]
            )
        params = optax.apply_updates(state.params, updates)
        new = TrainState(
            state.step + 1, params, opt_state, carried=carried, rest=state.rest
        )
        if scale is None:
            return new, metrics
        assert finite is not None
        kept = jax.tree.map(
            lambda n, o: jnp.where(finite, n, o),
            new,
            state._replace(step=new.step, scale=None),
        )
        metrics = {
            **metrics,
            "loss_scale": scale.scale,
            "skipped": 1.0 - finite.astype(jnp.float32),
        }
        return kept._replace(scale=next_scale(scale, finite=finite)), metrics


def _plan_of_all(
    plan_for: Callable[[MemoryBudget], remat.RematPlan],
    memory: MemoryBudget,
    layout: Layout,
) -> remat.RematPlan:
    """A plan for what all devices together may hold of temporaries.

    It is made for the program as it is written, before it is spread; what one device
    then needs is measured on the compiled step.

    Raises:
        InfeasibleBudgetError: there is none; in bytes of one device, as the budget.
    """
    parts = layout.data_size
    try:
        return plan_for(
            dataclasses.replace(memory, limit_bytes=memory.limit_bytes * parts)
        )
    except InfeasibleBudgetError as e:
        raise InfeasibleBudgetError(
            f"on each of {parts} devices {e.what}",
            needed=math.ceil(e.needed / parts),
            limit=memory.limit_bytes,
            unit=e.unit,
            hint=e.hint,
        ) from e


def _inputs(state: TrainState, batch: PyTree) -> Inputs:
    scale = None if state.scale is None else state.scale.scale
    return Inputs(batch, scale, state.carried, state.rest)


def read_out(out: Any, taken: tuple[str, ...]) -> tuple[Any, dict[str, Any]]:
    """A loss's value and what it reports beside it.

    Args:
        out: what it gave.
        taken: names of what the step itself reports.

    Raises:
        TypeError: it gave neither a scalar nor that with a dict of scalars, or took
            a name that is not free.
    """
    value, aux = out if isinstance(out, tuple) and len(out) == 2 else (out, None)
    if not (_is_scalar(value) and jnp.issubdtype(value.dtype, jnp.floating)):
        raise TypeError(
            "loss must give a real scalar, or (scalar, dict of scalars), "
            f"got {_types(out)}."
        )
    if aux is None:
        return value, {}
    if not (isinstance(aux, dict) and all(map(_is_scalar, aux.values()))):
        raise TypeError(
            "what loss reports beside itself must be a dict of scalars, got "
            f"{_types(aux)}."
        )
    for name in taken:
        if name in aux:
            raise TypeError(
                f"loss reports a metric named {name!r}, but that is its own name for "
                "what the step reports: call it something else."
            )
    return value, aux


def _types(tree: PyTree) -> str:
    """Arrays as `float32[3]`: what a tracer says of itself is of no use to anybody."""
    said = lambda x: str(jax.typeof(x)) if isinstance(x, jax.Array) else x
    return f"{jax.tree.map(said, tree)!s:.99}"


def _is_scalar(x: object) -> TypeGuard[jax.Array]:
    return isinstance(x, (jax.ShapeDtypeStruct, jax.Array)) and x.shape == ()


def refuse_untrainable(params: PyTree) -> None:
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


def refuse_changing_state(before: TrainState, after: TrainState) -> None:
    """A state of another type would be a new program at every step.

    Raises:
        TypeError: the step gives such a state back.
    """
    types = Signature.of_types(state=before)
    changes = types.changes_to(Signature.of_types(state=after))
    if changes:
        raise TypeError(
            f"the step changes the type of its state, {changes[0]}, so the next step "
            "would need another program: cast params or the optimiser's state."
        )
