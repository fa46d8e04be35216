"""Statistics of host callbacks in this process, by name: calls, errors, seconds."""

import contextlib
import dataclasses
import sys
import threading

from frugax.fileio import abandon_in_children

from ._runner import Outcome

# A program may make up a new name at every call, such as one with the step in it: from
# then on names are counted together, so that the totals cannot fill the memory.
_MAX_NAMES = 1000
_OTHER_NAMES = "(other callbacks)"


@dataclasses.dataclass(slots=True)
class CallbackTotals:
    """Totals of all callbacks of one name.

    Attributes:
        calls: calls of the function itself.
        errors: calls that raised or hung.
        hung: calls that were abandoned because they did not end in time.
        skipped: calls that the host left out.
        from_inside: times a running program called back to the host.
        total_s: seconds spent in the function.
        longest_s: seconds of the longest call.
        shortest_s: seconds of the shortest call; infinity before the first.
        last_error: text of the last error; empty if there was none.
    """

    calls: int = 0
    errors: int = 0
    hung: int = 0
    skipped: int = 0
    from_inside: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0
    shortest_s: float = float("inf")
    last_error: str = ""


class CallbackStats:
    """Running totals by callback name. Every method is safe to call from any thread.

    At most 1000 names are kept apart; later names share one entry.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, CallbackTotals] = {}
        self.abandon()
        abandon_in_children(self)

    def abandon(self) -> None:
        """Take a lock of its own in a forked child."""
        self._lock = threading.Lock()

    def record(self, name: str, outcome: Outcome) -> None:
        """Count one call of a callback by how it has ended."""
        with self._lock:
            totals = self._totals_of(name)
            if outcome.ended in ("skipped", "not started"):
                totals.skipped += 1
                return
            error = outcome.error
            if outcome.ended == "hung":
                totals.hung += 1
                error = "it did not end in time"
            totals.calls += 1
            totals.total_s += outcome.seconds
            totals.longest_s = max(totals.longest_s, outcome.seconds)
            totals.shortest_s = min(totals.shortest_s, outcome.seconds)
            is_first_error = bool(error) and not totals.errors
            if error:
                totals.errors += 1
                totals.last_error = error
        if is_first_error:
            _print_failure(name, error)

    def record_entry(self, name: str) -> None:
        """Count that a running program called back to the host."""
        with self._lock:
            self._totals_of(name).from_inside += 1

    def totals(self) -> dict[str, CallbackTotals]:
        """Return a copy of the totals, by name."""
        with self._lock:
            return {n: dataclasses.replace(t) for n, t in self._by_name.items()}

    def reset(self) -> None:
        """Forget all totals."""
        with self._lock:
            self._by_name.clear()

    def describe_entries(self) -> str:
        """Describe in one sentence which programs called back; empty if none did."""
        entries = {n: t.from_inside for n, t in self.totals().items() if t.from_inside}
        if not entries:
            return ""
        names = ", ".join(repr(name) for name in list(entries)[:3])
        if len(entries) > 3:
            names += f" and {len(entries) - 3} more"
        # The price of a callback that does nothing, measured on a busy machine.
        return (
            f"Programs with {names} called back {sum(entries.values()):,} times: that "
            "costs each of their calls about 100 microseconds, and they are compiled "
            "anew in every process; watch.jit and watch.scan avoid both."
        )

    def _totals_of(self, name: str) -> CallbackTotals:
        if name not in self._by_name and len(self._by_name) >= _MAX_NAMES:
            name = _OTHER_NAMES
        return self._by_name.setdefault(name, CallbackTotals())


def _print_failure(name: str, error: str) -> None:
    # Not a warning: turned into an error by a filter, it would have to be swallowed
    # here like any other error. Standard error itself may be closed or missing.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(
            f"frugax.watch: the callback {name!r} failed: {error}. The program goes "
            "on; further failures of this callback are only counted.\n"
        )


callback_stats = CallbackStats()
