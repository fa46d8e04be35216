"""Statistics of host callbacks, as the guide presents them."""

import sys

from frugax.budget import table
from frugax.watch.delivery import callback_stats

from ._pace import pace_of


def get_callback_performance_stats() -> dict[str, dict[str, float]]:
    """Return the cost of this process's callbacks since the last reset, by name.

    Returns:
        For each name `total_calls` that ran, `error_count` of those that raised or
        hung, `avg_time_ms`, `max_time_ms`, `min_time_ms`, `total_time_ms` of the
        functions themselves, `skipped_calls` that the host left out, `hung_calls` that
        were abandoned, and `calls_from_inside`, the number of times that a program
        called back. Each of those costs about 100 microseconds more, see
        `print_callback_performance_report`.
    """
    return {
        name: {
            "total_calls": totals.calls,
            "error_count": totals.errors,
            # A name whose calls were all skipped has totals without a call.
            "avg_time_ms": 1000 * totals.total_s / max(totals.calls, 1),
            "max_time_ms": 1000 * totals.longest_s,
            # Infinity before the first call, which JSON cannot hold.
            "min_time_ms": 1000 * totals.shortest_s if totals.calls else 0.0,
            "total_time_ms": 1000 * totals.total_s,
            "skipped_calls": totals.skipped,
            "hung_calls": totals.hung,
            "calls_from_inside": totals.from_inside,
        }
        for name, totals in callback_stats.totals().items()
    }


def reset_callback_performance_stats() -> None:
    """Forget the cost of callbacks so far, and the frequencies they had come to."""
    callback_stats.reset()
    pace_of.cache_clear()


def print_callback_performance_report() -> None:
    """Print the cost of this process's callbacks as a table, and their last errors."""
    rows = [
        [
            name,
            f"{stats['total_calls']:,}",
            f"{stats['avg_time_ms']:.2f} ms",
            f"{stats['max_time_ms']:.2f} ms",
            f"{stats['error_count']:,}",
            f"{stats['skipped_calls']:,}",
        ]
        for name, stats in get_callback_performance_stats().items()
    ]
    columns = ["callback", "calls", "average", "longest", "errors", "skipped"]
    errors = [
        f"{name} raised last: {totals.last_error}"
        for name, totals in callback_stats.totals().items()
        if totals.last_error
    ]
    lines = ["Callback Performance Report:", table(columns, rows), *errors]
    # The guide's own sentence, for which scripts search.
    text = "\n".join(lines) if rows else "No callback performance data available"
    entries = callback_stats.describe_entries()
    sys.stdout.write(f"{text}\n{entries}\n" if entries else f"{text}\n")
