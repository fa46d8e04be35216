"""Validate the arguments of `frugax.causal`; format names for error messages."""

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np


def check_whole(name: str, value: Any, least: int) -> None:
    """Raise unless an argument is an integer of at least `least`."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or value < least:
        raise ValueError(f"{name} must be a whole number >= {least}, got {value!r}.")


def check_real(name: str, value: Any, *, zero: bool = False) -> None:
    """Raise unless an argument is a finite number above 0."""
    real = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not real or not 0 <= value < math.inf or not (zero or value > 0):
        bound = ">= 0" if zero else "> 0"
        raise ValueError(f"{name} must be {bound} and finite, got {value!r}.")


def check_kind(name: str, value: Any, kind: type, hint: str = "") -> None:
    """Raise unless an argument is an instance of a class."""
    if not isinstance(value, kind):
        hint = hint and f": {hint}"
        raise TypeError(f"{name} must be of {kind.__name__}, got {value!r:.80}{hint}.")


def count_and_names(names: Sequence[str], most: int = 8) -> str:
    """Format variables as `3 variables a, b, c`, with at most `most` names."""
    plural = "s" if len(names) != 1 else ""
    more = ", ..." if len(names) > most else ""
    return f"{len(names)} variable{plural} {', '.join(names[:most])}{more}"
