"""A sink's bounded priority queue: when full, it drops the least important records."""

import dataclasses
from collections import deque

from ..sinks import Event, Kind
from ._losses import KINDS, Losses

# Memory of an event besides its numbers: the event, its mapping and its place in the
# queue; then the name, the box and the array of each value. Measured with tracemalloc,
# and checked by tests/watch/test_delivery.py.
_PER_EVENT_BYTES = 600
_PER_VALUE_BYTES = 300


def charge_bytes(event: Event) -> int:
    """Return the bytes that a queued event is charged for, at least its memory."""
    return event.bytes + _PER_EVENT_BYTES + _PER_VALUE_BYTES * len(event.values)


@dataclasses.dataclass(slots=True, eq=False)
class QueuedEvent:
    """An event with its place in the queue.

    Attributes:
        event: the event.
        order: its number in the order of arrival.
        charge: bytes that it is charged for.
        tries: how often a sink has failed to take it.
    """

    event: Event
    order: int
    charge: int
    tries: int = 0


class EventQueue:
    """A priority queue of events within a byte cap.

    When it is full, the oldest event of the least important class is dropped. Events
    that were taken out count until they are released, because a sink that hangs holds
    on to them. The queue has no lock of its own: its owner has one.

    Attributes:
        max_bytes: the cap.
        bytes_by_kind: bytes of the events that wait, by class.
    """

    def __init__(self, max_bytes: int, losses: Losses) -> None:
        self.max_bytes = max_bytes
        self._losses = losses
        self._queued: dict[Kind, deque[QueuedEvent]] = {kind: deque() for kind in KINDS}
        self.bytes_by_kind: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self._out_bytes = 0
        self._order = 0

    def __len__(self) -> int:
        return sum(len(queued) for queued in self._queued.values())

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
        kind = event.kind
        # Decided before anything is dropped: an event that would not fit even without
        # all less important ones must not cost those their place.
        droppable = KINDS[KINDS.index(kind) :]
        room = self.max_bytes - self.bytes
        if charge > room + sum(self.bytes_by_kind[other] for other in droppable):
            self._losses.drop(kind, why="queue full")
            return
        for other in reversed(droppable):
            while self._queued[other] and self.bytes + charge > self.max_bytes:
                self._drop_oldest(other)
        self._order += 1
        self._queued[kind].append(QueuedEvent(event, self._order, charge))
        self.bytes_by_kind[kind] += charge

    def take(self, max_events: int) -> list[QueuedEvent]:
        """Take out events, the most important classes first."""
        taken: list[QueuedEvent] = []
        taken_bytes = 0
        for kind in KINDS:
            queued = self._queued[kind]
            while queued and len(taken) < max_events:
                head = queued[0]
                # An event that failed before goes alone: it may be the cause.
                if taken and (head.tries or taken[-1].tries):
                    break
                if taken and taken_bytes + head.charge > self.max_bytes // 4:
                    break
                taken.append(queued.popleft())
                taken_bytes += head.charge
                self.bytes_by_kind[kind] -= head.charge
        self._out_bytes += taken_bytes
        return sorted(taken, key=lambda item: item.order)

    def release(self, taken: list[QueuedEvent]) -> None:
        """Stop counting events that were taken out."""
        self._out_bytes -= sum(item.charge for item in taken)

    def put_back(self, taken: list[QueuedEvent]) -> None:
        """Return events to the front of their classes; they have counted all along."""
        self.release(taken)
        for item in reversed(taken):
            self._queued[item.event.kind].appendleft(item)
            self.bytes_by_kind[item.event.kind] += item.charge

    def clear(self) -> list[QueuedEvent]:
        """Remove and return all events that wait."""
        removed = [item for queued in self._queued.values() for item in queued]
        for kind in KINDS:
            self._queued[kind].clear()
            self.bytes_by_kind[kind] = 0
        return removed

    def _drop_oldest(self, kind: Kind) -> None:
        oldest = self._queued[kind].popleft()
        self.bytes_by_kind[kind] -= oldest.charge
        self._losses.drop(kind, why="queue full")
