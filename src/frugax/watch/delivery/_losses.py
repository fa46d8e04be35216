"""What became of the records: given, kept, left out on purpose, or lost, and why."""

import dataclasses
import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

from ..sinks import Kind

Why: TypeAlias = Literal[
    "too large", "queue full", "sink failed", "sink hung", "closed", "refused"
]
# The most important first; what must go goes from the end.
KINDS: tuple[Kind, ...] = ("summary", "scalar", "frame")
_PLURAL = {"summary": "summaries", "scalar": "scalars", "frame": "frames"}


@dataclasses.dataclass(frozen=True, slots=True)
class Tally:
    """What became of the records of one class.

    Attributes:
        given: how many there were.
        kept: how many arrived.
        left_out: how many nobody asked for, by the level or the rate.
        dropped: how many were lost, by the reason.
    """

    given: int
    kept: int
    left_out: int
    dropped: Mapping[Why, int]

    @property
    def lost(self) -> int:
        """How many were lost, for whatever reason."""
        return sum(self.dropped.values())

    @property
    def waiting(self) -> int:
        """How many are still on their way."""
        return self.given - self.kept - self.left_out - self.lost


class Losses:
    """A ledger of records by class. Any thread may write to it.

    Every record is given once, and then kept, left out or dropped once; in between it
    waits. So what is lost without a word shows as waiting for ever.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self._kept: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self._left_out: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self._dropped: dict[Kind, dict[Why, int]] = {kind: {} for kind in KINDS}

    def give(self, kind: Kind, count: int = 1) -> None:
        """So many more have come."""
        with self._lock:
            self._given[kind] += count

    def keep(self, kind: Kind, count: int = 1) -> None:
        """So many have arrived."""
        with self._lock:
            self._kept[kind] += count

    def leave_out(self, kind: Kind, count: int = 1) -> None:
        """So many nobody asked for; that is no loss."""
        with self._lock:
            self._left_out[kind] += count

    def drop(self, kind: Kind, count: int = 1, *, why: Why) -> None:
        """So many are lost."""
        with self._lock:
            dropped = self._dropped[kind]
            dropped[why] = dropped.get(why, 0) + count

    def keep_late(self, kind: Kind, count: int = 1, *, why: Why) -> None:
        """So many that were given up for `why` have arrived after all."""
        with self._lock:
            self._dropped[kind][why] -= count
            self._kept[kind] += count

    def tally(self, kind: Kind) -> Tally:
        """What became of one class so far."""
        with self._lock:
            dropped: dict[Why, int] = {
                why: n for why, n in self._dropped[kind].items() if n
            }
            return Tally(
                self._given[kind],
                self._kept[kind],
                self._left_out[kind],
                MappingProxyType(dropped),
            )

    @property
    def tallies(self) -> dict[Kind, Tally]:
        """All classes, the most important first."""
        return {kind: self.tally(kind) for kind in KINDS}

    def __str__(self) -> str:
        """One line, such as `0 of 12 summaries lost; 3 of 40 frames lost (...)`."""
        parts = [_said(kind, t) for kind, t in self.tallies.items() if t.given]
        return "; ".join(parts) or "no records"


def _said(kind: Kind, tally: Tally) -> str:
    text = f"{tally.lost:,} of {tally.given:,} {_PLURAL[kind]} lost"
    details = [f"{why} {count:,}" for why, count in tally.dropped.items()]
    details += [f"{tally.waiting:,} wait"] if tally.waiting else []
    details += [f"{tally.left_out:,} not asked for"] if tally.left_out else []
    return f"{text} ({', '.join(details)})" if details else text
