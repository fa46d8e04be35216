"""Statistics of host callbacks, as the guide presents them."""

import sys

from frugax.budget import table

from ._host_calls import host_calls

# That of a callback that does nothing, measured on a busy machine.
_PRICE = "Besides, each call from inside a program takes it about 100 microseconds."


def get_callback_performance_stats() -> dict[str, dict[str, float]]:
    """Return the cost of this process's callbacks since the last reset, by name.

    Returns:
        For each name `total_calls` that ran, `error_count` of those that raised or
        hung, `avg_time_ms`, `max_time_ms`, `min_time_ms`, `total_time_ms` of the
        functions themselves, `skipped_calls` that the host left out, and `hung_calls`
        that were abandoned.
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
        }
        for name, totals in host_calls.totals().items()
    }


def reset_callback_performance_stats() -> None:
    """Forget the cost of callbacks so far, and the frequencies they had come to."""
    host_calls.reset()


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
        for name, totals in host_calls.totals().items()
        if totals.last_error
    ]
    lines = ["Callback Performance Report:", table(columns, rows), *errors]
    # The guide's own sentence, for which scripts search.
    text = "\n".join(lines) if rows else "No callback performance data available"
    sys.stdout.write(f"{text}\n{_PRICE}\n" if rows else f"{text}\n")
