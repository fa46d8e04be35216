"""Call the user's functions from programs, by name: errors, times and pace.

Whatever a function does, the program goes on.
"""

import dataclasses
import math
import threading
import time
from collections.abc import Callable

from frugax.fileio import abandon_in_children
from frugax.watch.delivery import error_text, write_message

# A function that hangs is abandoned after this time, and the program goes on.
_MAX_WAIT_S = 10.0
# More calls are never left out in a row, so that a price that has fallen is noticed.
_MOST_LEFT_OUT = 1023
# A program may make up a new name at every call, such as one with the step in it: from
# then on names are counted together, so that the totals cannot fill the memory.
_MAX_NAMES = 1000
_OTHER_NAMES = "(other callbacks)"


@dataclasses.dataclass(slots=True)
class CallTotals:
    """Totals of all calls of one name.

    Attributes:
        calls: calls of the function itself.
        errors: calls that raised or hung.
        hung: calls that were abandoned because they did not end in time.
        skipped: calls that were left out.
        total_s: seconds spent in the function.
        longest_s: seconds of the longest call.
        shortest_s: seconds of the shortest call; infinity before the first.
        last_error: text of the last error; empty if there was none.
        left_out: how many of the next calls may not run.
    """

    calls: int = 0
    errors: int = 0
    hung: int = 0
    skipped: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0
    shortest_s: float = math.inf
    last_error: str = ""
    left_out: int = 0


class HostCalls:
    """Calls functions and counts, by name; for any thread.

    Attributes:
        keeps_times: whether the calls are counted.
    """

    def __init__(self) -> None:
        self.keeps_times = True
        self._by_name: dict[str, CallTotals] = {}
        self.abandon()
        abandon_in_children(self)

    def abandon(self) -> None:
        """Take a lock of its own in a forked child."""
        self._lock = threading.Lock()

    def run(
        self, name: str, call: Callable[[], object], *, max_avg_s: float = math.inf
    ) -> None:
        """Call a function in a thread of its own and wait until it ends.

        Args:
            name: its name.
            call: the function.
            max_avg_s: after a call as many are left out as it takes for all of them
                together to have taken this long each.
        """
        with self._lock:
            totals = self._totals_of(name)
            if totals.left_out > 0:
                totals.left_out -= 1
                totals.skipped += self.keeps_times
                return
        ended: list[tuple[float, str]] = []
        # Daemon: a function that hangs must not keep the process alive.
        thread = threading.Thread(
            target=lambda: ended.append(_time_call(call)),
            name="frugax callback",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError as e:  # no more threads, or the interpreter is exiting
            ended.append((0.0, error_text(e)))
        else:
            thread.join(_MAX_WAIT_S)
        is_hung = not ended
        seconds, error = ended[0] if ended else (_MAX_WAIT_S, "it did not end in time")
        with self._lock:
            # The ratio may be infinite.
            calls = min(seconds / max_avg_s, _MOST_LEFT_OUT + 1)
            totals.left_out = math.ceil(calls) - 1
            is_first_error = bool(error) and not totals.errors
            totals.errors += bool(error)
            totals.last_error = error or totals.last_error
            if self.keeps_times:
                totals.calls += 1
                totals.hung += is_hung
                totals.total_s += seconds
                totals.longest_s = max(totals.longest_s, seconds)
                totals.shortest_s = min(totals.shortest_s, seconds)
        if is_first_error:
            write_message(
                f"the callback {name!r} failed: {error}. The program goes on; further "
                "failures of this callback are only counted."
            )

    def totals(self) -> dict[str, CallTotals]:
        """Return a copy of the totals, by name."""
        with self._lock:
            return {n: dataclasses.replace(t) for n, t in self._by_name.items()}

    def reset(self) -> None:
        """Forget all totals, and the pace that the calls had come to."""
        with self._lock:
            self._by_name.clear()

    def _totals_of(self, name: str) -> CallTotals:
        if name not in self._by_name and len(self._by_name) >= _MAX_NAMES:
            name = _OTHER_NAMES
        return self._by_name.setdefault(name, CallTotals())


def _time_call(call: Callable[[], object]) -> tuple[float, str]:
    began, error = time.perf_counter(), ""
    try:
        call()
    # Any exception of a user's function, SystemExit too, is counted; it must not end
    # the program that is watched.
    except BaseException as e:
        error = error_text(e)
    return time.perf_counter() - began, error


host_calls = HostCalls()
