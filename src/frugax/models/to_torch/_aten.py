"""ATen's operations in torch itself, for models that `from_torch` imported."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ._arrays import TO_TORCH


def evaluate(
    xp: Any,
    name: str,
    tensors: Sequence[Any],
    arguments: tuple[Any, ...],
    named: Sequence[tuple[str, Any]],
) -> Any:
    """Compute an operation of torch; see the op `aten`.

    Integers are int64 inside, as torch's indices must be, and outside as wide as the
    numbers of the backend.

    Raises:
        NotImplementedError: there is no such operation, or only torch has it. A saved
            model may name none but those of the table.
    """
    # Here, since the table needs JAX, and other models run in torch without it.
    from frugax.models.aten import fill_argument, find_function

    packet, _, overload = name.partition(".")
    operation = getattr(getattr(torch.ops.aten, packet, None), overload, None)
    if operation is None or find_function(name) is None:
        raise NotImplementedError(f"there is no function for aten.{name}.")
    given = [_as_index(xp.asarray(t)) for t in tensors]
    if packet.startswith(("view", "_unsafe_view")):
        # A view needs strides as they were at the traced lengths.
        given = [t.contiguous() for t in given]
    fill = lambda value: _to_torch(fill_argument(value, given, xp))
    filled = [fill(value) for value in arguments]
    keywords = {key: fill(value) for key, value in named}
    schema = operation._schema.arguments
    is_new = not any(isinstance(a.type, torch.TensorType) for a in schema)
    if is_new and any(a.name == "device" for a in schema):
        keywords["device"] = xp.device
    if packet == "_grouped_mm":
        # ATen's own takes few widths and dtypes.
        operation = _multiply_groups
    results = operation(*filled, **keywords)
    if isinstance(results, (tuple, list)):
        return tuple(_narrow(xp, r) for r in results)
    return _narrow(xp, results)


def _multiply_groups(
    rows: torch.Tensor, weights: torch.Tensor, offs: torch.Tensor
) -> torch.Tensor:
    """Multiply each group of rows, which end at `offs`, by its own matrix."""
    number = torch.arange(len(rows), device=rows.device)
    group = torch.searchsorted(offs, number, right=True)[:, None]
    out = rows.new_zeros(len(rows), weights.shape[-1])
    for i, weight in enumerate(weights):
        out = torch.where(group == i, rows @ weight, out)
    return out


def _as_index(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.long() if tensor.dtype == torch.int32 else tensor


def _narrow(xp: Any, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype == torch.int64:
        return tensor.to(TO_TORCH[xp.int_dtype])
    return tensor


def _to_torch(value: Any) -> Any:
    if isinstance(value, np.dtype):
        return TO_TORCH[value]
    if isinstance(value, tuple):
        return [_to_torch(v) for v in value]
    return value
