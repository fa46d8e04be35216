"""A queue of records that wait on the device until the budget can pay for them."""

import dataclasses
import itertools
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.core import Tracer

from ._rows import RowBatch, make_rows
from .journal import as_number, is_real
from .probes import Probe
from .sinks import Kind

# Device memory that records of programs may hold while they wait. Without a cap in
# bytes, 4096 waiting frames could fill an accelerator.
_MAX_PENDING_BYTES = 256 * 2**20


@dataclasses.dataclass(slots=True, eq=False)
class ProgramRecords:
    """The records of one call of a program, on the device or already fetched.

    Attributes:
        step: the number of the call.
        probes: the probes by the names of the records.
        records: the records as the program returned them; None once they are fetched.
        nbytes: bytes that they hold.
        rows: once they are fetched, the rows that have not been dispatched yet.
        wanted_kinds: the classes that the level asked for at the time of the call.
    """

    step: int
    probes: Mapping[str, Probe]
    records: Any
    nbytes: int
    rows: deque[RowBatch]
    # Kept from the time of the call: the level may have changed since.
    wanted_kinds: frozenset[Kind]

    def fetch(self) -> list[RowBatch]:
        """Wait for the records and return them as rows; only once."""
        # The device arrays are let go of before the rows are dispatched, which may take
        # several tries on a full disk.
        records: Any = self.records
        self.records = None
        values: dict[str, Any]
        if hasattr(records, "fetch"):
            values = records.fetch()
        else:
            values = {name: jax.device_get(records[name]) for name in self.probes}
        return make_rows(self.step, self.probes, values, getattr(records, "axes", {}))


# Either (step, metrics) as `Watcher.record` got them, or the records of a program.
Entry: TypeAlias = tuple[int, dict[str, Any]] | ProgramRecords


class PendingQueue:
    """A queue of entries. Any thread may add to it.

    Attributes:
        max_entries: most entries that may wait.
        added: entries that have been added so far.
        steps_added: how many of these were metrics of a step.
    """

    def __init__(self, max_entries: int) -> None:
        """Start empty.

        Raises:
            ValueError: `max_entries` is below 1.
        """
        if max_entries < 1:
            raise ValueError(f"max_pending must be >= 1, got {max_entries}.")
        self.max_entries = max_entries
        self.added = 0
        self.steps_added = 0
        self._entries: deque[Entry] = deque()
        self._bytes = 0
        # A deque is safe to append to, but not while another thread iterates over it.
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.oldest(len(self._entries)))

    @property
    def is_over_limit(self) -> bool:
        """Whether more entries or bytes wait than allowed."""
        # Metrics are single numbers, so their number is bounded and only programs'
        # records need a cap in bytes.
        too_many = len(self._entries) > self.max_entries
        return too_many or self._bytes > _MAX_PENDING_BYTES

    def add(self, entry: Entry) -> None:
        """Add an entry."""
        with self._lock:
            self._entries.append(entry)
            self.added += 1
            if isinstance(entry, ProgramRecords):
                self._bytes += entry.nbytes
            else:
                self.steps_added += 1

    def oldest(self, count: int) -> list[Entry]:
        """Return at most `count` of the oldest entries, without removing them."""
        with self._lock:
            return list(itertools.islice(self._entries, count))

    def count_ready(self, max_count: int) -> int:
        """Return how many of the oldest entries the device has finished."""
        ready = 0
        # In order: a record must not overtake an older one into the journal.
        for entry in self.oldest(max_count):
            if not is_ready(entry):
                break
            ready += 1
        return ready

    def pop(self) -> None:
        """Remove the oldest entry."""
        with self._lock:
            entry = self._entries.popleft()
            if isinstance(entry, ProgramRecords):
                self._bytes -= entry.nbytes

    def shed(self) -> Iterator[ProgramRecords]:
        """Remove and yield the oldest entries beyond the limit.

        It stops at metrics of a step, which are never dropped: their caller gets the
        error of the journal and decides.
        """
        while self._entries and self.is_over_limit:
            oldest = self._entries[0]
            if not isinstance(oldest, ProgramRecords):
                return
            self.pop()
            yield oldest


def class_of(probe: Probe) -> Kind:
    """Return the class that a probe's records count as; calls count as scalars."""
    return "scalar" if probe.kind == "call" else probe.kind


def arrays_of(entry: Entry) -> Any:
    """Return the arrays that must be finished before an entry can be read."""
    if not isinstance(entry, ProgramRecords):
        return {n: v for n, v in entry[1].items() if not _is_deleted(v)}
    records: Any = entry.records
    if records is None:
        return ()
    return records if hasattr(records, "fetch") else dict(records)


def is_ready(entry: Entry) -> bool:
    """Return whether the device has finished all arrays of an entry."""
    if not isinstance(entry, ProgramRecords):
        return all(_is_leaf_ready(value) for value in entry[1].values())
    if entry.records is None:
        return True
    if hasattr(entry.records, "is_ready"):
        return entry.records.is_ready()
    return all(_is_leaf_ready(leaf) for leaf in jax.tree.leaves(arrays_of(entry)))


def begin_copy(entry: Entry) -> None:
    """Start the transfer of an entry to the host, so that reading it waits less."""
    records = entry.records if isinstance(entry, ProgramRecords) else None
    if hasattr(records, "copy_to_host_async"):
        records.copy_to_host_async()  # pyright: ignore[reportOptionalMemberAccess]
        return
    for value in jax.tree.leaves(arrays_of(entry)):
        if isinstance(value, jax.Array):
            value.copy_to_host_async()


def check_metric(name: str, value: Any) -> Any:
    """Return a metric in a form that can be kept until it is read.

    Raises:
        TypeError: the metric is not a real number, or is being traced.
        ValueError: the metric does not have shape `()`.
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
    return value  # still on the device: to read it now would wait for the program


def read_metric(name: str, step: int, value: Any) -> np.ndarray:
    """Read a metric, waiting for the device.

    Raises:
        ValueError: the metric was donated, or the program that makes it failed.
    """
    # Not jax.device_get: for a ready CPU array it takes six times as long
    # (benchmarks/test_watch.py).
    try:
        return np.asarray(value)
    # A program fails with whatever its backend raises.
    except Exception as e:
        if _is_deleted(value):
            raise ValueError(
                f"{name!r} of step {step} was donated or deleted before it was read: "
                "copy it, or do not donate it."
            ) from e
        raise ValueError(
            f"{name!r} of step {step} cannot be read: {type(e).__name__}: {e}"
        ) from e


def _is_leaf_ready(value: Any) -> bool:
    ready = getattr(value, "is_ready", None)  # plain numbers have no such method
    # `is_ready` of a deleted array raises; reading it reports the error by name.
    return ready is None or _is_deleted(value) or ready()


def _is_deleted(value: Any) -> bool:
    deleted = getattr(value, "is_deleted", None)
    return deleted is not None and deleted()
