"""How wide, how far apart and how padded the windows over each axis of space are."""

from collections.abc import Sequence
from typing import Any

Pads = tuple[tuple[int, int], ...]
# "same", "valid", one number, or a number or a pair for each axis.
Padding = str | int | Sequence[int | Sequence[int]]


def per_axis(
    op: str, name: str, value: int | Sequence[int], axes: int, *, least: int = 1
) -> tuple[int, ...]:
    """One number for each axis of space.

    Args:
        op: whose attribute it is, for the error.
        name: the attribute's name, for the error.
        value: a number for all axes, or one for each.
        axes: how many there are.
        least: the smallest that means something.

    Raises:
        ValueError: another number of them, or too small ones.
    """
    many = (value,) * axes if isinstance(value, int) else tuple(value)
    if len(many) != axes or any(one < least for one in many):
        wanted = "number" if axes == 1 else f"number, or {axes} numbers,"
        raise ValueError(
            f"{op}: {name} must be a {wanted} of at least {least}, not {value!r}."
        )
    return many


def pads(
    op: str,
    padding: Padding,
    space: Sequence[Any],
    window: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> Pads:
    """Zeros before and after each axis of space.

    Args:
        op: whose attribute it is, for the error.
        padding: "same" gives ceil(size / stride) windows, an odd zero at the end, as in
            XLA and Keras; "valid" is 0; else how many, for all axes or for each.
        space: sizes of the data.
        window: sizes of the windows.
        stride: steps between windows.
        dilation: steps within a window.

    Raises:
        ValueError: none of these, or windows that do not fit into the data.
    """
    axes = len(space)
    reach = [step * (size - 1) + 1 for size, step in zip(window, dilation, strict=True)]
    if padding == "same":
        sizes = zip(space, reach, stride, strict=True)
        return tuple(_split(_missing(*sizes_of_one)) for sizes_of_one in sizes)
    if padding == "valid":
        given: Pads = ((0, 0),) * axes
    elif isinstance(padding, int):
        given = ((padding, padding),) * axes
    elif not isinstance(padding, str) and len(padding) == axes:
        given = tuple((p, p) if isinstance(p, int) else _pair(p) for p in padding)
    else:
        given = ()
    if len(given) != axes or any(p < 0 for pair in given for p in pair):
        raise ValueError(
            f'{op}: padding must be "same", "valid", a number, or a number or a pair '
            f"of numbers for each of {axes} axes, none below 0; not {padding!r}."
        )
    for axis, size in enumerate(space):
        if isinstance(size, int) and size + sum(given[axis]) < reach[axis]:
            raise ValueError(
                f"{op}: a window of {reach[axis]} does not fit into axis {axis} of "
                f'space, {size} with padding {given[axis]}; padding="same" makes it.'
            )
    return given


def _missing(size: Any, reach: int, stride: int) -> int:
    # With a stride of 1 the size does not matter: so it may be unknown.
    if stride == 1:
        return reach - 1
    return max((-(-size // stride) - 1) * stride + reach - size, 0)


def _split(total: int) -> tuple[int, int]:
    return total // 2, total - total // 2


def _pair(pair: Sequence[int]) -> tuple[int, int]:
    low, high = pair if len(pair) == 2 else (-1, -1)  # refused with the others
    return low, high
