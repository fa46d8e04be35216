"""Convert dtypes and arrays of JAX and torch to NumPy's."""

from typing import Any

import ml_dtypes
import numpy as np

bool_ = np.dtype(np.bool_)
uint8 = np.dtype(np.uint8)
int8 = np.dtype(np.int8)
int16 = np.dtype(np.int16)
int32 = np.dtype(np.int32)
int64 = np.dtype(np.int64)
float16 = np.dtype(np.float16)
bfloat16 = np.dtype(ml_dtypes.bfloat16)
float32 = np.dtype(np.float32)
float64 = np.dtype(np.float64)

FLOATS = (float16, bfloat16, float32, float64)


def as_dtype(value: Any, *, what: str = "dtype") -> np.dtype:
    """Convert anything that names a dtype to a NumPy dtype."""
    if isinstance(value, np.dtype):  # every op asks
        return value
    if str(value).startswith("torch."):
        value = str(value).removeprefix("torch.")
    if value == "bfloat16":  # NumPy does not know the name by itself
        return bfloat16
    try:
        # NumPy takes None for float64; the text raises its TypeError.
        return np.dtype("None" if value is None else value)
    except TypeError as e:
        raise ValueError(
            f"{what}: {value!r:.60} is not a dtype; use frugax.float32 or "
            '"float32", for example.'
        ) from e


def as_float(value: Any, *, what: str = "dtype") -> np.dtype:
    """Convert to a floating dtype that models can run in."""
    dtype = as_dtype(value, what=what)
    if dtype not in FLOATS:
        raise ValueError(
            f"{what} must be one of {', '.join(d.name for d in FLOATS)}, got "
            f"{dtype.name}."
        )
    return dtype


def to_numpy(value: Any) -> np.ndarray:
    """Convert an array of JAX, torch or NumPy to NumPy, without changing its dtype."""
    if hasattr(value, "detach"):  # torch's; torch itself may not be imported here
        # detach, since torch refuses to convert a tensor that requires a gradient.
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # torch refuses to convert it
            return value.float().numpy().astype(ml_dtypes.bfloat16)
        return value.numpy()
    return np.asarray(value)
