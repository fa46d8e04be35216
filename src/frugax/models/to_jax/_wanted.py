"""What gradients are wanted of a model, and the ways through it that give them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from frugax import remat

from ._abstract import spec_of
from ._compiled import JaxModel
from ._memory import Candidate
from ._pieces import (
    Pieces,
    find_pieces,
    gradients_in_pieces,
    outputs_in_pieces,
    piece_of,
    why_whole,
)

Shapes = dict[str, jax.ShapeDtypeStruct]


def shapes_of(model: JaxModel, keys: Iterable[str]) -> Shapes:
    """Shape and dtype of what goes in under these keys."""
    specs = {key: model.graph.specs[key] for key in sorted(keys)}
    return {k: jax.ShapeDtypeStruct(s.shape, s.dtype) for k, s in specs.items()}


class Wanted:
    """What both kinds of gradients have in common."""

    def __init__(self, model: JaxModel, purpose: str, data: Shapes) -> None:
        self.model, self.purpose, self.data = model, purpose, data
        self.params = shapes_of(model, model.param_keys)
        own = {
            k: spec_of(v)
            for k, v in data.items()
            if k in model.graph.inputs and k in model.data_keys
        }
        self.pieces: Pieces | None = find_pieces(model.graph, own)

    @property
    def shapes(self) -> tuple[tuple[str, str], ...]:
        return tuple((k, str(spec_of(v))) for k, v in sorted(self.data.items()))

    @property
    def batch_keys(self) -> tuple[str, ...]:
        return self.pieces.keys if self.pieces else ()

    def counts(self) -> tuple[tuple[int, ...], str]:
        if self.pieces is None:
            return (), "no input has an axis for the batch"
        if not self.pieces.counts:
            return (), "a batch has one row"
        own = {k: v for k, v in self.data.items() if k in self.model.data_keys}
        reason = why_whole(
            self.model.pure, self.params, own, self.pieces, self.model.graph
        )
        return (() if reason else self.pieces.counts), reason

    def smaller(self) -> Iterable[tuple[int, Candidate]]:
        rows = self.pieces.rows if self.pieces else 0
        while self.pieces and rows % 2 == 0:
            rows //= 2
            number = self.pieces.rows // rows
            try:
                yield rows, self.shrunk(number)
            except (TypeError, ValueError):  # the model is made for one batch size
                return

    def shrunk(self, number: int) -> Candidate:
        """The whole way through for batches of a share of the rows."""
        raise NotImplementedError

    def objective(self, params: Any, data: Any, cotangents: Any) -> Any:
        """A number whose gradients are those of the outputs, pulled back."""
        outputs = self.model.pure(params, data)
        parts = [
            jnp.sum(outputs[k].astype(jnp.float32) * c.astype(jnp.float32))
            if c.dtype.itemsize < 4
            else jnp.sum(outputs[k] * c)
            for k, c in cotangents.items()
        ]
        return sum(parts[1:], start=parts[0]), outputs


class Pull(Wanted):
    """Gradients of outputs, from gradients with respect to them."""

    def __init__(self, model: JaxModel, names: frozenset[str]) -> None:
        said = ", ".join(sorted(names))
        super().__init__(
            model,
            f"evaluate with output_gradients of {said}",
            shapes_of(model, model.data_keys),
        )
        self.names = names

    def at(self, pieces: int) -> Candidate:
        keys = self.batch_keys
        cotangents = self._cotangents(self.data)
        piece = piece_of(self.data, keys, pieces)
        return Candidate(
            objective=self.objective,
            has_aux=True,
            example_args=(self.params, piece, self._cotangents(piece)),
            build=lambda grad: pulled(grad, keys, pieces),
            args=(self.params, self.data, cotangents),
        )

    def shrunk(self, number: int) -> Candidate:
        data = piece_of(self.data, self.batch_keys, number)
        args = (self.params, data, self._cotangents(data))
        return Candidate(
            objective=self.objective,
            has_aux=True,
            example_args=args,
            build=lambda grad: pulled(grad, (), 1),
            args=args,
        )

    def _cotangents(self, data: Shapes) -> Shapes:
        outputs = jax.eval_shape(self.model.pure, self.params, data)
        return {k: outputs[k] for k in sorted(self.names)}


class Loss(Wanted):
    """A loss and its gradients.

    In pieces: first the outputs, a piece at a time; then the loss of them all and its
    gradients with respect to them; then these are pulled back, a piece at a time. So
    the loss may mix rows as it likes; one more forward pass is what it costs.
    """

    def __init__(
        self, model: JaxModel, loss: str | Callable[..., Any], data: Shapes
    ) -> None:
        name = loss if isinstance(loss, str) else getattr(loss, "__name__", "a loss")
        super().__init__(model, f"value_and_grad of {name}", data)
        self.loss = loss
        self.of = model.resolve_loss(loss)

    def at(self, pieces: int) -> Candidate:
        if pieces == 1:
            return self._whole(self.data)
        model, keys = self.model, self.batch_keys
        own = {k: v for k, v in self.data.items() if k in model.data_keys}
        piece = piece_of(own, keys, pieces)
        outputs = jax.eval_shape(model.pure, self.params, piece)
        floats = [
            k for k, v in outputs.items() if jnp.issubdtype(v.dtype, jnp.floating)
        ]

        def build(grad: Callable[..., Any]) -> Callable[..., Any]:
            forward = outputs_in_pieces(model.pure, keys, pieces)
            pull = pulled(grad, keys, pieces)

            def step(params: Any, inputs: Mapping[str, Any]) -> Any:
                read = {k: v for k, v in inputs.items() if k in model.data_keys}
                made = forward(params, read)
                rest = {k: v for k, v in made.items() if k not in floats}
                value, cotangents = jax.value_and_grad(
                    lambda some: self.of({**rest, **some}, inputs)
                )({k: made[k] for k in floats})
                return value, pull(params, read, cotangents)[1]

            return remat.fast_convolutions(step)

        return Candidate(
            objective=self.objective,
            has_aux=True,
            example_args=(self.params, piece, {k: outputs[k] for k in floats}),
            build=build,
            args=(self.params, self.data),
        )

    def shrunk(self, number: int) -> Candidate:
        rows = self.pieces.rows if self.pieces else 0
        # What only the loss reads shrinks with the batch, where it has as many rows.
        keys = tuple(
            k
            for k, v in self.data.items()
            if k in self.batch_keys
            or (k not in self.model.data_keys and v.shape[:1] == (rows,))
        )
        return self._whole(piece_of(self.data, keys, number))

    def _whole(self, data: Shapes) -> Candidate:
        args = (self.params, data)
        return Candidate(
            objective=self.model.loss_function(self.loss),
            has_aux=False,
            example_args=args,
            build=lambda grad: grad,
            args=args,
        )


def pulled(
    grad: Callable[..., Any], keys: tuple[str, ...], pieces: int
) -> Callable[..., Any]:
    """From `grad` of `Wanted.objective` to outputs and gradients, perhaps in pieces."""

    def pull(params: Any, data: Any, cotangents: Any) -> tuple[Any, Any]:
        (_, outputs), grads = grad(params, data, cotangents)
        return outputs, grads

    if pieces == 1:
        return pull
    return remat.fast_convolutions(gradients_in_pieces(pull, keys, pieces))
