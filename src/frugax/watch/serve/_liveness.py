"""Judge whether a run is alive, by its journal, its receipt and the locks it holds."""

from typing import Literal, TypeAlias

from frugax.budget import format_seconds

State: TypeAlias = Literal[
    "waiting", "running", "quiet", "finishing", "finished", "closed", "died",
    "unreadable",
]  # fmt: skip
# A run writes when its overhead budget allows it, so a gap alone is not an alarm.
_QUIET_AFTER_S = 30.0
_QUIET_AFTER_GAPS = 5.0


def judge(
    *,
    has_journal: bool,
    is_closed: bool,
    is_finished: bool,
    is_held: bool | None,
    age_s: float,
    longest_gap_s: float,
    error: str,
) -> tuple[State, str]:
    """Return the state of a run, and why, as a sentence for readers of the page.

    Args:
        has_journal: whether there is a journal.
        is_closed: whether its writer has closed it.
        is_finished: whether there is a receipt.
        is_held: whether a process of this machine holds the journal or the folder;
            None if that cannot be known.
        age_s: seconds since the journal grew.
        longest_gap_s: the longest of the recent times between two growths.
        error: why the journal cannot be read; empty if it can.
    """
    if is_finished and not is_held:
        return "finished", "The run has ended and left a receipt."
    if error:
        return "unreadable", error
    if not has_journal:
        if is_held is False:
            return "waiting", "No journal, and no process is working in the folder."
        return "waiting", "No journal yet: the run has not reached its first step."
    if is_closed:
        if is_held:
            why = "Training has ended; the run compresses, evaluates or reports."
            return "finishing", why
        return "closed", "The journal was closed properly. There is no receipt."
    if age_s <= max(_QUIET_AFTER_S, _QUIET_AFTER_GAPS * longest_gap_s):
        return "running", "Records are coming in."
    since = f"Nothing new for {format_seconds(age_s)}"
    if is_held:
        return "quiet", f"{since}, but its process still has it open."
    if is_held is None:
        return "quiet", f"{since}; whether its process lives is not known."
    return "died", (
        f"{since}, the journal is not closed and no process of this machine has it "
        "open: it was killed, or runs on another machine."
    )
