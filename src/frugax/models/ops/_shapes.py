"""Ops that reshape, join and split arrays, and ops that create new ones."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Shaped

from ._table import op

Array = Shaped[Any, "*shape"]
Reshaped = Shaped[Any, "*new_shape"]
Axis = int | Sequence[int] | None

# --- reordering -------------------------------------------------------------------


@op()
def identity(xp: Any, input: Array) -> Array:
    """The input itself."""
    return input


@op()
def shape(xp: Any, input: Array) -> Reshaped:
    """The lengths of the axes, as integers."""
    return xp.lengths(input.shape)


@op()
def size(xp: Any, input: Array, *, axis: Axis = None) -> Reshaped:
    """The number of entries, or the length of axes multiplied, as an integer."""
    axes: Any = range(input.ndim) if axis is None else axis
    if isinstance(axes, int):
        axes = (axes,)
    return xp.lengths((math.prod(input.shape[a] for a in axes),))[0]


@op(promote="same")
def reshape(xp: Any, input: Array, *, shape: Sequence[int]) -> Reshaped:
    """The same entries, last axis fastest; one length may be -1."""
    return xp.reshape(input, shape)


@op(promote="same")
def flatten(
    xp: Any, input: Array, *, start: int = 0, stop: int | None = None
) -> Reshaped:
    """Merge the axes start:stop into one; a 0-d array gets one axis."""
    shape = tuple(input.shape)
    # Slicing a range resolves negative and missing bounds as Python does.
    axes = range(len(shape))[start:stop]
    if not axes:
        if shape:
            return input
        return xp.reshape(input, (1,))
    joined = math.prod(shape[axes[0] : axes[-1] + 1])
    return xp.reshape(input, (*shape[: axes[0]], joined, *shape[axes[-1] + 1 :]))


@op(promote="same")
def unflatten(
    xp: Any, input: Array, *, sizes: Sequence[int], axis: int = -1
) -> Reshaped:
    """Split one axis into several, the last of them fastest; one size may be -1."""
    shape = tuple(input.shape)
    at = axis % len(shape)
    known = math.prod(size for size in sizes if size != -1)
    if (
        tuple(sizes).count(-1) > 1
        or shape[at] % max(known, 1)
        or (-1 not in sizes and known != shape[at])
    ):
        raise ValueError(
            f"unflatten: axis {axis} of length {shape[at]} cannot be {tuple(sizes)}."
        )
    full = (shape[at] // max(known, 1) if n == -1 else n for n in sizes)
    return xp.reshape(input, (*shape[:at], *full, *shape[at + 1 :]))


@op(promote="same")
def transpose(xp: Any, input: Array, *, axes: Sequence[int] | None = None) -> Reshaped:
    """The axes in the given order; reversed if None."""
    return xp.transpose(input, axes)


@op(promote="same")
def swapaxes(xp: Any, input: Array, *, axis1: int = -2, axis2: int = -1) -> Reshaped:
    """Swap two axes."""
    return xp.swapaxes(input, axis1, axis2)


@op(promote="same")
def moveaxis(
    xp: Any,
    input: Array,
    *,
    source: int | Sequence[int],
    destination: int | Sequence[int],
) -> Reshaped:
    """Move one axis or several."""
    return xp.moveaxis(input, source, destination)


@op(promote="same")
def squeeze(xp: Any, input: Array, *, axis: Axis = None) -> Reshaped:
    """Remove axes of length 1: the given ones, or all."""
    return xp.squeeze(input, axis)


@op(promote="same")
def expand_dims(xp: Any, input: Array, *, axis: int | Sequence[int]) -> Reshaped:
    """Add axes of length 1 at these places of the result."""
    return xp.expand_dims(input, axis)


@op(promote="same")
def broadcast_to(xp: Any, input: Array, *, shape: Sequence[int]) -> Reshaped:
    """Repeat along axes of length 1; a length of -1 keeps that of the input."""
    shape = tuple(shape)
    own = (*((1,) * (len(shape) - input.ndim)), *input.shape)
    return xp.broadcast_to(
        input, tuple(o if s == -1 else s for s, o in zip(shape, own, strict=True))
    )


# --- joining and splitting ----------------------------------------------------------


@op(promote="same")
def concat(xp: Any, *inputs: Array, axis: int | None = 0) -> Reshaped:
    """Join along an existing axis, or flattened for None."""
    if axis is None:
        inputs, axis = tuple(xp.reshape(x, (-1,)) for x in inputs), 0
    return xp.concat(inputs, axis)


@op(promote="same")
def stack(xp: Any, *inputs: Array, axis: int = 0) -> Reshaped:
    """Join along a new axis."""
    return xp.stack(inputs, axis)


@op(promote="same")
def split(
    xp: Any,
    input: Array,
    *,
    sections: int | Sequence[int],
    axis: int = 0,
    index: int | None = None,
) -> Reshaped:
    """Piece number `index`, or all pieces as a tuple; a model must give `index`.

    `sections` is the number of equal pieces, or the tuple of their lengths.

    Raises:
        ValueError: the sections do not add up to the axis.
    """
    axis = axis % input.ndim
    length = input.shape[axis]
    if isinstance(sections, int):
        if sections < 1 or length % sections != 0:
            raise ValueError(
                f"split: {length} entries along axis {axis} do not split into "
                f"{sections!r} equal pieces."
            )
        lengths = (length // sections,) * sections
    else:
        lengths = tuple(sections)
        if sum(lengths) != length:
            raise ValueError(
                f"split: sections={lengths} do not add up to the {length} entries "
                f"along axis {axis}."
            )
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    # Only the pieces that are wanted are cut: the others would stay in the traced
    # program.
    numbers: Sequence[int] = range(len(lengths))
    if index is not None:
        numbers = [numbers[index]]
    pieces = tuple(
        xp.getitem(
            input, (slice(None),) * axis + (slice(ends[i] - lengths[i], ends[i]),)
        )
        for i in numbers
    )
    if index is None:
        return pieces
    return pieces[0]


@op(promote="same")
def flip(xp: Any, input: Array, *, axis: Axis = None) -> Array:
    """Reverse the order along the axes, or along all."""
    return xp.flip(input, axis)


@op(promote="same")
def roll(
    xp: Any, input: Array, *, shift: int | Sequence[int], axis: Axis = None
) -> Reshaped:
    """Shift in a ring; the flattened array if axis is None."""
    return xp.roll(input, shift, axis)


@op(promote="same")
def tile(xp: Any, input: Array, *, reps: int | Sequence[int]) -> Reshaped:
    """Repeat the whole array along each axis."""
    return xp.tile(input, reps)


@op(promote="same")
def repeat(
    xp: Any, input: Array, *, repeats: int | Sequence[int], axis: int | None = None
) -> Reshaped:
    """Repeat each entry along an axis, or of the flattened array for None.

    `repeats` is one number, or a number for each entry.
    """
    if isinstance(repeats, (list, tuple)):
        at = np.repeat(np.arange(len(repeats)), repeats)
        return xp.take(input, xp.asarray(at), axis)
    return xp.repeat(input, repeats, axis)


@op(promote="same")
def pad(
    xp: Any,
    input: Array,
    *,
    widths: int | Sequence[int] | Sequence[Sequence[int]],
    mode: str = "constant",
    value: float = 0,
) -> Reshaped:
    """Pad around: `widths` has a pair (before, after) for each axis, or for all.

    Modes are "constant" (`value`), "edge" (the last entry), "reflect" (mirrored at the
    last entry) and "symmetric" (mirrored, with the last entry twice).

    Raises:
        ValueError: the mode is unknown, or the widths do not fit the input.
    """
    if mode not in ("constant", "edge", "reflect", "symmetric"):
        raise ValueError(
            f"pad: mode must be constant, edge, reflect or symmetric, got {mode!r}."
        )
    ends: Any = (widths,) if isinstance(widths, int) else widths
    if len(ends) in (1, 2) and all(isinstance(w, int) for w in ends):
        ends = ((ends[0], ends[-1]),) * input.ndim
    widths = tuple(tuple(pair) for pair in ends)
    if len(widths) != input.ndim or any(len(pair) != 2 for pair in widths):
        raise ValueError(
            f"pad: widths={widths} must hold one pair for each of {input.ndim} axes."
        )
    if any(w < 0 for pair in widths for w in pair):
        raise ValueError(f"pad: widths={widths} must not be negative.")
    return xp.pad(input, widths, mode, value)


# --- creation ---------------------------------------------------------------------


@op()
def zeros_like(xp: Any, input: Array, *, dtype: str | None = None) -> Array:
    """Zeros in the input's shape."""
    return xp.zeros(input.shape, dtype or xp.dtype_of(input), like=input)


