"""Ops that index, sort and scatter, written once for any backend's array functions.

Indices count from 0, negative ones from the end. A compiled program cannot raise, so an
index out of range reads NaN (of integers the smallest number), and scatters nothing.
"""

import math
from typing import Any

from ._table import op


@op(promote="same")
def getitem(xp: Any, input: Any, *, index: Any) -> Any:
    """`input`[index], where the index is written as plain values.

    `index` is a tuple of integers, None (a new axis), "..." and
    ("slice", start, stop, step).

    Raises:
        IndexError: an axis of known length has no such entry.
    """
    # Attributes are plain values, because models are saved as JSON, which has no
    # slices.
    key = _key(index)
    places = [entry for entry in key if entry is not None]
    if ... in places:
        at = places.index(...)
        places[at : at + 1] = [slice(None)] * (input.ndim - len(places) + 1)
    for axis, (entry, length) in enumerate(zip(places, input.shape, strict=False)):
        # JAX would read NaN there. A free length is not a number to compare with.
        is_known = isinstance(entry, int) and isinstance(length, int)
        if is_known and not -length <= entry < length:
            raise IndexError(
                f"getitem: axis {axis} has {length} entries and not one at {entry}."
            )
    return xp.getitem(input, key)


def _key(index: Any) -> tuple[Any, ...]:
    """The index with Python's slices and ellipses."""
    entries = index if isinstance(index, (tuple, list)) else (index,)
    # One slice may stand by itself, without a tuple around it.
    if len(entries) == 4 and entries[0] == "slice":
        entries = (entries,)
    key: list[Any] = []
    for entry in entries:
        # JSON gives tuples back as lists.
        if isinstance(entry, (tuple, list)) and entry[:1] in (("slice",), ["slice"]):
            key.append(slice(*entry[1:]))
        elif entry == "...":
            key.append(...)
        elif entry is None or isinstance(entry, int):
            key.append(entry)
        else:
            raise ValueError(
                f'getitem: index entry {entry!r} is not an integer, None, "..." or '
                '("slice", start, stop, step).'
            )
    return tuple(key)


@op()
def index_by_arrays(xp: Any, input: Any, *indices: Any, index: Any) -> Any:
    """`input`[index] as NumPy's, where ("array", i) in `index` stands for indices[i].

    An index out of range reads NaN, as in `take`.

    Raises:
        ValueError: the index has more entries than the input has axes.
    """
    (input,), indices = xp.promote((input,)), _promote_indices(xp, indices)
    entries = list(index)
    taken = sum(e is not None and e != "..." for e in entries)
    if taken > input.ndim:
        raise ValueError(
            f"an index of {taken} entries is too long for {input.ndim} axes."
        )
    at = entries.index("...") if "..." in entries else len(entries)
    whole = ("slice", None, None, None)
    entries[at : at + 1] = [whole] * (input.ndim - taken)
    # Slices and new axes first: one array or integer for some axes is left.
    is_array = lambda e: isinstance(e, int) or (e is not None and e[0] == "array")
    basic = [whole if is_array(e) else e for e in entries]
    x = xp.getitem(input, _key(tuple(basic)))
    axes = [i for i, e in enumerate(entries) if is_array(e)]
    picked = [e if isinstance(e := entries[i], int) else indices[e[1]] for i in axes]
    # One number for a place along all these axes, beyond the end if one is outside.
    total = math.prod(x.shape[a] for a in axes)
    place, outside = xp.asarray(0, xp.int_dtype), xp.asarray(False)
    for axis, i in zip(axes, picked, strict=True):
        n = x.shape[axis]
        i = xp.cast(xp.asarray(i), xp.int_dtype)
        outside = xp.logical_or(
            outside, xp.logical_or(xp.less(i, -n), xp.less(n - 1, i))
        )
        place = xp.add(xp.multiply(place, n), xp.where(xp.less(i, 0), xp.add(i, n), i))
    place = xp.where(outside, total, place)
    x = xp.moveaxis(x, axes, tuple(range(len(axes))))
    x = xp.take(xp.reshape(x, (total, *x.shape[len(axes) :])), place, 0, "fill")
    # NumPy: the axes of the indices stand first, unless the indices are neighbours.
    if axes[-1] - axes[0] == len(axes) - 1:
        ahead = tuple(range(place.ndim))
        x = xp.moveaxis(x, ahead, tuple(axes[0] + i for i in ahead))
    return x


