"""Records that programs hand over from inside, until the journal has them.

They come from callbacks, perhaps while the main thread waits for the program that they
are in: so they have a lock of their own, which is never held for long.
"""

import threading
from collections.abc import Callable

from frugax.errors import OutputError

from .delivery import EventQueue, Losses
from .sinks import Event


class Notes:
    """Takes them from any thread; one at a time writes them."""

    def __init__(self, most_bytes: int, losses: Losses) -> None:
        self._queue = EventQueue(most_bytes, losses)
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def is_half_full(self) -> bool:
        """Whether half of the room for them is taken."""
        return 2 * self._queue.bytes > self._queue.most_bytes

    def count(self, stream: str) -> int:
        """The step of the next one of a stream: 0, 1, 2..."""
        with self._lock:
            step = self._counts.get(stream, -1) + 1
            self._counts[stream] = step
        return step

    def add(self, event: Event) -> None:
        """Let one wait; what is lost for want of room is booked."""
        with self._lock:
            self._queue.add(event)

    def write(self, write: Callable[[Event], None]) -> None:
        """Write all that wait, oldest first within a class.

        Args:
            write: called with one after the other.

        Raises:
            OutputError: `write` raised it; that one and the rest wait.
        """
        while len(self._queue):
            with self._lock:
                taken = self._queue.take(1)
            try:
                for item in taken:
                    write(item.event)
            except OutputError:
                with self._lock:
                    self._queue.put_back(taken)
                raise
            with self._lock:
                self._queue.release(taken)
