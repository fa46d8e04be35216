"""Dtype promotion: the rule for the dtype of an op's result, in JAX and torch alike.

It is JAX's lattice (docs.jax.dev, "Type promotion semantics"), in NumPy's names: an
integer and a float give that float, float16 and bfloat16 give float32, and a 0-d array
counts like any other array. Only Python numbers are weak: they take the dtype of the
array they meet.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

_KINDS: dict[str, tuple[str, int]] = {
    "bool": ("bool", 8),
    **{f"uint{n}": ("unsigned", n) for n in (8, 16, 32, 64)},
    **{f"int{n}": ("signed", n) for n in (8, 16, 32, 64)},
    "bfloat16": ("float", 16),
    **{f"float{n}": ("float", n) for n in (16, 32, 64)},
    "complex64": ("complex", 32),
    "complex128": ("complex", 64),
}
_WEAK: dict[type, str] = {bool: "bool", int: "signed", float: "float"}

FLOAT_DTYPE = np.dtype(np.float32)


def int_dtype(float_dtype: np.dtype) -> np.dtype:
    """The dtype of Python integers, indices and counts: int64 beside float64 only."""
    # By the dtype of the backend and not by JAX's global flag, so that a model has the
    # same dtypes on both libraries.
    if float_dtype == np.float64:
        return np.dtype(np.int64)
    return np.dtype(np.int32)


@functools.cache
def is_floating(dtype: np.dtype) -> bool:
    """Whether a dtype is floating or complex."""
    return _kind(dtype)[0] in ("float", "complex")


# Every op of every trace asks, with few different arguments.
@functools.cache
def result_dtype(
    *dtypes: np.dtype | type[bool] | type[int] | type[float],
    to_float: bool = False,
    float_dtype: np.dtype = FLOAT_DTYPE,
) -> np.dtype:
    """The dtype that all of these are promoted to."""
    strong = [_kind(d) for d in dtypes if isinstance(d, np.dtype)]
    weak = {_WEAK[d] for d in dtypes if not isinstance(d, np.dtype)}
    # The lattice orders kinds first (bool < int < float < complex) and widths second,
    # so only the widest dtype of each kind counts.
    widest: dict[str, int] = {}
    for kind, bits in strong:
        widest[kind] = max(bits, widest.get(kind, 0))
    if "complex" in widest:
        # Bits of the real part: complex64 holds two float32.
        if max(widest["complex"], widest.get("float", 0)) == 64:
            return np.dtype(np.complex128)
        return np.dtype(np.complex64)
    if "float" in widest:
        halves = {d for d in dtypes if isinstance(d, np.dtype) and _is_half(d)}
        if widest["float"] > 16:
            return np.dtype(f"float{widest['float']}")
        if len(halves) == 1:
            return halves.pop()
        # float16 has the digits and bfloat16 the range: only float32 holds both.
        return np.dtype(np.float32)
    if "float" in weak or to_float:
        return float_dtype
    if "signed" in widest or "unsigned" in widest:
        signed, unsigned = widest.get("signed", 0), widest.get("unsigned", 0)
        if signed == 0:
            return np.dtype(f"uint{unsigned}")
        bits = signed
        if signed <= unsigned:  # the next signed dtype that holds all unsigned numbers
            bits = 2 * unsigned
        if bits > 64:  # int64 meets uint64: no integer dtype holds both
            return float_dtype
        return np.dtype(f"int{bits}")
    if "signed" in weak:
        return int_dtype(float_dtype)
    return np.dtype(np.bool_)


def promote(
    xp: Any, tensors: Sequence[Any], *, to_float: bool = False
) -> tuple[Any, ...]:
    """Bring tensors of a namespace to one dtype by `result_dtype`; see there."""
    # By exact type: NumPy's float64 is a subclass of float, but is not weak.
    values = [
        t
        if t is None or type(t) in _WEAK or isinstance(t, xp.array_class)
        else xp.asarray(t)
        for t in tensors
    ]
    strong = {xp.dtype_of(t) for t in values if isinstance(t, xp.array_class)}
    weak = {type(t) for t in values if type(t) in _WEAK}
    if not strong and not weak:
        return tuple(values)
    # A bool skips this shortcut: JAX does not treat Python bools as weak, so strict
    # promotion refuses them next to a float, and they become integers below.
    if len(strong) == 1 and bool not in weak:
        (common,) = strong
        if is_floating(common) or not (to_float or weak):
            return tuple(values)  # the usual case: nothing to convert
    target = result_dtype(*strong, *weak, to_float=to_float, float_dtype=xp.float_dtype)

    def convert(t: Any) -> Any:
        if isinstance(t, xp.array_class):
            return xp.cast(t, target)
        if t is None or strong:
            # An int stays an int next to floats: x ** 2 is then one multiplication.
            return int(t) if isinstance(t, bool) and target != np.bool_ else t
        return xp.asarray(t, target)

    return tuple(map(convert, values))


@functools.cache
def sum_dtype(dtype: np.dtype, float_dtype: np.dtype = FLOAT_DTYPE) -> np.dtype:
    """The dtype of sums and products: `int_dtype` for booleans and short integers."""
    kind, bits = _kind(dtype)
    # int8 overflows at 128. NumPy widens to int64, which JAX lacks unless told
    # otherwise.
    if kind not in ("float", "complex") and bits < 32:
        return int_dtype(float_dtype)
    return dtype


def _kind(dtype: np.dtype) -> tuple[str, int]:
    try:
        return _KINDS[dtype.name]
    except (KeyError, AttributeError):
        raise TypeError(
            f"dtype {dtype} takes no part in promotion; cast it to one of "
            f"{', '.join(_KINDS)} first."
        ) from None


def _is_half(dtype: np.dtype) -> bool:
    return _kind(dtype) == ("float", 16)


def require_whole(xp: Any, op: str, name: str, array: Any) -> None:
    """Refuse labels and positions that are not of an integer dtype."""
    # A cast would round them, and torch would read NaN for such a label.
    dtype = xp.dtype_of(array)
    if dtype.kind not in "iu":
        raise ValueError(f"{op}: {name} must be integers, such as int32, not {dtype}.")


def drawing_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype that random numbers of a dtype are drawn in, before they are rounded.

    16 bits hold a few hundred different uniform numbers, and normal ones from these
    would end below 3.
    """
    return FLOAT_DTYPE if _is_half(dtype) else dtype


def largest_below(high: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The largest number of a dtype that is below `high`."""
    rounded = high.astype(dtype)
    if rounded.astype(high.dtype) < high:
        return rounded
    return np.nextafter(rounded, np.asarray(-np.inf, dtype))
