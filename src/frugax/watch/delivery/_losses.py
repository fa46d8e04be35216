"""The ledger of all records, by class: kept, left out on purpose, or lost and why."""

import dataclasses
import threading
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias, get_args

from .._event import KINDS, PLURALS, Kind

Why: TypeAlias = Literal[
    "too large",
    "queue full",
    "sink failed",
    "sink hung",
    "closed",
    "refused",
    "not written",
]
_REASONS: tuple[Why, ...] = get_args(Why)


@dataclasses.dataclass(frozen=True, slots=True)
class Tally:
    """Counts of the records of one class.

    Attributes:
        given: records that came.
        kept: records that arrived.
        left_out: records that the level or the rate did not ask for.
        dropped: lost records, by reason.
    """

    given: int
    kept: int
    left_out: int
    dropped: Mapping[Why, int]

    @property
    def lost(self) -> int:
        """Lost records, for any reason."""
        return sum(self.dropped.values())

    @property
    def waiting(self) -> int:
        """Records that are still on their way."""
        return self.given - self.kept - self.left_out - self.lost

    def describe(self, kind: Kind) -> str:
        """Describe the counts, such as `3 of 40 frames lost (queue full 3)`."""
        text = f"{self.lost:,} of {self.given:,} {PLURALS[kind]} lost"
        details = [f"{why} {count:,}" for why, count in self.dropped.items()]
        if self.waiting:
            details.append(f"{self.waiting:,} wait")
        if self.left_out:
            details.append(f"{self.left_out:,} not asked for")
        return f"{text} ({', '.join(details)})" if details else text


class Losses:
    """A ledger of records by class. Every method is safe to call from any thread.

    Every record is given once, and then kept, left out or dropped once. In between it
    counts as waiting, so a record that is lost without a trace waits for ever.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By class, and by what became of them: a reason for those that are lost.
        self._counts: dict[Kind, Counter[str]] = {kind: Counter() for kind in KINDS}

    def give(self, kind: Kind, count: int = 1) -> None:
        """Count records that came."""
        self._add(kind, "given", count)

    def keep(self, kind: Kind, count: int = 1) -> None:
        """Count records that arrived."""
        self._add(kind, "kept", count)

    def leave_out(self, kind: Kind, count: int = 1) -> None:
        """Count records that nobody asked for; these are not lost."""
        self._add(kind, "left out", count)

    def drop(self, kind: Kind, count: int = 1, *, why: Why) -> None:
        """Count lost records."""
        self._add(kind, why, count)

    def _add(self, kind: Kind, what: str, count: int) -> None:
        with self._lock:
            self._counts[kind][what] += count

    def tally(self, kind: Kind) -> Tally:
        """Return the counts of one class."""
        with self._lock:
            counts = self._counts[kind].copy()
        dropped: dict[Why, int] = {why: counts[why] for why in _REASONS if counts[why]}
        return Tally(
            counts["given"],
            counts["kept"],
            counts["left out"],
            MappingProxyType(dropped),
        )

    @property
    def tallies(self) -> dict[Kind, Tally]:
        """The counts of all classes, most important first."""
        return {kind: self.tally(kind) for kind in KINDS}

    def __str__(self) -> str:
        """One line, such as `0 of 12 summaries lost; 3 of 40 frames lost (...)`."""
        parts = [t.describe(kind) for kind, t in self.tallies.items() if t.given]
        return "; ".join(parts) or "no records"
