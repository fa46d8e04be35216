"""The same numbers in another shape, and new ones by shape alone."""

import math
from collections.abc import Sequence
from typing import Any

from ._table import op

Axis = int | Sequence[int] | None

# --- reordering -------------------------------------------------------------------


@op()
def identity(xp: Any, input: Any) -> Any:
    """The input itself."""
    return input


@op(promote="same")
def reshape(xp: Any, input: Any, *, shape: Sequence[int]) -> Any:
    """The same entries, last axis fastest; one length may be -1."""
    return xp.reshape(input, shape)


@op(promote="same")
def flatten(xp: Any, input: Any, *, start: int = 0, stop: int | None = None) -> Any:
    """The axes start:stop as one; a 0-d array gets one axis."""
    shape = tuple(input.shape)
    axes = range(len(shape))[start:stop]
    if not axes:
        return xp.reshape(input, (*shape, 1)) if not shape else input
    joined = math.prod(shape[axes[0] : axes[-1] + 1])
    return xp.reshape(input, (*shape[: axes[0]], joined, *shape[axes[-1] + 1 :]))


@op(promote="same")
def unflatten(xp: Any, input: Any, *, sizes: Sequence[int], axis: int = -1) -> Any:
    """One axis as several, the last of them fastest; one size may be -1.

    Raises:
        ValueError: the sizes do not make up the axis.
    """
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
def transpose(xp: Any, input: Any, *, axes: Sequence[int] | None = None) -> Any:
    """The axes in the given order; reversed if None."""
    return xp.transpose(input, axes)


@op(promote="same")
def swapaxes(xp: Any, input: Any, *, axis1: int = -2, axis2: int = -1) -> Any:
    """Two axes exchanged."""
    return xp.swapaxes(input, axis1, axis2)


@op(promote="same")
def moveaxis(
    xp: Any,
    input: Any,
    *,
    source: int | Sequence[int],
    destination: int | Sequence[int],
) -> Any:
    """One axis, or several, moved elsewhere."""
    return xp.moveaxis(input, source, destination)


@op(promote="same")
def squeeze(xp: Any, input: Any, *, axis: Axis = None) -> Any:
    """Without axes of length 1: the given ones, or all."""
    return xp.squeeze(input, axis)


@op(promote="same")
def expand_dims(xp: Any, input: Any, *, axis: int | Sequence[int]) -> Any:
    """With new axes of length 1 at these places of the result."""
    return xp.expand_dims(input, axis)


@op(promote="same")
def broadcast_to(xp: Any, input: Any, *, shape: Sequence[int]) -> Any:
    """Repeated along axes of length 1; a length of -1 keeps the input's."""
    shape = tuple(shape)
    own = (*((1,) * (len(shape) - input.ndim)), *input.shape)
    return xp.broadcast_to(
        input, tuple(o if s == -1 else s for s, o in zip(shape, own, strict=True))
    )


# --- joining and parting ----------------------------------------------------------


@op(promote="same")
def concat(xp: Any, *inputs: Any, axis: int = 0) -> Any:
    """Joined along an axis that is there."""
    return xp.concat(inputs, axis)


@op(promote="same")
def stack(xp: Any, *inputs: Any, axis: int = 0) -> Any:
    """Joined along a new axis."""
    return xp.stack(inputs, axis)


