"""When what waits is collected, and how much of it at a time.

At most one block at a time, so that a drain which turns out dearer than the last one
cannot overdraw by much.
"""

import threading

import jax

from frugax.errors import OutputError

from ._account import Account
from ._collecting import Collecting
from ._handing_on import HandingOn
from ._pending import Taken, arrays_of, begin_copy
from ._waiting import Waiting
from .journal import RECORDS_PER_BLOCK, Journal


class Draining:
    """Collects what waits, a block at a time.

    `notes` may be called by any thread, the rest by one.

    Attributes:
        forced: how many drains were made only because too many records waited.
    """

    def __init__(
        self,
        waiting: Waiting,
        collecting: Collecting,
        handing: HandingOn,
        *,
        account: Account,
        every: int,
    ) -> None:
        """Nothing is collected yet.

        Args:
            waiting: what waits.
            collecting: reads it and hands it on.
            handing: where that is handed to.
            account: what pays for it.
            every: how many records must wait before some are collected; >= 1.
        """
        self.forced = 0
        self._waiting = waiting
        self._collecting = collecting
        self._handing = handing
        self._account = account
        self._least = min(every, waiting.most)
        self._refused: ValueError | None = None
        # Only one thread writes the journal at a time.
        self._writing = threading.Lock()

    def if_due(self, entered: float) -> None:
        """Collect what can be paid for, and what must not wait any longer.

        Args:
            entered: when the watcher was called.

        Raises:
            OutputError: the journal cannot be written; the rest still waits.
            ValueError: the journal refuses metrics of a step, which are dropped.
        """
        self._while_affordable(entered)
        if self._waiting.is_over:
            self.forced += 1
            # Half: the newest may not be computed yet, and waiting stalls.
            self.all_but(min(len(self._waiting), self._waiting.most) // 2)
        self.say_refused()

    def say_refused(self) -> None:
        """Raise for metrics of a step that were refused, once.

        Raises:
            ValueError: there were some; the first of them.
        """
        refused, self._refused = self._refused, None
        if refused is not None:
            raise refused

    def all_but(self, rest: int) -> None:
        """Collect whatever it costs, until so many are left.

        Raises:
            OutputError: the journal cannot be written; the rest still waits.
        """
        while len(self._waiting) > rest:
            if not self._drain(min(len(self._waiting) - rest, RECORDS_PER_BLOCK)):
                return

    def shed(self) -> None:
        """Let go of what the journal cannot take, beyond what may wait."""
        for entry in self._waiting.shed():
            self._collecting.lose(entry)

    def wait_for_device(self) -> None:
        """Wait until the device has finished all that waits."""
        for entry in self._waiting:
            try:
                jax.block_until_ready(arrays_of(entry))
            # Nothing narrower: a program failed with whatever its backend or a callback
            # in it raises. It is said or counted when it is read.
            except Exception:
                continue

    def notes(self, wait_s: float) -> None:
        """Write what programs have handed over from inside, if nobody else writes.

        Whoever writes may itself wait for the program that waits here.

        Args:
            wait_s: for so long it waits for whoever writes.
        """
        if not self._writing.acquire(timeout=wait_s):
            return
        entered = self._account.clock()
        try:
            self._handing.write_notes()
        except (OutputError, ValueError) as e:
            self._handing.books.note_failure(e)
        finally:
            self._account.charge(self._account.clock() - entered)
            self._writing.release()

    def rest(self) -> None:
        """Write the notes, and the numbers that wait for more of the same step.

        Raises:
            OutputError: the journal cannot be written; they still wait.
        """
        with self._writing:
            self._handing.write_notes()
            self._handing.books.let_go()

    def flush(self, journal: Journal | None) -> None:
        """Say how watching goes, and bring the journal to the disk.

        Raises:
            OutputError: the journal cannot be written.
        """
        with self._writing:
            self._collecting.say_status(always=True)
            if journal is not None:
                journal.flush()

    def _while_affordable(self, now: float) -> None:
        if len(self._waiting) < self._least:
            return
        clock = self._account.clock
        while self._account.affords(clock() - now, now):
            ready = self._waiting.ready(RECORDS_PER_BLOCK)
            if not ready or not self._drain(ready):
                return

    def _drain(self, count: int) -> bool:
        """Fetch the oldest `count` entries and hand them on.

        Returns:
            Whether the journal took them all; those of `record` raise if it did not.

        Raises:
            OutputError: the journal cannot be written; the rest still waits.
        """
        with self._writing:
            entered = self._account.clock()
            oldest = self._waiting.oldest(count)
            if jax.default_backend() != "cpu":  # so that the transfers overlap
                for entry in oldest:
                    begin_copy(entry)
            for entry in oldest:
                if isinstance(entry, Taken):
                    if not self._collecting.hand_on(entry):
                        return False
                else:
                    try:
                        self._collecting.write_step(*entry)
                    except ValueError as e:  # said once all the others are written
                        self._refused = self._refused or e
                self._waiting.pop()
            self._handing.write_notes()
            self._collecting.say_status()
            self._account.price_s = self._account.clock() - entered
            return True
