"""What callbacks have cost: a few numbers for each name, however often it is called."""

import contextlib
import sys
import threading
from collections.abc import Iterable

from frugax.budget import table

# A name made anew in each call (a step in it, say) must not fill the memory.
_MOST_NAMES = 1000
_THE_REST = "(other callbacks)"


class CallbackStats:
    """Running totals by name. Any thread may write to it.

    At most 1000 names are kept apart; later ones are counted together.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_name: dict[str, _Totals] = {}

    def record(self, name: str, seconds: float, *, error: str = "") -> None:
        """A callback ran.

        Args:
            name: of the callback.
            seconds: what it took.
            error: what it raised, as text; empty if nothing. The first of each name
                is said on standard error, later ones are counted only.
        """
        with self._lock:
            totals = self._of(name)
            totals.calls += 1
            totals.total_s += seconds
            totals.longest_s = max(totals.longest_s, seconds)
            totals.shortest_s = min(totals.shortest_s, seconds)
            is_first = bool(error) and not totals.errors
            if error:
                totals.errors += 1
                totals.last_error = error
        if is_first:
            _say_failed(name, error)

    def hang(self, name: str, seconds: float) -> None:
        """A callback was not waited for any longer, after so many seconds."""
        with self._lock:
            self._of(name).hung += 1
        self.record(name, seconds, error="it did not end in time")

    def skip(self, name: str) -> None:
        """A callback was left out."""
        with self._lock:
            self._of(name).skipped += 1

    def enter(self, name: str) -> None:
        """A program called back from inside, as JAX's own callbacks do."""
        with self._lock:
            self._of(name).from_inside += 1

    def get(self) -> dict[str, dict[str, float]]:
        """The totals by name; see `get_callback_performance_stats`."""
        with self._lock:
            return {name: totals.said() for name, totals in self._by_name.items()}

    def last_errors(self) -> dict[str, str]:
        """What each callback that has failed raised last."""
        with self._lock:
            return {n: t.last_error for n, t in self._by_name.items() if t.last_error}

    def reset(self) -> None:
        """Forget everything."""
        with self._lock:
            self._by_name.clear()

    def _of(self, name: str) -> "_Totals":
        if name not in self._by_name and len(self._by_name) >= _MOST_NAMES:
            name = _THE_REST
        return self._by_name.setdefault(name, _Totals())


def _say_failed(name: str, error: str) -> None:
    # No warning: made an error, it would have to be swallowed here like any other.
    with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr is gone
        sys.stderr.write(
            f"frugax.watch: the callback {name!r} failed: {error}. The program goes "
            "on; further failures of it are counted only, see "
            "print_callback_performance_report.\n"
        )


class _Totals:
    __slots__ = (
        "calls",
        "errors",
        "from_inside",
        "hung",
        "last_error",
        "longest_s",
        "shortest_s",
        "skipped",
        "total_s",
    )

    def __init__(self) -> None:
        self.calls = self.errors = self.hung = self.skipped = self.from_inside = 0
        self.total_s = self.longest_s = 0.0
        self.shortest_s = float("inf")
        self.last_error = ""

    def said(self) -> dict[str, float]:
        ms = 1000.0
        return {
            "total_calls": self.calls,
            "error_count": self.errors,
            "avg_time_ms": ms * self.total_s / self.calls if self.calls else 0.0,
            "max_time_ms": ms * self.longest_s,
            "min_time_ms": ms * self.shortest_s if self.calls else 0.0,
            "total_time_ms": ms * self.total_s,
            "skipped_calls": self.skipped,
            "hung_calls": self.hung,
            "calls_from_inside": self.from_inside,
        }


STATS = CallbackStats()  # of this process


def get_callback_performance_stats() -> dict[str, dict[str, float]]:
    """What the callbacks of this process have cost since the last reset, by name.

    Returns:
        For each name `total_calls` that ran, `error_count` of those that raised or
        hung, `avg_time_ms`, `max_time_ms`, `min_time_ms`, `total_time_ms` of the
        functions themselves, `skipped_calls` that the host left out, `hung_calls` that
        were not waited for any longer, and `calls_from_inside`: how often a program
        called back. Each of those costs some 100 microseconds more, see
        `print_callback_performance_report`.
    """
    return STATS.get()


def reset_callback_performance_stats() -> None:
    """Forget what callbacks have cost so far."""
    STATS.reset()


def print_callback_performance_report() -> None:
    """Print what the callbacks of this process have cost, as a table."""
    sys.stdout.write(report_text(STATS.get(), STATS.last_errors()) + "\n")


def report_text(stats: dict[str, dict[str, float]], last_errors: dict[str, str]) -> str:
    """The text of `print_callback_performance_report`.

    Example:
        >>> one = CallbackStats()
        >>> one.record("plot", 0.0125)
        >>> print(report_text(one.get(), {}))
        Callback Performance Report:
        callback  calls  average   longest   errors  skipped
        --------  -----  --------  --------  ------  -------
        plot      1      12.50 ms  12.50 ms  0       0
    """
    if not stats:
        return "No callback performance data available"
    rows = [
        [
            name,
            f"{s['total_calls']:,.0f}",
            f"{s['avg_time_ms']:.2f} ms",
            f"{s['max_time_ms']:.2f} ms",
            f"{s['error_count']:,.0f}",
            f"{s['skipped_calls']:,.0f}",
        ]
        for name, s in stats.items()
    ]
    columns = ["callback", "calls", "average", "longest", "errors", "skipped"]
    lines = ["Callback Performance Report:", table(columns, rows)]
    lines += [f"{name} raised last: {error}" for name, error in last_errors.items()]
    inside = callbacks_note(stats)
    return "\n".join([*lines, inside] if inside else lines)


def callbacks_note(stats: dict[str, dict[str, float]]) -> str:
    """One sentence on programs that call back from inside; empty if none did.

    The cost of a callback that does nothing was measured once, on a busy machine.
    """
    inside = {n: s["calls_from_inside"] for n, s in stats.items()}
    names = [name for name, calls in inside.items() if calls]
    if not names:
        return ""
    return (
        f"Programs with {_listed(names)} called back {sum(inside.values()):,.0f} "
        "times: that costs each of their calls about 100 microseconds, and they are "
        "compiled anew in every process; watch.jit and watch.scan avoid both."
    )


def _listed(names: Iterable[str]) -> str:
    quoted = [repr(name) for name in names]
    shown = ", ".join(quoted[:3])
    return shown if len(quoted) <= 3 else f"{shown} and {len(quoted) - 3} more"
