"""`Weight`: a layer's declaration of an array by its shape and initial values."""

import dataclasses
from typing import Any, Literal


@dataclasses.dataclass(frozen=True, slots=True)
class Fill:
    """Initialise with one value everywhere."""

    value: float


@dataclasses.dataclass(frozen=True, slots=True)
class Normal:
    """Initialise with normal random numbers of mean 0 and this standard deviation."""

    std: float


@dataclasses.dataclass(frozen=True, slots=True)
class Uniform:
    """Initialise with uniform random numbers in [low, high)."""

    low: float
    high: float


Init = Fill | Normal | Uniform


@dataclasses.dataclass(frozen=True, slots=True)
class Weight:
    """One array that a layer owns.

    Attributes:
        shape: its shape; all lengths are known.
        init: its initial values.
        kind: `"param"` is trained; `"state"` goes in with the data and comes out
            updated, such as the running mean of a batch norm.
    """

    shape: tuple[int, ...]
    init: Init
    kind: Literal["param", "state"] = "param"


def require_static(length: Any) -> int:
    """A dimension that must be an int, because the shape of a weight depends on it."""
    if isinstance(length, int):
        return length
    raise ValueError(
        f"a weight's shape depends on the dimension {length}, which is free: state its "
        "length in `shapes`"
    )
