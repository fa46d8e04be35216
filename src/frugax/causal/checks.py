"""Whether what a caller gives is of its kind and range; the message has its name."""

import math
from numbers import Integral
from typing import Any

import numpy as np


def check_whole(name: str, value: Any, least: int) -> None:
    """Refuse what is no whole number, or too small a one.

    Raises:
        ValueError: it is text, a truth value, has decimals or is below `least`.
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or value < least:
        raise ValueError(f"{name} must be a whole number >= {least}, got {value!r}.")


def check_real(name: str, value: Any, *, zero: bool = False) -> None:
    """Refuse what is no finite number above 0.

    Args:
        name: of the argument.
        value: what was given for it.
        zero: whether it may be 0.

    Raises:
        ValueError: it is text, a truth value, not finite, negative, or 0 and may not.
    """
    real = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not real or not 0 <= value < math.inf or not (zero or value > 0):
        sign = ">=" if zero else ">"
        raise ValueError(f"{name} must be {sign} 0 and finite, got {value!r}.")


def check_kind(name: str, value: Any, kind: type, way: str = "") -> None:
    """Refuse what is not of a class.

    Args:
        name: of the argument.
        value: what was given for it.
        kind: the class.
        way: how one is made.

    Raises:
        TypeError: it is of another.
    """
    if not isinstance(value, kind):
        way = f": {way}" if way else ""
        raise TypeError(f"{name} must be of {kind.__name__}, got {value!r:.80}{way}.")
