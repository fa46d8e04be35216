"""`WatchPlan`: how often a function makes records, and their cost."""

import dataclasses
from typing import Literal

from frugax.budget import (
    OverheadBudget,
    Plan,
    format_bytes,
    format_seconds,
    format_share,
    table,
)

from ._program_variants import NEVER, level_by_kind
from ._recorder import MIN_GAP_S
from .probes import Probe

# By the level of the program that makes them.
KINDS: tuple[Literal["summaries", "numbers", "frames"], ...] = (
    "summaries",
    "numbers",
    "frames",
)
# Further names are only counted.
_MAX_NAMES = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRecords:
    """The records of one kind: their cost, and how often they are made.

    Attributes:
        kind: summaries, numbers or frames.
        names: the names of their probes.
        seconds: seconds that they add to a call that makes them, beside those of the
            kinds before them.
        bytes: bytes that leave the program with such a call.
        every: calls between two that make them; 1 for every call, 0 for never.
    """

    kind: Literal["summaries", "numbers", "frames"]
    names: tuple[str, ...]
    seconds: float
    bytes: int
    every: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WatchPlan(Plan):
    """The planned records of a function and their collection; `str` is a table.

    Attributes:
        budget: the budget.
        steps: calls of the run.
        step_seconds: seconds of one call without watching.
        drain_seconds: seconds of one collection, besides its records.
        records: the kinds of records that the function makes, in the order in which
            the budget pays for them. Calls that make frames also make numbers.
    """

    budget: OverheadBudget
    steps: int
    step_seconds: float
    drain_seconds: float
    records: tuple[PlannedRecords, ...]

    @property
    def drains(self) -> int:
        """The number of collections in the run, the one at its end included."""
        return min(self.steps, 1 + int(self.steps * self.step_seconds / MIN_GAP_S))

    @property
    def predicted(self) -> float:
        """Share of the running time that watching adds; <= `budget.share`."""
        records_s = sum(r.seconds / r.every for r in self.records if r.every)
        drains_s = self.drains * self.drain_seconds / self.steps
        return (records_s + drains_s) / self.step_seconds

    @property
    def left_out(self) -> tuple[str, ...]:
        """The probes that the budget cannot pay for at any rate."""
        return tuple(name for r in self.records if not r.every for name in r.names)

    def every(self, kind: Literal["summaries", "numbers", "frames"]) -> int:
        """Return the calls between two that make records of a kind; 0 for never."""
        return next((r.every for r in self.records if r.kind == kind), 0)

    def level_of(self, probe: Probe) -> int:
        """Return the lowest program level that records a probe under this plan."""
        level = level_by_kind(probe)
        # Summaries are never left out.
        return level if not level or self.every(KINDS[level]) else NEVER

    def __str__(self) -> str:
        rows = []
        for r in self.records:
            when = {0: "left out", 1: "every call"}.get(
                r.every, f"every {r.every} calls"
            )
            share = r.seconds / max(r.every, 1) / self.step_seconds * bool(r.every)
            names = ", ".join(r.names[:_MAX_NAMES])
            if len(r.names) > _MAX_NAMES:
                names += f" and {len(r.names) - _MAX_NAMES} more"
            rows.append(
                [
                    r.kind,
                    names,
                    when,
                    format_seconds(r.seconds),
                    format_bytes(r.bytes),
                    format_share(share),
                ]
            )
        drains_share = self.drains * self.drain_seconds / self.steps / self.step_seconds
        when = f"every {format_seconds(MIN_GAP_S)}"
        drain_s = format_seconds(self.drain_seconds)
        rows.append(["drains", "", when, drain_s, "", format_share(drains_share)])
        limit = f"limit {format_share(self.budget.share)}"
        step_s = f"of {format_seconds(self.step_seconds)}"
        rows.append(["all", "", limit, step_s, "", format_share(self.predicted)])
        return table(["records", "names", "when", "adds", "bytes", "share"], rows)
