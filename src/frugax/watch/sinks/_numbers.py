"""What a record says in numbers, under the names that charts and other tools use."""

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from ._event import Event

# How watching itself goes comes in this stream: `overhead` and `budget` as shares of
# the running time, and `kept_CLASS` and `dropped_CLASS` as counts so far, where CLASS
# is summary, scalar or frame.
STATUS_STREAM = "watch"
Plain: TypeAlias = float | int | bool | str
CLASSES = ("summary", "scalar", "frame")


def tag(stream: str, name: str) -> str:
    """One name for a value of a stream; the training steps' own names stay bare."""
    if not stream or stream == name:
        return name
    return f"{stream}/{name}" if name else stream


def numbers(event: Event) -> dict[str, float]:
    """Every real number in a record that is no frame, by tag.

    An array, such as one value for each lane of a `vmap`, is its mean, least and most.
    """
    found: dict[str, float] = {}
    if event.kind == "frame":
        return found
    for name, value in event.values.items():
        if not is_real(value) or not value.size:
            continue
        key = tag(event.stream, name)
        if value.size == 1:
            found[key] = float(value.reshape(()))
        else:
            wide = value.astype(np.float64)
            found[f"{key}/mean"] = float(wide.mean())
            found[f"{key}/min"] = float(wide.min())
            found[f"{key}/max"] = float(wide.max())
    return found


def plain(value: np.ndarray) -> Plain:
    """A value of size 1 as Python has it; any other as its type and shape."""
    if value.size == 1:
        one = value.reshape(()).item()
        return one if isinstance(one, float | int | bool | str) else str(one)
    return f"{value.dtype} {value.shape}"


def is_real(value: np.ndarray) -> bool:
    """Whether it holds real numbers: also bfloat16, which NumPy does not know."""
    if value.dtype.kind in "biuf":
        return True
    return value.dtype.kind == "V" and np.can_cast(value.dtype, np.float32)


def dropped(status: Mapping[str, float]) -> dict[str, tuple[int, int]]:
    """By class: how many records were kept so far, and how many dropped."""
    return {
        kind: (int(status.get(f"kept_{kind}", 0)), int(status[f"dropped_{kind}"]))
        for kind in CLASSES
        if f"dropped_{kind}" in status
    }
