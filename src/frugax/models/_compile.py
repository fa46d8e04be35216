"""From a description to functions of the chosen library."""

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, overload

from frugax.errors import MissingExtraError

from .graph import Layer, walk

if TYPE_CHECKING:
    from . import to_jax, to_torch


@overload
def compile(
    model: Layer, input_shape: Sequence[int], *, backend: Literal["jax"] = "jax"
) -> "to_jax.Compiled": ...
@overload
def compile(
    model: Layer, input_shape: Sequence[int], *, backend: Literal["torch"]
) -> "to_torch.Compiled": ...
def compile(
    model: Layer,
    input_shape: Sequence[int],
    *,
    backend: Literal["jax", "torch"] = "jax",
) -> "to_jax.Compiled | to_torch.Compiled":
    """Turn a description into functions for one input shape.

    Nothing is traced or run yet. Only the chosen library is imported.

    Args:
        model: what `mlp`, `Chain` and the like made.
        input_shape: shape of one example, without the batch.
        backend: the library that will run it.

    Returns:
        An object with `init`, `apply` and `summary`.

    Raises:
        MissingExtraError: torch is asked for and not installed.
        ValueError: a shape does not suit a layer, or the backend is unknown.

    Example:
        >>> from frugax.models import mlp
        >>> print(compile(mlp([8], classes=3), (4,)).summary())
        layer  kind    output  parameters  bytes  flops
        -----  ------  ------  ----------  -----  -----
        0      Linear  (8,)    40          160 B  72
        1      Relu    (8,)    0           0 B    8
        2      Linear  (3,)    27          108 B  51
        total                  67          268 B  131
    """
    nodes = walk(model, input_shape)
    if backend == "jax":
        from . import to_jax

        return to_jax.Compiled(model, tuple(input_shape), nodes)
    if backend == "torch":
        if importlib.util.find_spec("torch") is None:
            raise MissingExtraError(
                'the torch backend needs torch: pip install "frugax[torch]".'
            )
        from . import to_torch

        return to_torch.Compiled(model, tuple(input_shape), nodes)
    raise ValueError(f'backend must be "jax" or "torch", got {backend!r}.')
