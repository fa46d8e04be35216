"""Collect pending records when the budget can pay, and dispatch them.

Records are fetched one block at a time, so that a drain that turns out more expensive
than the last one cannot overdraw the budget by much.
"""

import threading
from collections import deque
from typing import Any

import jax
import numpy as np

from frugax.errors import OutputError

from ._dispatch import Dispatch
from ._flight_recorder import FlightRecorder
from ._levels import LevelDial
from ._pending import (
    PendingQueue,
    ProgramRecords,
    arrays_of,
    begin_copy,
    class_of,
    read_metric,
)
from ._rows import RowBatch
from ._token_bucket import FramePacer, TokenBucket
from .delivery import error_text
from .journal import RECORDS_PER_BLOCK, Journal

# Between two status rows, for a page that a person follows.
_STATUS_INTERVAL_S = 1.0


class Collector:
    """Fetches pending entries and dispatches them.

    `write_callback_records` is for any thread, the rest for one at a time.

    Attributes:
        latest: the last numbers collected, by name.
        latest_step: step of the last entry collected; None before the first.
        written: entries that were dispatched.
        refused: entries that the journal refused.
        forced_drains: drains that were made only because too many records waited.
    """

    def __init__(
        self,
        pending: PendingQueue,
        dispatch: Dispatch,
        journal: Journal | None,
        *,
        dial: LevelDial,
        bucket: TokenBucket,
        frame_pacer: FramePacer,
        flight: FlightRecorder | None,
        interval: int,
    ) -> None:
        """Collect nothing before `interval` entries wait."""
        self.latest: dict[str, np.ndarray] = {}
        self.latest_step: int | None = None
        self.written = 0
        self.refused = 0
        self.forced_drains = 0
        self._pending = pending
        self._dispatch = dispatch
        self._writer = dispatch.writer
        self._journal = journal
        self._dial = dial
        self._bucket = bucket
        self._frame_pacer = frame_pacer
        self._flight = flight
        self._interval = min(interval, pending.max_entries)
        # The journal has one writer at a time. Collecting waits for the device, and a
        # program on the device may wait for a callback that wants to write: callbacks
        # therefore never wait long for this lock (see `write_callback_records`).
        self._write_lock = threading.Lock()
        self._refused_error: ValueError | None = None
        # Plain integers that the collecting thread alone changes; `update_ledger`
        # passes the differences on.
        self._steps_kept = 0
        self._in_progress: dict[str, Any] | None = None  # metrics being written
        self._booked = 0, 0  # steps given and kept, as the ledger knows them
        self._book_lock = threading.Lock()
        self._status_step: int | None = None
        self._next_status = 0.0

    def collect_if_due(self, entered: float) -> None:
        """Collect the affordable records, and those beyond the limit.

        Errors of the journal are raised; records that are not written still wait.
        """
        self._collect_affordable(entered)
        if self._pending.is_over_limit:
            self.forced_drains += 1
            # Half: the newest may not be computed yet, and waiting for them stalls.
            self.collect_all_but(
                min(len(self._pending), self._pending.max_entries) // 2
            )
        self.raise_refused()

    def raise_refused(self) -> None:
        """Raise the first refusal of a step's metrics, once.

        Raises:
            ValueError: metrics were refused since the last call.
        """
        refused, self._refused_error = self._refused_error, None
        if refused is not None:
            raise refused

    def collect_all_but(self, rest: int) -> None:
        """Collect, whatever it costs, until `rest` entries are left."""
        while len(self._pending) > rest:
            if not self._drain(min(len(self._pending) - rest, RECORDS_PER_BLOCK)):
                return

    def shed(self) -> None:
        """Drop entries beyond the limit that the journal cannot take."""
        for entry in self._pending.shed():
            if entry.records is None:
                for rows in entry.rows:
                    self._writer.lose(rows.kind or "scalar", len(rows), is_new=False)
            else:
                for probe in entry.probes.values():
                    self._writer.lose(class_of(probe), 1, is_new=True)

    def wait_for_device(self) -> None:
        """Wait until the device has finished all pending records."""
        for entry in self._pending:
            try:
                jax.block_until_ready(arrays_of(entry))
            # A failed program raises whatever its backend or a callback in it raises.
            # It is counted when it is read.
            except Exception:
                continue

    def write_callback_records(self, wait_s: float) -> None:
        """Write the records of callbacks, unless another thread is writing.

        Args:
            wait_s: longest wait for the lock. Its holder may itself be blocked on the
                program whose callback waits here, hence the timeout.
        """
        if not self._write_lock.acquire(timeout=wait_s):
            return
        entered = self._bucket.clock()
        try:
            self._dispatch.write_callback_records()
        except (OutputError, ValueError) as e:
            self._writer.note_failure(e)
        finally:
            self._bucket.charge(self._bucket.clock() - entered)
            self._write_lock.release()

    def write_buffered(self) -> None:
        """Write all buffered records and numbers."""
        with self._write_lock:
            self._dispatch.write_callback_records()
            self._writer.flush_buffered()

    def flush(self) -> None:
        """Write the status and flush the journal to the disk."""
        with self._write_lock:
            self._write_status(always=True)
            if self._journal is not None:
                self._journal.flush()

    def update_ledger(self) -> None:
        """Count in the ledger the metrics that `Watcher.record` got.

        Not done with each record, because the ledger has a lock.
        """
        with self._book_lock:
            given, kept = self._booked
            self._booked = self._pending.steps_added, self._steps_kept
            self._writer.losses.give("scalar", self._booked[0] - given)
            self._writer.losses.keep("scalar", self._booked[1] - kept)

    def _collect_affordable(self, now: float) -> None:
        # A drain has a price whatever it carries, so a plan lets records gather first.
        if len(self._pending) < self._interval:
            return
        clock = self._bucket.clock
        # Only finished records: reading an unfinished one would block the caller until
        # the device has computed it.
        while self._bucket.can_afford(clock() - now, now):
            ready = self._pending.count_ready(RECORDS_PER_BLOCK)
            if not ready or not self._drain(ready):
                return

    def _drain(self, count: int) -> bool:
        """Fetch and dispatch the oldest `count` entries.

        Returns False if the journal cannot take the records of a program; for metrics
        of a step it raises instead.
        """
        with self._write_lock:
            entered = self._bucket.clock()
            oldest = self._pending.oldest(count)
            if jax.default_backend() != "cpu":
                for entry in oldest:  # start all transfers first, so that they overlap
                    begin_copy(entry)
            for entry in oldest:
                if isinstance(entry, ProgramRecords):
                    if not self._dispatch_records(entry):
                        return False
                else:
                    try:
                        self._dispatch_step(*entry)
                    except ValueError as e:  # raised once the others are written
                        self._refused_error = self._refused_error or e
                self._pending.pop()
            self._dispatch.write_callback_records()
            self._write_status()
            # The last price and not a mean, which would lag behind when the disk or the
            # machine slows down.
            self._bucket.drain_price_s = self._bucket.clock() - entered
            return True

    def _dispatch_step(self, step: int, metrics: dict[str, Any]) -> None:
        """Dispatch metrics of a step.

        Raises:
            OutputError: the journal cannot be written; to be called again.
            ValueError: the metrics cannot be read or stored.
        """
        try:
            values = {n: read_metric(n, step, value) for n, value in metrics.items()}
        except ValueError:
            self._count_refused()
            raise
        last = self._journal.last_step if self._journal is not None else None
        # If Ctrl-C came between writing the metrics and removing them from the queue,
        # they are in the journal already.
        is_repeated = metrics is self._in_progress
        self._in_progress = metrics
        if last is None or step > last or not is_repeated:
            try:
                self._dispatch.dispatch_step(step, values)
            except OutputError:
                self._in_progress = None
                raise
            except ValueError:
                self._count_refused()
                raise
        self.written += 1
        self._steps_kept += 1
        self.latest_step = step
        self.latest = values
        if self._flight is not None and self._journal is not None:
            self._flight.inspect(step, values, self._journal)

    def _dispatch_records(self, entry: ProgramRecords) -> bool:
        """Dispatch a program's records. False if the journal cannot be written now."""
        entered = self._bucket.clock()
        if entry.records is not None:
            entry.rows = self._fetch_wanted(entry)
        frames = 0
        # A row leaves the entry only once it is written, so that the next call goes on
        # where a full disk has stopped this one.
        while entry.rows:
            rows = entry.rows[0]
            unwritten = self._dispatch.dispatch_rows(rows)
            if unwritten is not None:
                entry.rows[0] = unwritten
                return False
            if rows.kind == "frame":
                frames += len(rows)
            entry.rows.popleft()
        self.written += 1
        self.latest_step = entry.step
        if frames:
            seconds = self._bucket.clock() - entered
            thin = self._dial.level != "full"
            self._frame_pacer.learn(frames, seconds, thin=thin)
        return True

    def _fetch_wanted(self, entry: ProgramRecords) -> deque[RowBatch]:
        """Fetch an entry and return the rows that its level asked for."""
        try:
            fetched = entry.fetch()
        # The program failed with whatever its backend or a callback in it raises. Its
        # own caller gets the same error.
        except Exception as e:
            self._writer.last_error = error_text(e)
            for probe in entry.probes.values():
                self._writer.lose(class_of(probe), 1, is_new=True, why="refused")
            return deque()
        wanted: deque[RowBatch] = deque()
        for rows in fetched:
            if rows.kind is not None:
                if rows.kind not in entry.wanted_kinds:
                    self._writer.leave_out(rows.kind, len(rows))
                    continue
                self._writer.losses.give(rows.kind, len(rows))
            if rows.stream == "" and rows.kind == "scalar":
                self.latest = {name: c[0] for name, c in rows.columns.items()}
            wanted.append(rows)
        if self._flight is not None and self._journal is not None:
            for rows in fetched:
                if rows.kind == "scalar":
                    self._flight.inspect(entry.step, rows.columns, self._journal)
        return wanted

    def _write_status(self, *, always: bool = False) -> None:
        """Write the state of watching now and then, or always."""
        now, step = self._bucket.clock(), self.latest_step
        if step is None or step == self._status_step:
            return
        if now < self._next_status and not always:
            return
        self._next_status, self._status_step = now + _STATUS_INTERVAL_S, step
        self.update_ledger()
        share = self._bucket.spent_share(now)
        self._dispatch.dispatch_status(step, share=share, limit=self._bucket.share)

    def _count_refused(self) -> None:
        self.refused += 1
        self._writer.losses.drop("scalar", why="refused")
