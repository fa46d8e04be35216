"""Reading what waits and handing it on: one entry after the other.

Nothing here asks what it costs; `_draining.py` does.
"""

import threading
from collections import deque
from typing import Any

import numpy as np

from frugax.errors import OutputError

from ._account import Account
from ._flight import FlightRecorder
from ._frame_pace import FramePace
from ._handing_on import HandingOn
from ._levels import LevelDial
from ._pending import Taken, class_of, read_metric
from ._rows import Rows
from ._waiting import Waiting
from .delivery import error_text
from .journal import Journal

# Between two rows that say how watching goes.
_STATUS_S = 1.0


class Collecting:
    """Hands entries on, and knows the last numbers.

    Attributes:
        latest: the last numbers collected, by name.
        latest_step: the step of the last entry collected; None before the first.
        written: how many entries were handed on.
        refused: how many the journal refused.
    """

    def __init__(
        self,
        waiting: Waiting,
        handing: HandingOn,
        journal: Journal | None,
        *,
        dial: LevelDial,
        account: Account,
        frames: FramePace,
        flight: FlightRecorder | None,
    ) -> None:
        self.latest: dict[str, np.ndarray] = {}
        self.latest_step: int | None = None
        self.written = 0
        self.refused = 0
        self._waiting = waiting
        self._handing = handing
        self._journal = journal
        self._dial = dial
        self._account = account
        self._frames = frames
        self._flight = flight
        self._steps_kept = 0
        self._begun: dict[str, Any] | None = None  # the last one it began to write
        self._booked = 0, 0  # of the steps given and kept, what the ledger has
        self._booking = threading.Lock()
        self._status_step: int | None = None
        self._next_status = 0.0

    def write_step(self, step: int, metrics: dict[str, Any]) -> None:
        """Hand on what `Watcher.record` was given.

        Raises:
            OutputError: the journal cannot be written; to be given again.
            ValueError: the journal refuses it, or it cannot be read; not to be given
                again.
        """
        try:
            values = {n: read_metric(n, step, value) for n, value in metrics.items()}
        except ValueError:
            self._refuse()
            raise
        last = None if self._journal is None else self._journal.last_step
        # If Ctrl-C came between writing it and forgetting it, it is there already.
        again = metrics is self._begun
        self._begun = metrics
        if last is None or step > last or not again:
            try:
                self._handing.step(step, values)
            except OutputError:
                self._begun = None
                raise
            except ValueError:
                self._refuse()
                raise
        self.written += 1
        self._steps_kept += 1
        self.latest_step = step
        self.latest = values
        if self._flight is not None and self._journal is not None:
            self._flight.look_at(step, values, self._journal)

    def hand_on(self, entry: Taken) -> bool:
        """Hand on what a program gave. False if the journal cannot be written now."""
        entered = self._account.clock()
        if entry.records is not None:
            entry.rows = self._fetched(entry)
        frames = 0
        while entry.rows:
            rows = entry.rows[0]
            rest = self._handing.rows(rows)
            if rest is not None:
                entry.rows[0] = rest
                return False
            frames += len(rows) if rows.kind == "frame" else 0
            entry.rows.popleft()
        self.written += 1
        self.latest_step = entry.step
        if frames:
            seconds = self._account.clock() - entered
            self._frames.learn(frames, seconds, thin=self._dial.level != "full")
        return True

    def lose(self, entry: Taken) -> None:
        """Book an entry that was let go of."""
        if entry.records is None:
            for rows in entry.rows:
                self._handing.books.lose(rows.kind or "scalar", len(rows), given=False)
        else:
            for probe in entry.probes.values():
                self._handing.books.lose(class_of(probe), 1, given=True)

    def book(self) -> None:
        """Bring the ledger up to date with what `Watcher.record` was given.

        Not with each record: the ledger has a lock.
        """
        with self._booking:
            given, kept = self._booked
            self._booked = self._waiting.steps, self._steps_kept
            self._handing.books.losses.give("scalar", self._booked[0] - given)
            self._handing.books.losses.keep("scalar", self._booked[1] - kept)

    def say_status(self, *, always: bool = False) -> None:
        """Say how watching goes, now and then, to the journal and the sinks.

        Raises:
            OutputError: the journal cannot be written.
        """
        now, step = self._account.clock(), self.latest_step
        if step is None or step == self._status_step:
            return
        if now < self._next_status and not always:
            return
        self._next_status, self._status_step = now + _STATUS_S, step
        self.book()
        share = self._account.spent_share(now)
        self._handing.status(step, share=share, limit=self._account.share)

    def _refuse(self) -> None:
        self.refused += 1
        self._handing.books.losses.drop("scalar", why="refused")

    def _fetched(self, entry: Taken) -> deque[Rows]:
        """The rows of an entry that its level asked for; the others are booked."""
        losses = self._handing.books.losses
        try:
            found = entry.fetch()
        # Nothing narrower: the program failed with whatever its backend or a callback
        # in it raises. Its own caller is told so too.
        except Exception as e:
            self._handing.books.last_error = error_text(e)
            for probe in entry.probes.values():
                self._handing.books.lose(class_of(probe), 1, given=True, why="refused")
            return deque()
        wanted: deque[Rows] = deque()
        for rows in found:
            if rows.kind is not None:
                if rows.kind not in entry.wanted:
                    self._handing.books.leave_out(rows.kind, len(rows))
                    continue
                losses.give(rows.kind, len(rows))
            if rows.stream == "" and rows.kind == "scalar":
                self.latest = {name: c[0] for name, c in rows.columns.items()}
            wanted.append(rows)
        if self._flight is not None and self._journal is not None:
            for rows in found:
                if rows.kind == "scalar":
                    self._flight.look_at(entry.step, rows.columns, self._journal)
        return wanted
