"""The records that wait to be collected, oldest first, within what may wait."""

import itertools
import threading
from collections import deque
from collections.abc import Iterator

from ._pending import Entry, Taken, is_ready

# What programs give may hold so much memory while it waits.
_MOST_BYTES = 256 * 2**20


class Waiting:
    """A queue of entries. Any thread may add to it.

    Attributes:
        most: how many may wait.
        added: how many have come so far.
        steps: how many of these were metrics of a step, from `Watcher.record`.
    """

    def __init__(self, most: int) -> None:
        """Begin with none.

        Args:
            most: how many may wait; >= 1.

        Raises:
            ValueError: that is not so.
        """
        if most < 1:
            raise ValueError(f"most_pending must be >= 1, got {most}.")
        self.most = most
        self.added = 0
        self.steps = 0
        self._entries: deque[Entry] = deque()
        self._bytes = 0
        # Not to be added to by one thread while another counts it.
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.oldest(len(self._entries)))

    @property
    def is_over(self) -> bool:
        """Whether more wait than may."""
        return len(self._entries) > self.most or self._bytes > _MOST_BYTES

    def add(self, entry: Entry) -> None:
        """Let an entry wait."""
        with self._lock:
            self._entries.append(entry)
            self.added += 1
            if isinstance(entry, Taken):
                self._bytes += entry.nbytes
            else:
                self.steps += 1

    def oldest(self, count: int) -> list[Entry]:
        """The oldest, `count` at most; they still wait."""
        with self._lock:
            return list(itertools.islice(self._entries, count))

    def ready(self, most: int) -> int:
        """How many of the oldest, `most` at most, the device has finished."""
        ready = 0
        for entry in self.oldest(most):
            if not is_ready(entry):
                break
            ready += 1
        return ready

    def pop(self) -> None:
        """The oldest waits no longer."""
        with self._lock:
            entry = self._entries.popleft()
            if isinstance(entry, Taken):
                self._bytes -= entry.nbytes

    def shed(self) -> Iterator[Taken]:
        """Let go of the oldest beyond what may wait; gives what it lets go of.

        It stops at metrics of a step: these are for their caller to decide.
        """
        while self._entries and self.is_over:
            oldest = self._entries[0]
            if not isinstance(oldest, Taken):
                return
            self.pop()
            yield oldest
