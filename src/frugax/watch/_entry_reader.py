"""Fetch queued records and metrics from the device, as batches of rows on the host."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from ._dispatch import Dispatch
from ._flight_recorder import FlightRecorder
from ._metrics import is_leaf_ready, read_metric
from ._row_batch import RowBatch, class_of, make_rows, number_columns
from ._thinning import Thinning
from .probes import PackedRecords, Probe
from .sinks import Kind

# Vectors that are stacked on an accelerator before they are copied: one transfer.
_STACKED = 64


@dataclasses.dataclass(slots=True, eq=False)
class ProgramRecords:
    """The records of one call of a program, on the device.

    Attributes:
        step: the number of the call.
        probes: the probes by the names of the records.
        records: the records as the program returned them.
        wanted_kinds: the classes that the level asked for at the time of the call.
    """

    step: int
    probes: Mapping[str, Probe]
    records: Any
    # Kept from the time of the call: the level may have changed since.
    wanted_kinds: frozenset[Kind]

    @property
    def nbytes(self) -> int:
        """Bytes that the records hold on the device."""
        return getattr(self.records, "nbytes", 0)

    def is_ready(self) -> bool:
        """Whether the device has finished them."""
        if hasattr(self.records, "is_ready"):
            return self.records.is_ready()
        return all(map(is_leaf_ready, jax.tree.leaves(dict(self.records))))

    def arrays(self) -> Any:
        """The arrays that must be finished before they can be read."""
        if hasattr(self.records, "fetch"):
            return self.records
        return dict(self.records)

    def rows(self) -> list[RowBatch]:
        """Wait for the records and return them as rows."""
        records: Any = self.records
        if hasattr(records, "fetch"):
            values = records.fetch()
        else:
            values = {name: jax.device_get(records[name]) for name in self.probes}
        return make_rows(self.step, self.probes, values, getattr(records, "axes", {}))


@dataclasses.dataclass(slots=True, eq=False)
class StepMetrics:
    """The metrics of one step, as `Watcher.record` got them.

    Attributes:
        step: the training step.
        values: the metrics by name.
        number: how many calls of `record` with these names there were before.
        thinning: by which it may still be left out; None to keep it.
    """

    step: int
    values: dict[str, Any]
    number: int = 0
    thinning: Thinning | None = None
    nbytes = 0

    def is_ready(self) -> bool:
        """Whether the device has finished them."""
        return all(map(is_leaf_ready, self.values.values()))

    def arrays(self) -> Any:
        """The arrays that must be finished before they can be read."""
        return {n: v for n, v in self.values.items() if not _is_deleted(v)}


Entry: TypeAlias = ProgramRecords | StepMetrics


class EntryReader:
    """Reads entries, which waits for the device, and notes values that are not finite.

    Attributes:
        latest: the last numbers read, by name.
        refused: metrics of a step that could not be read.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        *,
        flight: FlightRecorder | None,
        inspect: Callable[[int, Mapping[str, Any]], None],
    ) -> None:
        self.latest: dict[str, np.ndarray] = {}
        self.refused = 0
        self._dispatch = dispatch
        self._writer = dispatch.writer
        self._flight = flight
        self._inspect = inspect
        self._fetched: list[RowBatch] = []
        self._refusal: ValueError | None = None

    def read(self, entries: Sequence[Entry]) -> None:
        """Read entries; `take_rows` returns their rows."""
        for is_program, group in itertools.groupby(
            entries, lambda e: isinstance(e, ProgramRecords)
        ):
            same: Any = list(group)
            if is_program:
                self._fetch_programs(same)
            else:
                self._fetch_metrics(same)

    def take_rows(self) -> list[RowBatch]:
        """Return the rows that were read, numbers in the order of their steps."""
        rows, self._fetched = _merge_sources(self._fetched), []
        return rows

    def raise_refused(self) -> None:
        """Raise the first refusal of a step's metrics, once."""
        refused, self._refusal = self._refusal, None
        if refused is not None:
            raise refused

    def _fetch_programs(self, entries: list[ProgramRecords]) -> None:
        start = 0
        while start < len(entries):
            layout = getattr(entries[start].records, "layout", None)
            stop = start + 1
            while stop < len(entries) and layout is not None:
                same = getattr(entries[stop].records, "layout", None) is layout
                if (
                    not same
                    or entries[stop].wanted_kinds != entries[start].wanted_kinds
                ):
                    break
                stop += 1
            self._fetch_same(entries[start:stop])
            start = stop

    def _fetch_same(self, entries: list[ProgramRecords]) -> None:
        """Fetch records of one layout, as columns where they are single numbers."""
        first = entries[0]
        records = first.records
        columns = None
        if isinstance(records, PackedRecords) and "scalar" in first.wanted_kinds:
            columns = number_columns(records.layout)
        if columns is None:
            for entry in entries:
                self._fetch_one(entry)
            return
        try:
            words = _stack_words([entry.records.words for entry in entries])
        # The program failed with whatever its backend or a callback in it raises: one
        # by one, so that only its own record is lost.
        except Exception:
            for entry in entries:
                self._fetch_one(entry)
            return
        steps = np.array([entry.step for entry in entries], np.int64)
        values = {label: read(words) for label, read in columns.items()}
        rows = RowBatch("scalar", "", steps, values)
        self._writer.losses.give("scalar", len(rows))
        self._note_numbers(rows)
        self._fetched.append(rows)

    def _fetch_one(self, entry: ProgramRecords) -> None:
        try:
            fetched = entry.rows()
        except Exception as e:
            for probe in entry.probes.values():
                self._writer.losses.give(class_of(probe))
                self._writer.refuse(class_of(probe), 1, e)
            return
        for rows in fetched:
            if rows.kind is not None:
                if rows.kind not in entry.wanted_kinds:
                    self._writer.leave_out(rows.kind, len(rows))
                    continue
                self._writer.losses.give(rows.kind, len(rows))
            if rows.kind == "scalar":
                self._note_numbers(rows)
            self._fetched.append(rows)

    def _fetch_metrics(self, entries: list[StepMetrics]) -> None:
        """Read metrics of steps; those with equal names become one batch."""
        self._writer.losses.give("scalar", len(entries))
        read: list[tuple[int, dict[str, np.ndarray]]] = []
        for entry in entries:
            try:
                values = {
                    name: read_metric(name, entry.step, value)
                    for name, value in entry.values.items()
                }
            except ValueError as e:  # raised to the caller once the others are written
                self._refuse(e)
                continue
            read.append((entry.step, values))
        for _, group in itertools.groupby(read, lambda item: tuple(item[1])):
            same = list(group)
            steps = np.array([step for step, _ in same], np.int64)
            columns = {
                name: np.array([values[name] for _, values in same])
                for name in same[0][1]
            }
            rows = RowBatch("scalar", "", steps, columns, source="caller")
            self._note_numbers(rows)
            self._fetched.append(rows)

    def _refuse(self, error: ValueError) -> None:
        self.refused += 1
        self._refusal = self._refusal or error
        self._writer.refuse("scalar", 1, error)

    def _note_numbers(self, rows: RowBatch) -> None:
        if rows.stream == "" and len(rows):
            self.latest = {name: c[-1] for name, c in rows.columns.items()}
        if not all(map(_all_finite, rows.columns.values())):
            self._report_not_finite(rows)
        elif self._flight is not None:
            self._flight.note_finite(len(rows))
        self._inspect(int(rows.steps[-1]) if len(rows) else 0, rows.columns)

    def _report_not_finite(self, rows: RowBatch) -> None:
        journal = self._dispatch.journal
        if self._flight is None or journal is None:
            return
        for i, step in enumerate(rows.steps):
            values = {name: column[i] for name, column in rows.columns.items()}
            self._flight.inspect(int(step), values, journal)


