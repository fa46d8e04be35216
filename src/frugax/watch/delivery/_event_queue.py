"""A sink's bounded priority queue: when full, it drops the least important records."""

import itertools
from collections import deque

from .._event import KINDS, Event, Kind
from ._losses import Losses, Why

# Memory of an event besides its numbers: the event, its mapping and its place in the
# queue; then the name, the box and the array of each value. Measured with tracemalloc,
# and checked by tests/watch/test_delivery.py.
_PER_EVENT_BYTES = 600
_PER_VALUE_BYTES = 300


def charge_bytes(event: Event) -> int:
    """Return the bytes that a queued event is charged for, at least its memory."""
    return event.bytes + _PER_EVENT_BYTES + _PER_VALUE_BYTES * len(event.values)


class EventQueue:
    """Events in the order of their arrival, within a byte cap.

    When it is full, the oldest event of the least important class is dropped. Events
    that were taken out count until they are released, because a sink that hangs holds
    on to them. The queue has no lock of its own: its owner has one.

    Attributes:
        max_bytes: the cap.
        bytes_by_kind: bytes of the events that wait, by class.
    """

    def __init__(self, max_bytes: int, losses: Losses) -> None:
        self.max_bytes = max_bytes
        self.bytes_by_kind: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self._losses = losses
        self._next = itertools.count()
        self._events: dict[int, Event] = {}  # by their number
        self._numbers: dict[Kind, deque[int]] = {kind: deque() for kind in KINDS}
        self._out_bytes = 0

    def __len__(self) -> int:
        return len(self._events)

    @property
    def bytes(self) -> int:
        """Bytes of events that wait or were taken out and not released."""
        return sum(self.bytes_by_kind.values()) + self._out_bytes

    def add(self, event: Event) -> None:
        """Add an event, or drop it or others; never raises and never waits."""
        charge = charge_bytes(event)
        if charge > self.max_bytes:
            self._losses.drop(event.kind, why="too large")
            return
        # Decided before anything is dropped: an event that would not fit even without
        # all less important ones must not cost those their place.
        droppable = KINDS[KINDS.index(event.kind) :]
        room = self.max_bytes - self.bytes
        if charge > room + sum(self.bytes_by_kind[kind] for kind in droppable):
            self._losses.drop(event.kind, why="queue full")
            return
        for kind in reversed(droppable):
            while self._numbers[kind] and self.bytes + charge > self.max_bytes:
                self._remove_oldest(kind)
                self._losses.drop(kind, why="queue full")
        number = next(self._next)
        self._events[number] = event
        self._numbers[event.kind].append(number)
        self.bytes_by_kind[event.kind] += charge

    def take(self, max_events: int) -> list[Event]:
        """Take out the oldest events, of a quarter of the cap unless one is larger."""
        taken: list[Event] = []
        taken_bytes = 0
        for event in itertools.islice(self._events.values(), max_events):
            taken_bytes += charge_bytes(event)
            if taken and taken_bytes > self.max_bytes // 4:
                break
            taken.append(event)
        for event in taken:
            self._remove_oldest(event.kind)
            self._out_bytes += charge_bytes(event)
        return taken

    def release(self, taken: list[Event]) -> None:
        """Stop counting events that were taken out."""
        self._out_bytes -= sum(map(charge_bytes, taken))

    def drop_all(self, *, why: Why) -> None:
        """Lose all events that wait."""
        for kind in KINDS:
            while self._numbers[kind]:
                self._remove_oldest(kind)
                self._losses.drop(kind, why=why)

    def _remove_oldest(self, kind: Kind) -> None:
        event = self._events.pop(self._numbers[kind].popleft())
        self.bytes_by_kind[kind] -= charge_bytes(event)
