"""Statistics of host callbacks, as the guide presents them."""

import sys

from frugax.budget import table
from frugax.watch.delivery import CallbackTotals, callback_stats

from .host_calls import pace_of


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
    return {name: _to_plain(t) for name, t in callback_stats.totals().items()}


def reset_callback_performance_stats() -> None:
    """Forget the cost of callbacks so far, and the frequencies they had come to."""
    callback_stats.reset()
    pace_of.cache_clear()


def print_callback_performance_report() -> None:
    """Print the cost of this process's callbacks as a table."""
    sys.stdout.write(_format_report(callback_stats.totals()) + "\n")


def _to_plain(totals: CallbackTotals) -> dict[str, float]:
    # A name whose calls were all skipped has totals without a call.
    average_s = totals.total_s / max(totals.calls, 1)
    # Infinity before the first call, which JSON cannot hold.
    shortest_s = totals.shortest_s if totals.calls else 0.0
    return {
        "total_calls": totals.calls,
        "error_count": totals.errors,
        "avg_time_ms": 1000 * average_s,
        "max_time_ms": 1000 * totals.longest_s,
        "min_time_ms": 1000 * shortest_s,
        "total_time_ms": 1000 * totals.total_s,
        "skipped_calls": totals.skipped,
        "hung_calls": totals.hung,
        "calls_from_inside": totals.from_inside,
    }


def _format_report(all_totals: dict[str, CallbackTotals]) -> str:
    # The guide's own sentence, for which scripts search.
    if not all_totals:
        return "No callback performance data available"
    rows = []
    errors = []
    for name, totals in all_totals.items():
        plain = _to_plain(totals)
        rows.append(
            [
                name,
                f"{totals.calls:,}",
                f"{plain['avg_time_ms']:.2f} ms",
                f"{plain['max_time_ms']:.2f} ms",
                f"{totals.errors:,}",
                f"{totals.skipped:,}",
            ]
        )
        if totals.last_error:
            errors.append(f"{name} raised last: {totals.last_error}")
    columns = ["callback", "calls", "average", "longest", "errors", "skipped"]
    lines = ["Callback Performance Report:", table(columns, rows), *errors]
    entries = callback_stats.describe_entries()
    return "\n".join([*lines, entries] if entries else lines)
