"""Scales of runs: one byte for each row or group of weights.

The unit of a run is `step * 2^(e / 4)` for its exponent e, an int8. Quarters of an
octave are fine enough: a step that is off by an eighth of an octave costs 0.01 dB.
A scale has 12 bits and a step 11, so float32 holds their product exactly, and decoding
is one rounded product as with a single step.
"""

from typing import Any

import numpy as np

from frugax.errors import CorruptFileError

from .._zstd import compress_frame, decompress_frame
from ..steps import Step, clip_products, scale_levels

# 2^(1/4) and its powers, rounded to 12 bits.
_QUARTERS = np.array([2048, 2435, 2896, 3444]) / 2048
# Exponents beyond these could make a unit that float32 does not hold exactly.
MAX_EXPONENT = 60


def run_scales(exponents: np.ndarray) -> np.ndarray:
    """Return the scale of each run, float64."""
    return np.ldexp(_QUARTERS[exponents & 3], exponents >> 2)


def run_units(
    exponents: np.ndarray,
    step: Step,
    dtype: "type[np.floating[Any]]",
) -> np.ndarray:
    """Return the unit of each run: its scale times the step, finite in this dtype."""
    units = run_scales(exponents) * step.size
    return np.minimum(units, np.finfo(dtype).max).astype(dtype)


def nearest_exponents(scales: np.ndarray) -> np.ndarray:
    """Return the exponents nearest to some scales > 0."""
    exponents = np.rint(4 * np.log2(scales))
    return np.clip(exponents, -MAX_EXPONENT, MAX_EXPONENT).astype(np.int8)


def scale_runs(
    levels: np.ndarray,
    step: Step,
    dtype: "np.dtype[Any]",
    run: int,
    exponents: np.ndarray | None,
) -> np.ndarray:
    """Decode levels that have the computing type already, in place if it is `dtype`."""
    if exponents is None:
        return scale_levels(levels, step, dtype)
    units = run_units(exponents, step, levels.dtype.type)
    whole = len(levels) // run
    with np.errstate(over="ignore"):
        levels[: whole * run].reshape(whole, run)[:] *= units[:whole, None]
        levels[whole * run :] *= units[-1]
    return clip_products(levels, float(units.max(initial=0)), dtype)


def pack_exponents(exponents: np.ndarray) -> bytes:
    """Return exponents as they stand before a block."""
    packed = compress_frame(exponents.tobytes())
    return len(packed).to_bytes(4, "little") + packed


def unpack_exponents(block: memoryview, max_runs: int) -> tuple[np.ndarray, memoryview]:
    """Return the exponents that `pack_exponents` packed, and what stands behind."""
    size = int.from_bytes(block[:4], "little")
    plain = decompress_frame(bytes(block[4 : 4 + size]), max_bytes=max_runs)
    exponents = np.frombuffer(plain, np.int8)
    if np.abs(exponents.astype(np.int16)).max(initial=0) > MAX_EXPONENT:
        raise CorruptFileError("a coded block has a damaged scale.")
    return exponents, block[4 + size :]
