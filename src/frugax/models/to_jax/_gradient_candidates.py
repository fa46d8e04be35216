"""Build gradient functions of a model, whole or in micro-batches, for memory search."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from frugax import remat

from ._compiled import JaxModel
from ._memory import Candidate
from ._micro_batch import (
    BatchAxis,
    explain_indivisible,
    find_batch_axis,
    micro_batch_gradients,
    micro_batch_outputs,
    micro_batch_shapes,
)
from ._shape_rules import spec_of

Shapes = dict[str, jax.ShapeDtypeStruct]


def shapes_of(model: JaxModel, keys: Iterable[str]) -> Shapes:
    """Look up the shape and dtype of these inputs and weights."""
    specs = {key: model.graph.specs[key] for key in sorted(keys)}
    return {k: jax.ShapeDtypeStruct(s.shape, s.dtype) for k, s in specs.items()}


class GradientRequest:
    """Base of the two kinds of requests: for gradients of outputs, and of a loss."""

    def __init__(self, model: JaxModel, purpose: str, data: Shapes) -> None:
        self.model, self.purpose, self.data = model, purpose, data
        self.params = shapes_of(model, model.param_keys)
        # Labels do not take part: the model never reads them.
        own = {
            k: spec_of(v)
            for k, v in data.items()
            if k in model.graph.inputs and k in model.data_keys
        }
        self.batch_axis: BatchAxis | None = find_batch_axis(model.graph, own)

    @property
    def shapes(self) -> tuple[tuple[str, str], ...]:
        return tuple((k, str(spec_of(v))) for k, v in sorted(self.data.items()))

    @property
    def batch_keys(self) -> tuple[str, ...]:
        if self.batch_axis is None:
            return ()
        return self.batch_axis.keys

    def counts(self) -> tuple[tuple[int, ...], str]:
        axis = self.batch_axis
        if axis is None:
            return (), "no input has a batch axis"
        if not axis.counts:
            return (), "a batch has one row"
        own = {k: v for k, v in self.data.items() if k in self.model.data_keys}
        reason = explain_indivisible(
            self.model.pure, self.params, own, axis, self.model.graph
        )
        if reason:
            return (), reason
        return axis.counts, ""

    def smaller(self) -> Iterable[tuple[int, Candidate]]:
        rows = whole = self.rows
        # Halves only, as batch sizes are mostly even numbers and each try costs
        # compilations.
        while rows and rows % 2 == 0:
            rows //= 2
            try:
                yield rows, self.shrink(whole // rows)
            except (TypeError, ValueError):  # the model accepts one batch size only
                return

    @property
    def rows(self) -> int:
        """Rows of a batch; 0 if the model has no batch axis."""
        if self.batch_axis is None:
            return 0
        return self.batch_axis.rows

    def shrink(self, number: int) -> Candidate:
        """The program for whole batches of 1/number of the rows."""
        raise NotImplementedError

    def objective(self, params: Any, data: Any, cotangents: Any) -> Any:
        """A scalar whose gradients are the vector-Jacobian product of the outputs."""
        outputs = self.model.pure(params, data)
        # `remat.plan` differentiates scalars. The gradient of the sum of outputs times
        # cotangents is their vector-Jacobian product.
        total: Any = 0.0
        for name, cotangent in cotangents.items():
            # Half precision is too coarse to accumulate in.
            wide = jnp.promote_types(cotangent.dtype, jnp.float32)
            total += jnp.sum(outputs[name].astype(wide) * cotangent.astype(wide))
        return total, outputs


class OutputGradients(GradientRequest):
    """A request for the vector-Jacobian product of some outputs."""

    def __init__(self, model: JaxModel, names: frozenset[str]) -> None:
        listed = ", ".join(sorted(names))
        super().__init__(
            model,
            f"evaluate with output_gradients of {listed}",
            shapes_of(model, model.data_keys),
        )
        self.names = names

    def at(self, pieces: int) -> Candidate:
        keys = self.batch_keys
        cotangents = self._cotangents(self.data)
        piece = micro_batch_shapes(self.data, keys, pieces)
        return Candidate(
            objective=self.objective,
            has_aux=True,
            example_args=(self.params, piece, self._cotangents(piece)),
            build=lambda grad: build_vjp(grad, keys, pieces),
            args=(self.params, self.data, cotangents),
        )

    def shrink(self, number: int) -> Candidate:
        data = micro_batch_shapes(self.data, self.batch_keys, number)
        args = (self.params, data, self._cotangents(data))
        return Candidate(
            objective=self.objective,
            has_aux=True,
            example_args=args,
            build=lambda grad: build_vjp(grad, (), 1),
            args=args,
        )

    def _cotangents(self, data: Shapes) -> Shapes:
        outputs = jax.eval_shape(self.model.pure, self.params, data)
        return {k: outputs[k] for k in sorted(self.names)}


class LossGradients(GradientRequest):
    """A request for a loss and its gradients.

    In micro-batches: first the outputs, one micro-batch at a time; then the loss of all
    of them and its gradients with respect to the outputs; then the backward pass, one
    micro-batch at a time. So the loss may mix rows freely, for the price of one more
    forward pass.
    """

    def __init__(
        self, model: JaxModel, loss: str | Callable[..., Any], data: Shapes
    ) -> None:
        name = str(getattr(loss, "__name__", "a loss"))
        if isinstance(loss, str):
            name = loss
        super().__init__(model, f"value_and_grad of {name}", data)
        self.loss = loss
        self.compute_loss = model.resolve_loss(loss)

    def at(self, pieces: int) -> Candidate:
        # The whole batch needs no second forward pass, so it has a program of its own.
        if pieces == 1:
            return self._whole(self.data)
        model, keys = self.model, self.batch_keys
        own = {k: v for k, v in self.data.items() if k in model.data_keys}
        piece = micro_batch_shapes(own, keys, pieces)
        outputs = jax.eval_shape(model.pure, self.params, piece)
        floats = [
            k for k, v in outputs.items() if jnp.issubdtype(v.dtype, jnp.floating)
        ]

        def build(grad: Callable[..., Any]) -> Callable[..., Any]:
            forward = micro_batch_outputs(model.pure, keys, pieces)
            pull = build_vjp(grad, keys, pieces)

            def step(params: Any, inputs: Mapping[str, Any]) -> Any:
                read = {k: v for k, v in inputs.items() if k in model.data_keys}
                outputs = forward(params, read)
                # Integer outputs, such as an argmax, may be read by the loss, but
                # value_and_grad refuses to differentiate with respect to them.
                rest = {k: v for k, v in outputs.items() if k not in floats}
                value, cotangents = jax.value_and_grad(
                    lambda some: self.compute_loss({**rest, **some}, inputs)
                )({k: outputs[k] for k in floats})
                return value, pull(params, read, cotangents)[1]

            # XLA:CPU compiles the gradient of a convolution in a loop far slower than
            # outside of one, and micro-batches are a loop.
            return remat.fast_convolutions(step)

        return Candidate(
            objective=self.objective,
            has_aux=True,
            example_args=(self.params, piece, {k: outputs[k] for k in floats}),
            build=build,
            args=(self.params, self.data),
        )

    def shrink(self, number: int) -> Candidate:
        # Arrays that only the loss reads, such as labels, shrink with the batch if they
        # have as many rows.
        keys = tuple(
            k
            for k, v in self.data.items()
            if k in self.batch_keys
            or (k not in self.model.data_keys and v.shape[:1] == (self.rows,))
        )
        return self._whole(micro_batch_shapes(self.data, keys, number))

    def _whole(self, data: Shapes) -> Candidate:
        args = (self.params, data)
        return Candidate(
            objective=self.model.loss_function(self.loss, self.model.pure),
            has_aux=False,
            example_args=args,
            build=lambda grad: grad,
            args=args,
        )


def build_vjp(
    grad: Callable[..., Any], keys: tuple[str, ...], pieces: int
) -> Callable[..., Any]:
    """Build the function to outputs and gradients, in micro-batches if asked for."""

    def pull(params: Any, data: Any, cotangents: Any) -> tuple[Any, Any]:
        (_, outputs), grads = grad(params, data, cotangents)
        return outputs, grads

    if pieces == 1:
        return pull
    return remat.fast_convolutions(micro_batch_gradients(pull, keys, pieces))
