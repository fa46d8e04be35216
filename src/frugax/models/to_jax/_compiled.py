"""A model as pure JAX functions: parameters from a key, logits from parameters."""

import dataclasses
import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from frugax.models.graph import (
    Layer,
    Leaf,
    Node,
    Parameter,
    check_input,
    check_parameters,
    fold,
    join,
    summary,
)

from ._layers import RUN


@dataclasses.dataclass(frozen=True, slots=True)
class Compiled:
    """A model for one input shape. Hashable; made by `frugax.models.compile`.

    Attributes:
        model: the description.
        input_shape: shape of one example, without the batch.
        nodes: its leaves, with every shape.
    """

    model: Layer
    input_shape: tuple[int, ...]
    nodes: tuple[Node, ...]

    def init(self, key: PRNGKeyArray) -> dict[str, Float[Array, "..."]]:
        """Random parameters, float32, by name, such as `"3.residual.1.weight"`.

        One small program for the whole model, so that it compiles once: starting
        each array by itself costs more time than training small models.

        Args:
            key: a JAX random key.
        """
        wanted = [(n, p) for node in self.nodes for n, p in node.parameters.items()]
        return _draw(key, tuple(wanted))

    def apply(
        self,
        params: Mapping[str, Float[Array, "..."]],
        x: Float[Array, "batch ..."],
    ) -> Float[Array, "batch ..."]:
        """What the model gives for a batch. Pure: jit, grad and vmap it as you like.

        Args:
            params: what `init` gave, or any arrays of those names and shapes.
            x: `(batch, *input_shape)`, of the parameters' dtype.

        Raises:
            ValueError: a parameter is missing, unknown or no array, or it or the
                input has a wrong shape; it is named.
        """
        check_input(self.input_shape, x.shape)
        check_parameters(self.nodes, params)

        def leaf(path: str, layer: Leaf, x: Array) -> Array:
            own = layer.parameters(x.shape[1:])
            return RUN[type(layer)](
                layer, x, **{name: params[join(path, name)] for name in own}
            )

        return fold(self.model, x, leaf=leaf, add=lambda _, x, y: x + y)

    def summary(self) -> str:
        """A table: shapes, parameters, their bytes as float32, flops per example."""
        return summary(self.nodes)


@functools.partial(jax.jit, static_argnames="wanted")
def _draw(
    key: PRNGKeyArray, wanted: tuple[tuple[str, Parameter], ...]
) -> dict[str, Shaped[Array, "..."]]:
    # One long draw, cut in pieces: a draw for each array would compile far longer.
    total = sum(p.size for _, p in wanted if p.fill is None)
    numbers = jax.random.normal(key, (total,), jnp.float32)
    params: dict[str, Array] = {}
    start = 0
    for name, p in wanted:
        if p.fill is None:
            params[name] = p.std * numbers[start : start + p.size].reshape(p.shape)
            start += p.size
        else:
            params[name] = jnp.full(p.shape, p.fill, jnp.float32)
    return params