def _merge_sources(batches: list[RowBatch]) -> list[RowBatch]:
    """Bring numbers of several sources in the order of their steps, row by row."""
    numbers = [rows for rows in batches if rows.stream == "" and rows.kind == "scalar"]
    if len({(rows.source, *rows.columns) for rows in numbers}) < 2:
        return batches
    rows = [
        RowBatch.single(
            "scalar", "", int(step), {n: c[i] for n, c in batch.columns.items()}
        )
        for batch in numbers
        for i, step in enumerate(batch.steps)
    ]
    rows.sort(key=lambda row: int(row.steps[0]))  # stable: equal steps stay in order
    others = [rows for rows in batches if rows.stream or rows.kind != "scalar"]
    return [*rows, *others]


def _stack_words(words: list[Any]) -> np.ndarray:
    """Return vectors of the device as one matrix on the host."""
    if len(words) >= _STACKED and _is_on_accelerator(words[0]):
        # Each transfer has a latency of its own: stack on the device first.
        parts = [
            _stack(words[i : i + _STACKED]) for i in range(0, len(words), _STACKED)
        ]
        for part in parts:
            part.copy_to_host_async()
        return np.concatenate(list(map(np.asarray, parts)))[: len(words)]
    return np.stack([np.asarray(vector) for vector in words])


def _stack(words: list[Any]) -> Any:
    # Always the same number of vectors, so that this compiles once for each length.
    return _stack_on_device(words + [words[-1]] * (_STACKED - len(words)))


@jax.jit
def _stack_on_device(words: list[Any]) -> Any:
    return jax.numpy.stack(words)


def _is_on_accelerator(array: Any) -> bool:
    return next(iter(array.devices())).platform != "cpu"


def _all_finite(array: np.ndarray) -> bool:
    if array.dtype.kind in "biu":
        return True
    # NumPy does not know bfloat16 and its relatives as floats.
    return bool(np.isfinite(array.astype(np.float64)).all())


def _is_deleted(value: Any) -> bool:
    deleted = getattr(value, "is_deleted", None)
    return deleted is not None and deleted()
