"""Ranges and bounds as a user tells them: pairs of numbers, checked one by one."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

_MOST = float(np.finfo(np.float32).max)  # tables hold float32


def pairs_of(
    what: str, told: Any, *, half_open: bool = False
) -> dict[str, tuple[Any, Any]]:
    """A pair for each name.

    Args:
        what: the argument, for messages.
        told: what the user gave for it.
        half_open: whether an end may be None.

    Raises:
        TypeError: it is no mapping from names.
        ValueError: one of its values is no pair.
    """
    if not isinstance(told, Mapping) or not all(isinstance(n, str) for n in told):
        raise TypeError(
            f"{what} is a mapping from names to pairs, as {{'x': (0.0, 1.0)}}; got "
            f"{told!r:.80}."
        )
    found: dict[str, tuple[Any, Any]] = {}
    for name, pair in told.items():
        try:
            low, high = (_end(end, half_open=half_open) for end in pair)
        except (TypeError, ValueError):
            raise ValueError(
                f"{what}[{name!r}] must be a pair (least, greatest) of numbers, got "
                f"{pair!r:.80}."
            ) from None
        found[name] = low, high
    return found


def check_range(name: str, low: float, high: float) -> None:
    """Refuse a range that is none.

    Raises:
        ValueError: it is empty, infinite, or float32 cannot hold it.
    """
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(
            f"variables[{name!r}] must be a range (least, greatest), both finite, got "
            f"({low}, {high})."
        )
    if low >= high:
        why = "the wrong way round" if low > high else "of no width"
        raise ValueError(
            f"variables[{name!r}] must be a range (least, greatest), and ({low}, "
            f"{high}) is {why}."
        )
    if max(-low, high) > _MOST or np.float32(low) == np.float32(high):
        raise ValueError(
            f"variables[{name!r}] is ({low}, {high}), whose ends float32 cannot hold "
            "or tell apart: write it in another unit, or from another zero."
        )


def check_constraint(
    name: str,
    low: float | None,
    high: float | None,
    settable: tuple[float, float] | None,
) -> None:
    """Refuse a bound that is none, or that no experiment could keep.

    Args:
        name: the variable.
        low: what it must not be below.
        high: what it must not be above.
        settable: its range, if it may be set.

    Raises:
        ValueError: there is no finite bound, they exclude each other or the range.
    """
    bounds = [b for b in (low, high) if b is not None]
    if not bounds or not all(map(math.isfinite, bounds)):
        raise ValueError(
            f"constraints[{name!r}] needs a finite bound: (least, greatest), one of "
            "them None if need be."
        )
    if len(bounds) == 2 and bounds[0] > bounds[1]:
        raise ValueError(
            f"constraints[{name!r}] has its bounds the wrong way round: "
            f"({low}, {high})."
        )
    if settable is not None and (
        (low is not None and low > settable[1])
        or (high is not None and high < settable[0])
    ):
        raise ValueError(
            f"constraints[{name!r}] is ({low}, {high}), which no value of its range "
            f"{settable} keeps: change one of them."
        )


def _end(told: Any, *, half_open: bool) -> float | None:
    if told is None:
        if half_open:
            return None
        raise TypeError
    if isinstance(told, str | bool):
        raise TypeError
    return float(told)
