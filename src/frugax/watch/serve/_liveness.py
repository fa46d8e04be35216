"""Judge whether a run is alive, by its journal, its receipt and the locks it holds."""

import dataclasses
from typing import Literal, TypeAlias

State: TypeAlias = Literal[
    "waiting", "running", "quiet", "finishing", "finished", "closed", "died",
    "unreadable",
]  # fmt: skip
# A run writes when its overhead budget allows it, so a gap alone is not an alarm.
_QUIET_AFTER_S = 30.0
_QUIET_AFTER_GAPS = 5.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """What a run shows of itself.

    Attributes:
        has_journal: whether there is a journal.
        is_closed: whether its writer has closed it.
        is_finished: whether there is a receipt.
        is_held: whether a process of this machine holds the journal or the folder;
            None if that cannot be known.
        age_s: seconds since the journal grew.
        longest_gap_s: the longest of the recent times between two growths.
        error: why the journal cannot be read; empty if it can.
    """

    has_journal: bool
    is_closed: bool
    is_finished: bool
    is_held: bool | None
    age_s: float
    longest_gap_s: float
    error: str


def judge(signs: Signs) -> tuple[State, str]:
    """Return the state of a run, and why, as a sentence for readers of the page."""
    if signs.is_finished and not signs.is_held:
        return "finished", "The run has ended and left a receipt."
    if signs.error:
        return "unreadable", signs.error
    if not signs.has_journal:
        if signs.is_held is False:
            return "waiting", "No journal, and no process is working in the folder."
        return "waiting", "No journal yet: the run has not reached its first step."
    if signs.is_closed:
        if signs.is_held:
            why = "Training has ended; the run compresses, evaluates or reports."
            return "finishing", why
        return "closed", "The journal was closed properly. There is no receipt."
    if signs.age_s <= max(_QUIET_AFTER_S, _QUIET_AFTER_GAPS * signs.longest_gap_s):
        return "running", "Records are coming in."
    since = f"Nothing new for {_format_duration(signs.age_s)}"
    if signs.is_held:
        return "quiet", f"{since}, but its process still has it open."
    if signs.is_held is None:
        return "quiet", f"{since}; whether its process lives is not known."
    return "died", (
        f"{since}, the journal is not closed and no process of this machine has it "
        "open: it was killed, or runs on another machine."
    )


def _format_duration(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.0f} s"
