"""Records that wait for a sink, within a number of bytes that is never passed."""

import dataclasses
from collections import deque

from ..sinks import Event, Kind
from ._losses import KINDS, Losses

# What Python needs for a record besides its numbers: the record, its mapping and its
# place here; then name, box and array of each value. Measured with tracemalloc, and
# checked by tests/watch/test_delivery.py.
_PER_EVENT_BYTES = 600
_PER_VALUE_BYTES = 300


def charge(event: Event) -> int:
    """What a waiting record is counted as, in bytes; not less than it takes."""
    return event.bytes + _PER_EVENT_BYTES + _PER_VALUE_BYTES * len(event.values)


@dataclasses.dataclass(slots=True, eq=False)
class Waiting:
    """A record with its place in the queue.

    Attributes:
        event: the record.
        order: its number in the order of arrival.
        charge: what it is counted as, in bytes.
        tries: how often a sink has failed to take it.
    """

    event: Event
    order: int
    charge: int
    tries: int = 0


class EventQueue:
    """A queue by class. When it is full, the least important and oldest goes first.

    What was taken out counts until `release`: a sink that hangs holds on to it. Not
    for several threads at once; `Outlet` has the lock.

    Attributes:
        most_bytes: what it may hold.
    """

    def __init__(self, most_bytes: int, losses: Losses) -> None:
        self.most_bytes = most_bytes
        self._losses = losses
        self._waiting: dict[Kind, deque[Waiting]] = {kind: deque() for kind in KINDS}
        self._bytes: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self._out_bytes = 0
        self._order = 0

    def __len__(self) -> int:
        return sum(len(waiting) for waiting in self._waiting.values())

    @property
    def bytes(self) -> int:
        """What waits and what was taken out but not released."""
        return sum(self._bytes.values()) + self._out_bytes

    def add(self, event: Event) -> None:
        """Take a record in, or drop it or others; never fails, never waits."""
        size = charge(event)
        if size > self.most_bytes:
            self._losses.drop(event.kind, why="too large")
            return
        self._order += 1
        self._place(Waiting(event, self._order, size), first=False)

    def take(self, most_events: int) -> list[Waiting]:
        """Take out some records, the most important classes first.

        Args:
            most_events: how many at most. A quarter of `most_bytes` is the other limit,
                so that one write that hangs does not take all the room.

        Returns:
            Them in the order in which they came; at least one if any waits.
        """
        taken: list[Waiting] = []
        size = 0
        for kind in KINDS:
            waiting = self._waiting[kind]
            while waiting and len(taken) < most_events:
                next_one = waiting[0]
                if taken and (next_one.tries or taken[-1].tries):
                    break  # what was tried before goes alone: it may be the cause
                if taken and size + next_one.charge > self.most_bytes // 4:
                    break
                taken.append(waiting.popleft())
                size += taken[-1].charge
                self._bytes[kind] -= taken[-1].charge
        self._out_bytes += size
        return sorted(taken, key=lambda item: item.order)

    def release(self, taken: list[Waiting]) -> None:
        """Nobody holds on to these any more."""
        self._out_bytes -= sum(item.charge for item in taken)

    def put_back(self, taken: list[Waiting]) -> None:
        """Let these wait again, before those of their class that wait already."""
        self.release(taken)
        for item in reversed(taken):
            self._place(item, first=True)

    def clear(self) -> list[Waiting]:
        """Take out all that waits; nothing is to be released."""
        found = [item for waiting in self._waiting.values() for item in waiting]
        for kind in KINDS:
            self._waiting[kind].clear()
            self._bytes[kind] = 0
        return found

    def recount(self) -> None:
        """Count what waits anew, after an interrupt in the middle of `add`."""
        for kind, waiting in self._waiting.items():
            self._bytes[kind] = sum(item.charge for item in waiting)

    def _place(self, item: Waiting, *, first: bool) -> None:
        kind = item.event.kind
        rank = KINDS.index(kind)
        # Decided before anything is dropped: what cannot be had by dropping what is
        # no more important must not cost others their place.
        behind = KINDS[rank + 1 :] if first else KINDS[rank:]
        staying = sum(self._bytes[other] for other in KINDS if other not in behind)
        if item.charge > self.most_bytes - self._out_bytes - staying:
            self._losses.drop(kind, why="queue full")
            return
        for other in reversed(behind):
            while self._waiting[other] and self.bytes + item.charge > self.most_bytes:
                self._drop_oldest(other)
        waiting = self._waiting[kind]
        (waiting.appendleft if first else waiting.append)(item)
        self._bytes[kind] += item.charge

    def _drop_oldest(self, kind: Kind) -> None:
        oldest = self._waiting[kind].popleft()
        self._bytes[kind] -= oldest.charge
        self._losses.drop(kind, why="queue full")
