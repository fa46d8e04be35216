"""A model as torch functions: parameters from a seed, logits from parameters."""

import dataclasses
from collections.abc import Mapping

import torch
from jaxtyping import Float

from frugax.models.graph import (
    Layer,
    Leaf,
    Node,
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

    def init(self, seed: int) -> dict[str, Float[torch.Tensor, "..."]]:
        """Random parameters, float32, by name, such as `"3.residual.1.weight"`.

        They have the same spread as those of the JAX backend, not the same values:
        the libraries draw different numbers. torch's global generator is left alone.

        Args:
            seed: of a generator used for this alone.
        """
        generator = torch.Generator().manual_seed(seed)
        params: dict[str, torch.Tensor] = {}
        for node in self.nodes:
            for name, p in node.parameters.items():
                if p.fill is None:
                    params[name] = p.std * torch.randn(p.shape, generator=generator)
                else:
                    params[name] = torch.full(p.shape, float(p.fill))
        return params

    def apply(
        self,
        params: Mapping[str, Float[torch.Tensor, "..."]],
        x: Float[torch.Tensor, "batch ..."],
    ) -> Float[torch.Tensor, "batch ..."]:
        """What the model gives for a batch. Pure: gradients flow to both arguments.

        Args:
            params: what `init` gave, or any tensors of those names and shapes.
            x: `(batch, *input_shape)`, of the parameters' dtype.

        Raises:
            ValueError: a parameter is missing, unknown or no array, or it or the
                input has a wrong shape; it is named.
        """
        check_input(self.input_shape, x.shape)
        check_parameters(self.nodes, params)

        def leaf(path: str, layer: Leaf, x: torch.Tensor) -> torch.Tensor:
            own = layer.parameters(tuple(x.shape[1:]))
            return RUN[type(layer)](
                layer, x, **{name: params[join(path, name)] for name in own}
            )

        return fold(self.model, x, leaf=leaf, add=lambda _, x, y: x + y)

    def summary(self) -> str:
        """A table: shapes, parameters, their bytes as float32, flops per example."""
        return summary(self.nodes)
