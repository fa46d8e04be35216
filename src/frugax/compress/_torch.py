"""torch tensors as NumPy arrays; imported only when a torch tensor is met."""

import numpy as np
import torch


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The values of a tensor, bfloat16 and 8-bit floats included, on the CPU."""
    plain = tensor.detach().cpu().contiguous()
    name = str(plain.dtype).removeprefix("torch.")
    if name == "bfloat16" or name.startswith("float8"):
        import ml_dtypes  # NumPy has no such dtype of its own

        bits = torch.int16 if name == "bfloat16" else torch.int8
        kind = np.dtype(getattr(ml_dtypes, name))
        return plain.view(bits).numpy().view(kind)
    return plain.numpy()
