"""`watch.prove`: measure the overhead of watching against the bare program."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from frugax.budget import (
    OverheadBudget,
    Receipt,
    Spend,
    check_budget,
    format_seconds,
    format_share,
)
from frugax.measure import time_interleaved

from ._program_variants import variants_of

# Two runs of the same program may differ by at most this much; on a machine that is
# noisier than this a claim of one percent means nothing.
_MAX_CONTROL_ERROR = 0.005


def prove(
    watched: Callable[..., Any],
    *args: Any,
    seconds: float = 20.0,
    budget: OverheadBudget | None = None,
    chunk_s: float = 0.05,
    clock: Callable[[], float] = time.perf_counter,
) -> Receipt:
    """Measure the overhead of watching a function in this process, with its watcher.

    The watched function, the bare one, and the bare one again run in turns in random
    order. The overhead is the median of the ratios of neighbours in time. It is proven
    only if the bare program beside itself, the A/A control, differs by at most 0.5%;
    otherwise the verdict is "cannot tell". A median does not contain events that are
    rarer than `chunk_s`, such as a slow flush to a disk.

    Args:
        watched: from `watch.jit` or `watch.apply`. Its watcher takes the records of
            these calls.
        args: its arguments; copied for each call if it donates them.
        seconds: total time to measure, roughly. 20 suits a quiet machine.
        budget: the share that watching may add; None for 1%.
        chunk_s: duration of one turn, roughly.
        clock: a monotonic clock in seconds. `time.process_time` counts the work of all
            threads, and is calmer where other programs run.

    Returns:
        A receipt with two entries: the overhead, whose interval ends at the upper 95%
        bound; and the number of results that differ from the bare program's in any bit.

    Raises:
        TypeError: `watched` is not from `watch.jit`, or `budget` is not an
            OverheadBudget.
        ValueError: `seconds` or `chunk_s` is not positive and finite.
    """
    variants = variants_of(watched)
    if budget is None:
        budget = OverheadBudget("1%")
    check_budget(budget, OverheadBudget)
    bare = variants.bare
    # With donation the first call would use up the arguments that the second needs.
    differing = None
    if not variants.donates:
        differing = float(_count_differing(watched(*args), bare(*args)))
    # In turns, because the speed of a machine drifts by more than the one percent in
    # question; neighbours in time share the drift.
    times = time_interleaved(
        {"watched": watched, "bare": bare, "again": bare},
        args,
        seconds=seconds,
        chunk_s=chunk_s,
        donates=variants.donates,
        clock=clock,
    )
    ratio = times.ratio("watched", "bare")
    control = times.ratio("again", "bare")
    control_error = max(control.high - 1, 1 - control.low)
    is_calm = control_error <= _MAX_CONTROL_ERROR
    step_s = float(np.median(times.seconds["bare"]))
    source = (
        f"{times.rounds} rounds of {times.calls} calls in turns, a call "
        f"{format_seconds(step_s)}; A/A control {control.middle:.4f} "
        f"({control.low:.4f} to {control.high:.4f})"
    )
    problems = ""
    if not is_calm:
        problems = (
            f"it came out as {ratio.middle - 1:.2%} (at most {ratio.high - 1:.2%}), "
            "but bare calls beside bare ones are not within "
            f"{format_share(_MAX_CONTROL_ERROR)}: measure longer, or on a calmer "
            "machine."
        )
    overhead = Spend(
        name="time that watching adds",
        unit="share",
        limit=budget.share,
        measured=ratio.middle - 1 if is_calm else None,
        noise=ratio.noise * is_calm,
        source=source,
        problems=problems,
    )
    if differing is None:
        return Receipt((overhead,))
    same_bits = Spend(
        name="results that differ",
        unit="arrays",
        limit=0,
        measured=differing,
        source="one call of each, compared bit by bit",
    )
    return Receipt((overhead, same_bits))


def _count_differing(first: Any, second: Any) -> int:
    """Return how many arrays differ in any bit."""
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return sum(np.asarray(a).tobytes() != np.asarray(b).tobytes() for a, b in pairs)