@op(promote="same")
def split(
    xp: Any,
    input: Any,
    *,
    sections: int | Sequence[int],
    index: int | None = None,
    axis: int = 0,
) -> Any:
    """Piece number `index` of `sections`, or all as a tuple; in a model give `index`.

    `sections` is a number of equal pieces, or the tuple of their lengths.

    Raises:
        ValueError: the sections do not add up to the axis.
    """
    axis = axis % input.ndim
    length = input.shape[axis]
    if isinstance(sections, int):
        if sections < 1 or length % sections != 0:
            raise ValueError(
                f"split: {length} entries along axis {axis} do not part into "
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
    wanted = range(len(lengths)) if index is None else [range(len(lengths))[index]]
    pieces = tuple(
        xp.getitem(
            input, (slice(None),) * axis + (slice(ends[i] - lengths[i], ends[i]),)
        )
        for i in wanted
    )
    return pieces if index is None else pieces[0]


@op(promote="same")
def flip(xp: Any, input: Any, *, axis: Axis = None) -> Any:
    """In reverse order along the axes, or all."""
    return xp.flip(input, axis)


@op(promote="same")
def roll(xp: Any, input: Any, *, shift: int | Sequence[int], axis: Axis = None) -> Any:
    """Shifted in a ring; the flattened array if axis is None."""
    return xp.roll(input, shift, axis)


@op(promote="same")
def tile(xp: Any, input: Any, *, reps: int | Sequence[int]) -> Any:
    """The whole array, over and over along each axis."""
    return xp.tile(input, reps)


@op(promote="same")
def repeat(xp: Any, input: Any, *, repeats: int, axis: int | None = None) -> Any:
    """Each entry over and over along an axis; of the flattened array if None."""
    return xp.repeat(input, repeats, axis)


@op(promote="same")
def pad(
    xp: Any,
    input: Any,
    *,
    widths: Sequence[Sequence[int]],
    mode: str = "constant",
    value: float = 0,
) -> Any:
    """More entries around: `widths` has a pair (before, after) for each axis.

    mode: "constant" (`value`), "edge" (the last entry), "reflect" (mirrored about the
    last entry) or "symmetric" (mirrored, the last entry twice).

    Raises:
        ValueError: the mode is unknown, or the widths do not fit the input.
    """
    if mode not in ("constant", "edge", "reflect", "symmetric"):
        raise ValueError(
            f"pad: mode must be constant, edge, reflect or symmetric, got {mode!r}."
        )
    widths = tuple(tuple(pair) for pair in widths)
    if len(widths) != input.ndim or any(len(pair) != 2 for pair in widths):
        raise ValueError(
            f"pad: widths={widths} must hold one pair for each of {input.ndim} axes."
        )
    if any(w < 0 for pair in widths for w in pair):
        raise ValueError(f"pad: widths={widths} must not be negative.")
    return xp.pad(input, widths, mode, value)


# --- creation ---------------------------------------------------------------------


@op()
def zeros_like(xp: Any, input: Any, *, dtype: str | None = None) -> Any:
    """Zeros in the input's shape."""
    return xp.zeros(input.shape, dtype or xp.dtype_of(input), like=input)


@op()
def ones_like(xp: Any, input: Any, *, dtype: str | None = None) -> Any:
    """Ones in the input's shape."""
    return xp.ones(input.shape, dtype or xp.dtype_of(input), like=input)


@op()
def full_like(xp: Any, input: Any, *, value: float, dtype: str | None = None) -> Any:
    """One value in the input's shape."""
    return xp.full(input.shape, value, dtype or xp.dtype_of(input), like=input)


@op()
def zeros(xp: Any, *, shape: Sequence[int], dtype: str | None = None) -> Any:
    """Zeros, of the backend's dtype if none is given."""
    return xp.zeros(shape, dtype)


@op()
def ones(xp: Any, *, shape: Sequence[int], dtype: str | None = None) -> Any:
    """Ones, of the backend's dtype if none is given."""
    return xp.ones(shape, dtype)


@op()
def full(
    xp: Any, *, shape: Sequence[int], value: float, dtype: str | None = None
) -> Any:
    """One value in a shape; an int gives int32, a float the backend's dtype."""
    return xp.full(shape, value, dtype)


@op()
def arange(
    xp: Any, *, start: float = 0, stop: float, step: float = 1, dtype: str | None = None
) -> Any:
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
) -> Any:
    """Ones on the k-th diagonal, 0 elsewhere."""
    return xp.eye(rows, columns, k, dtype)


# --- dtypes and gradients ---------------------------------------------------------


@op()
def cast(xp: Any, input: Any, *, dtype: str) -> Any:
    """The same values in another dtype; fractions are cut off for an integer."""
    return xp.cast(input, dtype)


@op()
def stop_gradient(xp: Any, input: Any) -> Any:
    """The input itself, constant for differentiation."""
    return xp.stop_gradient(input)
