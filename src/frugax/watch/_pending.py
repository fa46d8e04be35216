"""What waits to be collected: metrics of a step, or what a program's call gave."""

import dataclasses
from collections import deque
from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.core import Tracer

from ._rows import Rows, rows_of
from .journal import as_number, is_real
from .probes import Probe
from .sinks import Kind


@dataclasses.dataclass(slots=True, eq=False)
class Taken:
    """What one call of a program gave, on the device or already fetched.

    Attributes:
        step: the number of the call.
        probes: by the names of the records.
        records: as the program gave them; None once they are fetched.
        nbytes: what they hold.
        rows: once they are fetched, what is not yet handed on.
        wanted: the classes that the level asked for when they were taken.
    """

    step: int
    probes: Mapping[str, Probe]
    records: Any
    nbytes: int
    rows: deque[Rows]
    wanted: frozenset[Kind]

    def fetch(self) -> list[Rows]:
        """Wait for the records and give them as rows; once."""
        records: Any = self.records
        self.records = None
        fetch = getattr(records, "fetch", None)
        values: dict[str, Any]
        if fetch is None:
            values = {name: jax.device_get(records[name]) for name in self.probes}
        else:
            values = fetch()
        axes = getattr(records, "axes", {})
        return rows_of(self.step, self.probes, values, axes)


# The metrics of a step as `Watcher.record` was given them, or those of a program.
Entry: TypeAlias = tuple[int, dict[str, Any]] | Taken


def class_of(probe: Probe) -> Kind:
    """What a probe's records are booked as; a function of the user's as numbers."""
    return "scalar" if probe.kind == "call" else probe.kind


def arrays_of(entry: Entry) -> Any:
    """What must be waited for before an entry is read."""
    if not isinstance(entry, Taken):
        return {name: v for name, v in entry[1].items() if not _is_gone(v)}
    records: Any = entry.records
    if records is None:
        return ()
    return records if hasattr(records, "fetch") else dict(records)


def is_ready(entry: Entry) -> bool:
    """Whether the device has finished all of an entry."""
    if isinstance(entry, Taken):
        if entry.records is None:
            return True
        ready = getattr(entry.records, "is_ready", None)
        if ready is not None:
            return ready()
        return all(_leaf_is_ready(leaf) for leaf in jax.tree.leaves(arrays_of(entry)))
    return all(_leaf_is_ready(value) for value in entry[1].values())


def begin_copy(entry: Entry) -> None:
    """Begin to bring an entry to the host, so that reading it waits less."""
    if isinstance(entry, Taken) and hasattr(entry.records, "copy_to_host_async"):
        entry.records.copy_to_host_async()
        return
    for value in jax.tree.leaves(arrays_of(entry)):
        if isinstance(value, jax.Array):
            value.copy_to_host_async()


def checked_metric(name: str, value: Any) -> Any:
    """A metric that can be kept until it is read: numbers as they are now.

    Raises:
        TypeError: it is no real number, or is being traced.
        ValueError: it is no single number.
    """
    if isinstance(value, Tracer):
        raise TypeError(
            f"{name!r} is being traced: return it from the jitted function "
            "and record it outside, or use watch.jit and watch.record."
        )
    if getattr(value, "shape", ()) != ():
        raise ValueError(f"{name!r} must have shape (), got {value.shape}.")
    if not hasattr(value, "is_ready"):
        return as_number(name, value)
    if not is_real(value.dtype):
        raise TypeError(f"{name!r} must be a real number, got {value.dtype}.")
    return value  # on the device: to read it now would wait for it


def read_metric(name: str, step: int, value: Any) -> np.ndarray:
    """A metric as it is on the host; waits for the device.

    Raises:
        ValueError: it cannot be read any more, or the program that gives it failed.
    """
    # Not jax.device_get: for a ready CPU array it takes six times as long
    # (benchmarks/test_watch.py).
    try:
        return np.asarray(value)
    # Nothing narrower: a program failed with whatever its backend raises.
    except Exception as e:
        if _is_gone(value):
            raise ValueError(
                f"{name!r} of step {step} was donated or deleted before it was read: "
                "copy it, or do not donate it."
            ) from e
        raise ValueError(
            f"{name!r} of step {step} cannot be read: {type(e).__name__}: {e}"
        ) from e


def _leaf_is_ready(value: Any) -> bool:
    ready = getattr(value, "is_ready", None)  # absent from plain numbers
    return ready is None or _is_gone(value) or ready()


def _is_gone(value: Any) -> bool:
    deleted = getattr(value, "is_deleted", None)
    return deleted is not None and deleted()
