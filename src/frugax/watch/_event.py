"""`Event`, a record as sinks receive it, and `Sink`, the protocol of all sinks."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, get_args, runtime_checkable

import numpy as np
from jaxtyping import Shaped

from frugax.budget import Spend, SpendName

from .drawing import Picture, make_pictures
from .journal import number_name

# Most important first. When room is short, records are dropped from the end.
Kind: TypeAlias = Literal["summary", "scalar", "frame"]
KINDS: tuple[Kind, ...] = get_args(Kind)
PLURALS = {"summary": "summaries", "scalar": "scalars", "frame": "frames"}
PlainValue: TypeAlias = float | int | bool | str

# The stream that reports on watching itself: `overhead` and `budget` as shares of the
# running time, from `overhead_low` to `overhead_high`, and the counts `kept_KIND` and
# `dropped_KIND` for each kind.
STATUS_STREAM = "watch"


# Frozen, since one event is shared by the queues of all sinks: a sink that changed it
# would change the records of the others.
@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """One record on the host.

    Attributes:
        kind: the class of the record. If some must be dropped, frames go before
            scalars, and scalars before summaries.
        stream: the stream that it belongs to; `""` for the training steps.
        step: the step, increasing within a stream.
        values: the values by name. The sink owns these copies, so that they keep no
            memory of the device alive. Where lanes of a `vmap` have no record they are
            masked arrays of NumPy.
    """

    kind: Kind
    stream: str
    step: int
    values: Mapping[str, Shaped[np.ndarray, "..."]]

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(
                f"kind must be one of {', '.join(KINDS)}, got {self.kind!r:.99}."
            )

    @property
    def bytes(self) -> int:
        """The size of its arrays."""
        return sum(value.nbytes for value in self.values.values())


@runtime_checkable
class Sink(Protocol):
    """Receives records in a worker thread of its own; it may fail or be slow.

    Exceptions from `write` are counted and reported, and never reach the program.

    Attributes:
        name: the name in the receipt.
    """

    name: str

    def write(self, events: Sequence[Event]) -> None:
        """Take some records, in the order in which they were made.

        Args:
            events: at least one record.
        """
        ...

    def close(self) -> None:
        """Write everything that is buffered and release all files."""
        ...


def tag(stream: str, name: str) -> str:
    """Name a value of a stream; names of the training steps stay as they are."""
    if not stream or stream == name:
        return name
    return f"{stream}/{name}" if name else stream


def event_numbers(event: Event) -> dict[str, float]:
    """Return all real numbers of a record by tag; none of a frame.

    An array, such as one value for each lane of a `vmap`, becomes its mean, minimum
    and maximum.
    """
    # Frames give no numbers: their mean would add a curve that nobody asked for.
    numbers: dict[str, float] = {}
    if event.kind == "frame":
        return numbers
    for name, value in event.values.items():
        if not _is_real(value) or not np.ma.count(value):
            continue
        key = tag(event.stream, name)
        if value.size == 1:
            numbers[key] = float(value.reshape(()))
        else:
            # In float64, because a sum of many float16 or float32 values loses digits
            # or overflows.
            wide = value.astype(np.float64)
            numbers[f"{key}/mean"] = float(wide.mean())
            numbers[f"{key}/min"] = float(wide.min())
            numbers[f"{key}/max"] = float(wide.max())
    return numbers


def event_pictures(event: Event) -> dict[str, Picture]:
    """Return the arrays of a frame as pictures by tag; none of another record."""
    if event.kind != "frame":
        return {}
    pictures = make_pictures(event.values)
    return {tag(event.stream, name): picture for name, picture in pictures.items()}


def add_step(row: Mapping[str, Any], event: Event) -> dict[str, Any]:
    """Add the step of a record; a metric that is called "step" itself gets a number."""
    count = tag(event.stream, "step")
    free = number_name(count, row)
    numbered = {free if name == count else name: value for name, value in row.items()}
    return {**numbered, count: event.step}


def to_plain(value: Shaped[np.ndarray, "..."]) -> PlainValue:
    """Convert an array of size 1 to a Python value, any other to its description."""
    if value.size == 1:
        item = value.reshape(()).item()
        return item if isinstance(item, float | int | bool | str) else str(item)
    return f"{value.dtype} {value.shape}"


def _is_real(value: np.ndarray) -> bool:
    if value.dtype.kind in "biuf":
        return True
    # NumPy reports bfloat16 and float8 as raw bytes ("V") that cast to float32.
    return value.dtype.kind == "V" and np.can_cast(value.dtype, np.float32)


def overhead_spend(status: Mapping[str, float]) -> Spend | None:
    """Return the time spent watching as a receipt judges it; None if not known yet."""
    if "overhead" not in status:
        return None
    spent = status["overhead"]
    return Spend(
        name=SpendName.WATCHING,
        unit="share",
        limit=status["budget"],
        measured=spent,
        noise=status.get("overhead_high", spent) - spent,
        source="",
    )


def lost_text(status: Mapping[str, float]) -> str:
    """Name the records lost so far, such as `3 frames`; empty where none is."""
    counts = {kind: int(status.get(f"dropped_{kind}", 0)) for kind in KINDS}
    return ", ".join(
        f"{n:,} {kind if n == 1 else PLURALS[kind]}" for kind, n in counts.items() if n
    )
