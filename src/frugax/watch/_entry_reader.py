"""Fetch queued records and metrics from the device, as batches of rows on the host."""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ._alerts import Alerts
from ._dispatch import Dispatch
from ._entries import Entry, ProgramRecords, StepMetrics
from ._flight_recorder import FlightRecorder
from ._metrics import read_metric
from ._program_rows import class_of, number_columns
from ._rows import Rows
from ._series import Series
from .probes import PackedRecords

# Vectors that are stacked on an accelerator before they are copied: one transfer.
_STACKED = 64


class EntryReader:
    """Reads entries, which waits for the device, and notes values that are not finite.

    Attributes:
        latest: the last numbers read, by name.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        *,
        flight: FlightRecorder | None,
        alerts: Alerts | None,
    ) -> None:
        self.latest: dict[str, np.ndarray] = {}
        self._dispatch = dispatch
        self._writer = dispatch.writer
        self._flight = flight
        self._alerts = alerts
        self._fetched: list[Rows] = []
        self._refusal: ValueError | None = None

    def read(self, entries: Sequence[Entry]) -> list[Rows]:
        """Read entries, and return their rows."""
        groups: dict[Series | None, list[Any]] = {}
        for entry in entries:
            groups.setdefault(entry.series, []).append(entry)
        for group in groups.values():
            if isinstance(group[0], StepMetrics):
                self._fetch_metrics(group)
                continue
            for _, same in itertools.groupby(group, _kind_of):
                self._fetch_same(list(same))
        rows, self._fetched = self._fetched, []
        return rows

    def raise_refused(self) -> None:
        """Raise the first refusal of a step's metrics, once."""
        refused, self._refusal = self._refusal, None
        if refused is not None:
            raise refused

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
        rows = Rows("scalar", "", steps, values)
        self._writer.losses.give("scalar", len(rows))
        self._note_numbers(rows)
        self._fetched.append(rows)

    def _fetch_one(self, entry: ProgramRecords) -> None:
        try:
            fetched = entry.rows()
        except Exception as e:
            for probe in entry.records.probes.values():
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
        """Read metrics of steps, which have the same names, as columns."""
        self._writer.losses.give("scalar", len(entries))
        steps: list[int] = []
        read: list[dict[str, np.ndarray]] = []
        for entry in entries:
            try:
                values = {
                    name: read_metric(name, entry.step, value)
                    for name, value in entry.values.items()
                }
            except ValueError as e:  # raised to the caller once the others are written
                self._refuse(e)
                continue
            steps.append(entry.step)
            read.append(values)
        if not read:
            return
        columns = {name: np.array([v[name] for v in read]) for name in read[0]}
        rows = Rows("scalar", "", np.array(steps), columns, source="caller")
        self._note_numbers(rows)
        self._fetched.append(rows)

    def _refuse(self, error: ValueError) -> None:
        self._refusal = self._refusal or error
        self._writer.refuse("scalar", 1, error)

    def _note_numbers(self, rows: Rows) -> None:
        if rows.stream == "" and len(rows):
            self.latest = {name: c[-1] for name, c in rows.columns.items()}
        if self._alerts is not None and len(rows):
            self._alerts.inspect(int(rows.steps[-1]), rows.columns)
        journal = self._dispatch.journal
        if self._flight is None or journal is None:
            return
        for i, step in enumerate(rows.steps):
            values = {name: column[i] for name, column in rows.columns.items()}
            self._flight.inspect(int(step), values, journal)


def _kind_of(entry: ProgramRecords) -> Any:
    return getattr(entry.records, "layout", None), entry.wanted_kinds


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
