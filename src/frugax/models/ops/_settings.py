"""Types of attributes and settings whose values are checked where they are written.

A function in `Annotated` is called with the name of a setting and its value.
"""

import functools
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from frugax.options import check_integer, check_number

# One number for all axes of space, or one for each.
Sizes = int | Sequence[int]
# "same", "valid", one number, or a number or a pair for each axis.
Padding = str | int | Sequence[int | Sequence[int]]


def per_axis(
    name: str, value: Sizes, *, axes: int | None = None, least: int = 1
) -> tuple[int, ...]:
    """Expand a setting to one number for each axis of space.

    Args:
        name: of the setting, for errors.
        value: the setting.
        axes: how many there are; None: any number.
        least: the least that each may be.

    Raises:
        ValueError: it is something else.
    """
    numbers: tuple[Any, ...] = (value,) * (1 if axes is None else axes)
    if isinstance(value, (tuple, list)):
        numbers = tuple(value)
    # True is an int in Python, and as a size it is surely a mistake.
    valid = all(
        isinstance(n, int) and not isinstance(n, bool) and n >= least for n in numbers
    )
    if not valid or (axes is not None and len(numbers) != axes):
        count = f" or {axes or 'several'} of them" if axes != 1 else ""
        raise ValueError(
            f"{name} must be a whole number >= {least}{count}, got {value!r:.60}."
        )
    return numbers


def padding_pairs(
    name: str, padding: Padding, *, axes: int
) -> tuple[tuple[int, int], ...] | None:
    """Expand a padding to numbers before and after each axis; None for "same".

    Raises:
        ValueError: it is something else.
    """
    if padding == "same":
        return None
    each: Any = padding
    if padding == "valid":
        each = 0
    if not isinstance(each, (tuple, list)):
        each = (each,) * axes
    pairs = tuple(tuple(p) if isinstance(p, (tuple, list)) else (p, p) for p in each)
    valid = len(pairs) == axes and all(
        len(pair) == 2 and all(isinstance(n, int) and n >= 0 for n in pair)
        for pair in pairs
    )
    if not valid:
        raise ValueError(
            f'{name} must be "same", "valid", a whole number >= 0, or a number or a '
            f"pair (before, after) for each of {axes} axes, got {padding!r:.60}."
        )
    return pairs


def check_fraction(name: str, value: float) -> None:
    """Require a number in [0, 1]."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be in [0, 1], got {value!r}.")


def check_epsilon(name: str, value: float) -> None:
    """Require a number between 0 and 1."""
    check_number(name, value, above=0)
    if value >= 1:  # torch's LayerNorm(8), GroupNorm(4, 16)
        raise ValueError(
            f"{name} must be below 1, got {value!r}; the number of features is "
            "inferred and not given."
        )


Count = Annotated[int, check_integer]
Natural = Annotated[int, functools.partial(check_integer, minimum=0)]
Label = Annotated[int, functools.partial(check_integer, minimum=-(2**31))]
Fraction = Annotated[float, check_fraction]
NonNegative = Annotated[float, functools.partial(check_number, minimum=0)]
Positive = Annotated[float, functools.partial(check_number, above=0)]
Epsilon = Annotated[float, check_epsilon]
Reduction = Literal["mean", "sum", "none"]
