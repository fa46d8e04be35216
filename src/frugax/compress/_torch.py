"""torch tensors as NumPy arrays; imported only when a torch tensor is met."""

import numpy as np
import torch


def to_numpy(tensor: torch.Tensor, place: str) -> np.ndarray:
    """The values of a tensor, bfloat16 and 8-bit floats included, on the CPU.

    Args:
        tensor: the tensor; it is only read.
        place: where it stands, for messages.

    Raises:
        TypeError: it has no values, or holds them in a way that NumPy does not.
    """
    if (why := _no_dense_values(tensor)) is not None:
        raise TypeError(f"{place} is {why}.")
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    name = str(plain.dtype).removeprefix("torch.")
    if name == "bfloat16" or name.startswith("float8"):
        import ml_dtypes  # NumPy has no such dtype of its own

        bits = torch.int16 if name == "bfloat16" else torch.int8
        kind = np.dtype(getattr(ml_dtypes, name))
        return plain.view(bits).numpy().view(kind)
    try:
        return plain.numpy()
    except (TypeError, RuntimeError) as e:
        raise TypeError(
            f"{place} has dtype {name}, which a file of weights cannot hold: {e}"
        ) from e


def _no_dense_values(tensor: torch.Tensor) -> str | None:
    """What keeps a tensor from being an array, and what to do; None if nothing does."""
    if torch.nn.parameter.is_lazy(tensor):
        return "a parameter without a shape yet: run the module once first"
    if tensor.is_meta:
        return "on the meta device, so it has no values: load the weights first"
    if tensor.is_quantized:
        return "a quantised tensor: store tensor.dequantize(), or its int_repr()"
    if tensor.is_nested:
        return "a nested tensor: store the list of its parts, tensor.unbind()"
    if tensor.layout != torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        return f"of the layout {layout}: store tensor.to_dense(), or its parts"
    return None
