"""The dtypes a file can hold, by the names they have in it. All little-endian."""

import ml_dtypes
import numpy as np

_NAMES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
_NAMES += ("f2", "f4", "f8", "c8", "c16")
# One byte or two wide; NumPy itself has no names for them.
_NARROW = ("bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz")
_NARROW += ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
_NARROW += ("float8_e8m0fnu",)
DTYPES = {name: np.dtype(f"<{name}") for name in _NAMES} | {
    name: np.dtype(getattr(ml_dtypes, name)) for name in _NARROW
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}
_BITS = {"f2": "<u2", "bfloat16": "<u2", "f4": "<u4", "f8": "<u8"}


def code_of(dtype: np.dtype) -> str | None:
    """The name of a dtype, whatever its byte order; None if no file can hold it."""
    return _CODES.get(dtype.newbyteorder("<"))


def is_narrow(dtype: np.dtype) -> bool:
    """Whether only ml_dtypes knows it, so that other formats cannot hold it."""
    return _CODES.get(dtype) in _NARROW


def bits_of(code: str) -> np.dtype | None:
    """The whole numbers as wide as these floating ones; None if these are none."""
    bits = _BITS.get(code)
    return None if bits is None else np.dtype(bits)
