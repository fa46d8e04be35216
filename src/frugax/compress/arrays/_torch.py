"""Convert torch tensors to NumPy and back; imported only when one is met."""

import numpy as np
import torch


def to_numpy(tensor: torch.Tensor, place: str) -> np.ndarray:
    """Return a tensor's values on the CPU, bfloat16 and 8-bit floats included."""
    if (reason := _reason_without_values(tensor)) is not None:
        raise TypeError(f"{place} is {reason}.")
    # torch conjugates and negates lazily, by a bit of the tensor that NumPy cannot
    # express.
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    name = str(plain.dtype).removeprefix("torch.")
    if name == "bfloat16" or name.startswith("float8"):
        import ml_dtypes  # NumPy has no such dtypes of its own

        # torch refuses to hand these dtypes to NumPy, but not integers of their width.
        bits = {1: torch.int8, 2: torch.int16}[plain.element_size()]
        return plain.view(bits).numpy().view(np.dtype(getattr(ml_dtypes, name)))
    try:
        return plain.numpy()
    except (TypeError, RuntimeError) as e:
        raise TypeError(
            f"{place} has dtype {name}, which a file of weights cannot hold: {e}"
        ) from e


def from_numpy(array: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the dtype of `like` on its device; NumPy's copy is its own."""
    if array.dtype.kind == "V":  # bfloat16 and the 8-bit floats go by their bits
        bits = torch.from_numpy(array.view(f"i{array.dtype.itemsize}").copy())
        return bits.view(like.dtype).to(like.device)
    return torch.from_numpy(array.copy()).to(like.device)


def _reason_without_values(tensor: torch.Tensor) -> str | None:
    """Say why a tensor is not a dense array and what to do; None if it is one."""
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
