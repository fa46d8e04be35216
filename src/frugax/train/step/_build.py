"""Build the Python function of a training step: loss, gradient, update, checks."""

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from frugax import remat
from frugax.budget import MemoryBudget, MemoryShare
from frugax.errors import InfeasibleBudgetError
from frugax.trees import PyTree

from .._frozen import Frozen
from ..compiles import Signature
from ..processes import Layout
from ._gradients import (
    Inputs,
    Objective,
    Precision,
    compute_gradient,
    is_all_finite,
    next_scale,
)
from ._micro_batches import Weighted, first_part
from ._model_parts import StaticPart, holds_carried, join_model, read_carried
from ._state import TrainState, check_trainable

Metrics: TypeAlias = dict[str, jax.Array]
StepFunction: TypeAlias = Callable[[TrainState, PyTree], tuple[TrainState, Metrics]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepOptions:
    """The options of a step; see `make_train_step`."""

    loss: Callable[..., Any]
    optimizer: optax.GradientTransformationExtraArgs
    static: Frozen[Any] | None
    accum: int
    clip: float | None
    precision: Precision
    donate: bool
    layout: Layout | None
    memory: MemoryBudget | MemoryShare | None
    compile_budget: int | None

    @property
    def own_metrics(self) -> tuple[str, ...]:
        """Names of the metrics that the step itself reports."""
        names = ["loss"]
        if self.clip is not None:
            names.append("gradient_norm")
        if self.precision == "f16":
            names += ["loss_scale", "skipped"]
        return tuple(names)

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        """The state, if it is donated.

        Never the batch: a caller may reuse it, and XLA could alias it to nothing.
        """
        return (0,) if self.donate else ()


@dataclasses.dataclass(frozen=True)
class StepDescription:
    """The gradient inside of a step, for planning, and the program around it.

    Attributes:
        objective: differentiated by its first argument; it returns the loss, and
            metrics and carried arrays beside it.
        args: shapes or arrays that the objective is called with.
        program: the whole step.
    """

    objective: Objective
    args: tuple[Any, ...]
    program: remat.EnclosingProgram


@dataclasses.dataclass(frozen=True)
class Builder:
    """Builds the step for one signature."""

    options: StepOptions

    def jit(
        self, state: TrainState, batch: PyTree
    ) -> tuple[jax.stages.Wrapped, remat.RematPlan | None]:
        """Return the jitted step, with the plan of its backward pass."""
        check_trainable(state.params)
        layout = self.options.layout
        shardings: dict[str, Any] = {}
        if layout is not None:
            of_state = layout.state_sharding(state)
            shardings["in_shardings"] = (of_state, layout.batch_sharding(batch))
            shardings["out_shardings"] = (of_state, layout.replicated)

        def jit(value_and_grad: Callable[..., Any]) -> jax.stages.Wrapped:
            return jax.jit(
                self._make_step(value_and_grad),
                donate_argnums=self.options.donate_argnums,
                **shardings,
            )

        # Without a budget nothing is planned, and the gradient is JAX's own.
        if self.options.memory is None:
            self._make_objective(state, batch)  # checks it
            return jit(jax.value_and_grad), None
        described = self.describe(state, batch)
        try:
            plan = remat.plan(
                described.objective,
                self.options.memory,
                example_args=described.args,
                has_aux=True,
                within=described.program,
            )
        except InfeasibleBudgetError as e:
            if layout is None:
                raise
            raise e.restate(f"on each of {layout.mesh.size} devices {e.what}") from e
        return jit(lambda loss, **_: remat.apply(loss, plan)), plan

    def describe(self, state: TrainState, batch: PyTree) -> StepDescription:
        """Return the gradient inside of the step, and the program around it."""
        check_trainable(state.params)
        objective = self._make_objective(state, batch)
        layout = self.options.layout
        part = first_part(batch, self.options.accum)
        args, build = (state, batch), self._make_step
        if layout is not None:
            # Each device's bytes are those of the partitioned program.
            of_state = layout.state_sharding(state)
            places = (of_state, layout.batch_sharding(batch))
            args = tuple(map(_with_shardings, args, places))
            with contextlib.suppress(ValueError):  # too few rows in a micro-batch
                part = _with_shardings(part, layout.batch_sharding(part))

            of_result = of_state, layout.replicated

            def build(value_and_grad: Callable[..., Any]) -> StepFunction:
                step = self._make_step(value_and_grad)
                return lambda *args: lax.with_sharding_constraint(
                    step(*args), of_result
                )

        # The optimiser's temporaries count too, so the whole step is measured.
        program = remat.EnclosingProgram(
            build=build, args=args, donate_argnums=self.options.donate_argnums
        )
        inputs = _objective_inputs(args[0], part)
        return StepDescription(objective, (args[0].params, inputs), program)

    @property
    def objective(self) -> Objective:
        """The user's loss in the form that is differentiated."""
        return Objective(self._compute_loss, self.options.precision)

    # Call the user's loss with the whole model; return its value and metrics by name.
    def _compute_loss(
        self, params: PyTree, batch: PyTree, carried: PyTree, rest: StaticPart | None
    ) -> tuple[dict[str, Any], PyTree]:
        static = self.options.static
        # The value itself: the loss should not need to know about `Frozen`.
        extra = () if static is None else (static.value,)
        model = join_model(params, carried, rest)
        # A flax nnx module is changed in place by the loss; others return the new
        # arrays.
        is_inside = holds_carried(rest)
        if carried is None or is_inside:
            out = self.options.loss(model, batch, *extra)
            found = _read_loss(out, self.options.own_metrics)
            return found, read_carried(model, rest) if is_inside else None
        out = self.options.loss(model, batch, carried, *extra)
        if not (isinstance(out, tuple) and len(out) == 3):
            raise TypeError(
                "a loss that is given carried arrays must return them: (scalar, "
                f"dict of scalars, carried), got {_describe_types(out)}."
            )
        return _read_loss(out[:2], self.options.own_metrics), out[2]

    # Return the objective, after checking that carried arrays keep their types.
    def _make_objective(self, state: TrainState, batch: PyTree) -> Objective:
        # Otherwise tracing the step checks it all, and traces it only once.
        if state.carried is not None or self.options.memory is not None:
            self.check_loss(state, batch)
        return self.objective

    def check_loss(
        self, state: TrainState, batch: PyTree
    ) -> dict[str, jax.ShapeDtypeStruct]:
        """Trace the loss, check what it returns, and return its metrics' shapes."""
        part = first_part(batch, self.options.accum)
        inputs = _objective_inputs(state, part)
        _, aux = jax.eval_shape(self.objective, state.params, inputs)
        types = Signature.of_types(carried=state.carried)
        changes = types.changes_to(Signature.of_types(carried=aux.carried))
        if changes:
            raise TypeError(
                f"the loss changes the type of a carried array, {changes[0]}, so the "
                "next step would need another program: cast it."
            )
        return aux.metrics

    def _make_step(self, value_and_grad: Callable[..., Any]) -> StepFunction:
        grad_fn = value_and_grad(self.objective, has_aux=True)

        # The name is that of the program in ledgers, profiles and XLA dumps.
        def train_step(state: TrainState, batch: PyTree) -> tuple[TrainState, Metrics]:
            metrics, grads, carried = compute_gradient(
                grad_fn,
                state.params,
                _objective_inputs(state, batch),
                parts=self.options.accum,
            )
            value_fn = self._make_value_fn(state, batch)
            return self._update(state, metrics, grads, carried, value_fn)

        return train_step

    def _make_value_fn(
        self, state: TrainState, batch: PyTree
    ) -> Callable[[PyTree], jax.Array]:
        """Return the loss of other weights on this batch, for a line search."""

        # Nothing is traced unless the optimiser calls it, as optax.lbfgs does.
        def value_fn(params: PyTree) -> jax.Array:
            if self.options.accum > 1:
                raise TypeError(
                    "this optimiser computes the loss of the whole batch again, so it "
                    "needs accum=1."
                )
            inputs = _objective_inputs(state, batch)._replace(scale=None)
            return self.objective(params, inputs)[0]

        return value_fn

    def _update(
        self,
        state: TrainState,
        metrics: Metrics,
        grads: PyTree,
        carried: PyTree,
        value_fn: Callable[[PyTree], jax.Array],
    ) -> tuple[TrainState, Metrics]:
        scale, finite = state.scale, None
        if scale is not None:
            # Before clipping, whose norm is that of the true gradient.
            grads = jax.tree.map(lambda g: g / scale.scale, grads)
            finite = is_all_finite(grads)
        if self.options.clip is not None:
            norm = optax.tree.norm(grads)
            # The lower bound avoids 0/0 where all gradients are zero.
            factor = jnp.minimum(1.0, self.options.clip / jnp.maximum(norm, 1e-16))
            grads = jax.tree.map(lambda g: g * factor.astype(g.dtype), grads)
            metrics = {**metrics, "gradient_norm": norm}
        # optax's own Adam (0.2.8) multiplies an integer by a float, which strict
        # promotion forbids. The user's loss stays subject to the user's setting.
        with jax.numpy_dtype_promotion("standard"):
            update = self.options.optimizer.update
            extra = {"value": metrics["loss"], "grad": grads, "value_fn": value_fn}
            updates, opt_state = update(
                grads, state.opt_state, state.params, **_accepted(update, extra)
            )
        params = optax.apply_updates(state.params, updates)
        new = TrainState(
            state.step + 1, params, opt_state, carried=carried, rest=state.rest
        )
        if scale is None:
            return new, metrics
        assert finite is not None
        # A skipped step still counts: the step number selects the next batch.
        old = state._replace(step=new.step, scale=None)
        selected = jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)
        metrics = {
            **metrics,
            "loss_scale": scale.scale,
            "skipped": 1.0 - finite.astype(jnp.float32),
        }
        return selected._replace(scale=next_scale(scale, finite=finite)), metrics