def _promote_indices(xp: Any, indices: Any) -> Any:
    """Indices as arrays of integers, since 0 and 1 are not meant by a mask."""
    found = xp.promote(indices)
    if any(xp.dtype_of(i).kind == "b" for i in found):
        raise ValueError(
            "an index is a mask of booleans, with which the shape would depend on the "
            'data; use op("where").'
        )
    return found


@op()
def take(
    xp: Any, input: Any, indices: Any, *, axis: int | None = None, mode: str = "fill"
) -> Any:
    """Entries at `indices` along an axis, or of the flattened array for None.

    Mode "fill" reads NaN for an index out of range; "clip" takes the nearest index,
    which is 0 for a negative one.

    Raises:
        ValueError: there is no such mode.
    """
    if mode not in ("fill", "clip"):
        raise ValueError(f"take: mode must be fill or clip, got {mode!r}.")
    # Promoted apart: the dtype of the indices must not widen that of the entries.
    (input,), (indices,) = xp.promote((input,)), _promote_indices(xp, (indices,))
    return xp.take(input, indices, axis, mode)


@op()
def take_along_axis(xp: Any, input: Any, indices: Any, *, axis: int = -1) -> Any:
    """One entry along the axis for each index; the other axes are matched."""
    (input,), (indices,) = xp.promote((input,)), xp.promote((indices,))
    return xp.take_along_axis(input, indices, axis)


@op()
def scatter_add(
    xp: Any, input: Any, indices: Any, updates: Any, *, axis: int = 0
) -> Any:
    """Add slices of `updates` at 1-d `indices` along the axis; repeats add up."""
    (indices,) = xp.promote((indices,))
    input, updates = xp.promote((input, updates))
    if indices.ndim != 1:
        raise ValueError(
            f"scatter_add: indices must have one axis, got shape {indices.shape}."
        )
    return xp.scatter_add(input, indices, updates, axis)


@op(promote="same")
def one_hot(
    xp: Any, input: Any, *, classes: int, axis: int = -1, dtype: str | None = None
) -> Any:
    """1 at the index and 0 elsewhere, on a new axis; all 0 if out of range."""
    # A comparison and not a scatter, so an index out of range is all 0 by itself.
    hot = xp.equal(
        xp.expand_dims(input, -1),
        xp.arange(classes, dtype=xp.dtype_of(input), like=input),
    )
    hot = xp.cast(hot, dtype or xp.float_dtype)
    if axis == -1:
        return hot
    return xp.moveaxis(hot, -1, axis)


@op(promote="same")
def sort(
    xp: Any, input: Any, *, axis: int | None = -1, descending: bool = False
) -> Any:
    """Sort along an axis, or flattened for None; NaN counts as the largest."""
    if axis is None:
        input, axis = xp.reshape(input, (-1,)), 0
    return xp.sort(input, axis, descending=descending)


@op(promote="same")
def argsort(
    xp: Any, input: Any, *, axis: int | None = -1, descending: bool = False
) -> Any:
    """The indices that sort; equal entries keep their order."""
    if axis is None:
        input, axis = xp.reshape(input, (-1,)), 0
    return xp.argsort(input, axis, descending=descending)


@op(promote="same", outputs=("output", "indices"))
def top_k(xp: Any, input: Any, *, k: int) -> Any:
    """The k largest along the last axis, largest first, and where they are.

    Of equal ones the first comes first; NaN counts as the largest.
    """
    return xp.top_k(input, k)


@op(promote="same")
def tril(xp: Any, input: Any, *, k: int = 0) -> Any:
    """0 above the k-th diagonal of the last two axes."""
    return xp.tril(input, k)


@op(promote="same")
def triu(xp: Any, input: Any, *, k: int = 0) -> Any:
    """0 below the k-th diagonal of the last two axes."""
    return xp.triu(input, k)


@op(promote="same")
def diagonal(
    xp: Any, input: Any, *, offset: int = 0, axis1: int = 0, axis2: int = 1
) -> Any:
    """A diagonal of two axes, as the last axis."""
    return xp.diagonal(input, offset, axis1, axis2)
