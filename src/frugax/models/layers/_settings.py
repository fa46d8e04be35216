"""What the settings of layers may be; each check says what it got and what is allowed.

Called from `__post_init__`, so a wrong setting is found where it is written.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from frugax.models.graph import Layer


def check_integer(layer: Layer, *names: str, least: int = 1) -> None:
    """That settings are whole numbers, or None.

    Args:
        layer: whose they are.
        names: which.
        least: the smallest that means something.

    Raises:
        ValueError: one is too small.
        TypeError: one is no whole number.
    """
    for name in names:
        value = getattr(layer, name)
        if isinstance(value, np.integer):
            object.__setattr__(layer, name, value := int(value))
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(
                f"{_of(layer, name)} must be a whole number, got {value!r:.60}."
            )
        if value < least:
            raise ValueError(f"{_of(layer, name)} must be >= {least}, got {value}.")


def check_sizes(layer: Layer, *names: str, axes: int, least: int = 1) -> None:
    """That settings are one whole number, or one for each axis of space; or None.

    Args:
        layer: whose they are.
        names: which.
        axes: how many axes of space there are.
        least: the smallest that means something.

    Raises:
        ValueError: there are as many as neither of these, or one is too small.
    """
    for name in names:
        value = getattr(layer, name)
        many = value if isinstance(value, tuple) else (value,) * axes
        fine = all(isinstance(n, int) and not isinstance(n, bool) for n in many)
        if value is not None and (
            len(many) != axes or not fine or any(n < least for n in many)
        ):
            count = "" if axes == 1 else f" or {axes} of them"
            raise ValueError(
                f"{_of(layer, name)} must be a whole number >= {least}{count}, "
                f"got {value!r:.60}."
            )


def check_padding(layer: Layer, axes: int) -> None:
    """That the setting `padding` is one that the ops know; lists in it become tuples.

    Args:
        layer: whose it is.
        axes: how many axes of space there are.

    Raises:
        ValueError: it is not.
    """
    value: Any = getattr(layer, "padding")  # noqa: B009 - not every layer has it
    if isinstance(value, Sequence) and not isinstance(value, str):
        pairs = [p if isinstance(p, int) else tuple(p) for p in value]
        object.__setattr__(layer, "padding", value := tuple(pairs))
        numbers = [n for p in value for n in (p if isinstance(p, tuple) else (p,))]
        known = len(value) == axes and all(isinstance(n, int) for n in numbers)
        fine = known and min(numbers) >= 0
    elif isinstance(value, int):
        fine = value >= 0
    else:
        fine = value in ("same", "valid")
    if not fine:
        raise ValueError(
            f'{_of(layer, "padding")} must be "same", "valid", a whole number >= 0, or '
            f"a number or a pair (before, after) for each of {axes} axes, got "
            f"{value!r:.60}."
        )


def check_fraction(layer: Layer, *names: str) -> None:
    """That settings are in [0, 1].

    Args:
        layer: whose they are.
        names: which.

    Raises:
        ValueError: one is not.
    """
    for name in names:
        value = getattr(layer, name)
        if not 0 <= value <= 1:
            raise ValueError(f"{_of(layer, name)} must be in [0, 1], got {value!r}.")


def check_positive(layer: Layer, *names: str) -> None:
    """That settings are > 0.

    Args:
        layer: whose they are.
        names: which.

    Raises:
        ValueError: one is not.
    """
    for name in names:
        value = getattr(layer, name)
        if not value > 0:
            raise ValueError(f"{_of(layer, name)} must be > 0, got {value!r}.")


def check_choice(layer: Layer, name: str, allowed: Sequence[str]) -> None:
    """That a setting is one of a few words.

    Args:
        layer: whose it is.
        name: which.
        allowed: the words.

    Raises:
        ValueError: it is not.
    """
    value = getattr(layer, name)
    if value not in allowed:
        words = ", ".join(map(repr, allowed))
        raise ValueError(f"{_of(layer, name)} must be one of {words}, got {value!r}.")


def check_divides(layer: Layer, name: str, of: str) -> None:
    """That one setting divides another.

    Args:
        layer: whose they are.
        name: the divisor.
        of: what it must divide.

    Raises:
        ValueError: it does not.
    """
    part, total = getattr(layer, name), getattr(layer, of)
    if part is not None and total is not None and total % part:
        near = [n for n in range(1, total + 1) if total % n == 0]
        near.sort(key=lambda n: abs(n - part))
        close = ", ".join(map(str, sorted(near[:4])))
        raise ValueError(
            f"{_of(layer, name)}={part} does not divide {of}={total}; of the numbers "
            f"that do, {close} are the closest."
        )


def _of(layer: Layer, name: str) -> str:
    return f"{type(layer).__name__}.{name}"