def _with_shardings(tree: PyTree, shardings: PyTree) -> PyTree:
    return jax.tree.map(
        lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
        tree,
        shardings,
    )


def _accepted(update: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """Those of the given extra arguments that an optimiser's `update` takes."""
    known = inspect.signature(update).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in known):
        return given
    names = {p.name for p in known}
    return {name: value for name, value in given.items() if name in names}


def _objective_inputs(state: TrainState, batch: PyTree) -> Inputs:
    scale = state.scale and state.scale.scale
    return Inputs(batch, scale, state.carried, state.rest)


def _read_loss(out: Any, reserved: tuple[str, ...]) -> dict[str, Any]:
    """Return the value of a loss, named "loss", and the metrics beside it."""
    value, metrics = out, None
    if isinstance(out, tuple) and len(out) == 2:
        value, metrics = out
    if not is_scalar_mean(value, jnp.floating):
        hint = " Take the mean over the batch?" if getattr(value, "ndim", 0) else ""
        raise TypeError(
            "loss must return a real scalar or train.Weighted(total, weight), or "
            f"(that, dict of scalars), got {_describe_types(out)}.{hint}"
        )
    if metrics is None:
        return {"loss": value}
    if not isinstance(metrics, Mapping):
        raise TypeError(
            'loss returns metrics as a dict of scalars, as in (loss, {"accuracy": x}), '
            f"got {_describe_types(metrics)}: name the scalars in a dict, and leave "
            "out the rest."
        )
    # Constants, such as a size or a learning rate.
    constants = (int, float, np.bool_, np.number)
    metrics = {
        name: jnp.asarray(x) if isinstance(x, constants) else x
        for name, x in metrics.items()
    }
    for name, x in metrics.items():
        if not is_scalar_mean(x):
            raise TypeError(
                f"loss returns metrics as a dict of scalars, but as {name!r} "
                f"{_describe_types(x)}: take the mean of an array, name each of "
                "several scalars in the dict itself, or leave it out."
            )
    for name in reserved:
        if name in metrics:
            raise TypeError(
                f"loss returns a metric named {name!r}, a name reserved for the step's "
                "own metric: rename it."
            )
    return {"loss": value, **metrics}


def _describe_types(tree: PyTree) -> str:
    """Describe arrays as `float32[3]`; the text of a tracer helps nobody."""
    describe = lambda x: str(jax.typeof(x)) if isinstance(x, jax.Array) else x
    return f"{jax.tree.map(describe, tree)!s:.99}"


def is_scalar_mean(x: object, kind: Any = None) -> bool:
    """Whether a traced value is a scalar, or a `Weighted` of two.

    Args:
        x: the value.
        kind: the abstract dtype that it must have; None for any.
    """
    if isinstance(x, Weighted):
        is_number = _is_scalar(x.weight) or isinstance(x.weight, int | float)
        return is_number and is_scalar_mean(x.total, jnp.floating)
    return _is_scalar(x) and (kind is None or jnp.issubdtype(x.dtype, kind))


def _is_scalar(x: object) -> TypeGuard[jax.Array]:
    return isinstance(x, (jax.ShapeDtypeStruct, jax.Array)) and x.shape == ()