@op()
def ones_like(xp: Any, input: Array, *, dtype: str | None = None) -> Array:
    """Ones in the input's shape."""
    return xp.ones(input.shape, dtype or xp.dtype_of(input), like=input)


@op()
def full_like(
    xp: Any, input: Array, *, value: float, dtype: str | None = None
) -> Array:
    """One value in the input's shape."""
    return xp.full(input.shape, value, dtype or xp.dtype_of(input), like=input)


@op()
def zeros(xp: Any, *, shape: Sequence[int], dtype: str | None = None) -> Reshaped:
    """Zeros, of the backend's dtype if none is given."""
    return xp.zeros(shape, dtype)


@op()
def ones(xp: Any, *, shape: Sequence[int], dtype: str | None = None) -> Reshaped:
    """Ones, of the backend's dtype if none is given."""
    return xp.ones(shape, dtype)


@op()
def full(
    xp: Any, *, shape: Sequence[int], value: float, dtype: str | None = None
) -> Reshaped:
    """One value in a shape; an int gives int32, a float the backend's dtype."""
    return xp.full(shape, value, dtype)


@op()
def arange(
    xp: Any, *, start: float = 0, stop: float, step: float = 1, dtype: str | None = None
) -> Reshaped:
    """start, start + step, ... below stop; int32 if all are integers."""
    return xp.arange(start, stop, step, dtype)


@op()
def eye(
    xp: Any,
    *,
    rows: int,
    columns: int | None = None,
    k: int = 0,
    dtype: str | None = None,
) -> Reshaped:
    """Ones on the k-th diagonal, 0 elsewhere."""
    return xp.eye(rows, columns, k, dtype)


# --- dtypes and gradients ---------------------------------------------------------


@op()
def cast(xp: Any, input: Array, *, dtype: str | None = None) -> Array:
    """The same values in another dtype, the backend's if none is given.

    Fractions are cut off for an integer.
    """
    return xp.cast(input, dtype or xp.float_dtype)


@op()
def stop_gradient(xp: Any, input: Array) -> Array:
    """The input itself, constant for differentiation."""
    return xp.stop_gradient(input)
