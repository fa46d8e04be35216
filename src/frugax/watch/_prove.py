"""What watching really costs: the watched function and the bare one, in turns."""

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

from ._turns import check_seconds, take_turns

# Two runs of the same program may differ by no more: else the machine is too restless
# for a claim of one percent.
_MOST_RESTLESS = 0.005


def prove(
    watched: Callable[..., Any],
    *args: Any,
    seconds: float = 20.0,
    budget: OverheadBudget | None = None,
    chunk_s: float = 0.05,
    clock: Callable[[], float] = time.perf_counter,
) -> Receipt:
    """Measure what watching a function costs, in this process, with its watcher.

    The watched function, the bare one, and the bare one again run in turns, in random
    order. The overhead is the median of the ratios of neighbours in time. It is proven
    only if the bare program beside itself, the A/A control, differs by 0.5% at most;
    otherwise the verdict is "cannot tell". What happens less often than once in
    `chunk_s`, such as a slow flush to a disk, is not in a median.

    Args:
        watched: from `watch.jit`. Its watcher takes the records of these calls.
        args: its arguments; copied for each call if it donates.
        seconds: about how long to measure. 20 suits a quiet machine.
        budget: the most that watching may add; None: 1%.
        chunk_s: how long each turn lasts, about.
        clock: seconds, rising. `time.process_time` counts the work of all threads, and
            is calmer where other programs run.

    Returns:
        A receipt with two entries: the overhead, of which the interval ends at the
        upper 95% bound; and how many results differ from the bare program's by a bit.

    Raises:
        TypeError: `watched` is not from `watch.jit`, or `budget` is no budget.
        ValueError: a time is not above 0.
    """
    variants = variants_of(watched)
    budget = OverheadBudget("1%") if budget is None else budget
    check_budget(budget, OverheadBudget)
    check_seconds(seconds, chunk_s)
    bare = variants.bare
    if variants.donates:
        differing = None  # the first call would use up what the second needs
    else:
        differing = float(_differing(watched(*args), bare(*args)))
    turns = take_turns(
        {"watched": watched, "bare": bare, "again": bare},
        args,
        seconds=seconds,
        chunk_s=chunk_s,
        donates=variants.donates,
        clock=clock,
    )
    ratio = turns.ratio("watched", "bare")
    control = turns.ratio("again", "bare")
    restless = max(control.high - 1, 1 - control.low)
    calm = restless <= _MOST_RESTLESS
    step = float(np.median(turns.seconds["bare"]))
    said = (
        f"{turns.rounds} rounds of {turns.calls} calls in turns, a call "
        f"{format_seconds(step)}; A/A control {control.middle:.4f} "
        f"({control.low:.4f} to {control.high:.4f})"
    )
    if not calm:
        said += (
            f"; the overhead came out as {ratio.middle - 1:.2%} (at most "
            f"{ratio.high - 1:.2%}), but the control is not within "
            f"{format_share(_MOST_RESTLESS)}: measure longer, or on a calmer machine"
        )
    overhead = Spend(
        name="time that watching adds",
        unit="share",
        limit=budget.share,
        measured=ratio.middle - 1 if calm else None,
        noise=ratio.noise if calm else 0.0,
        source=said,
    )
    same = Spend(
        name="results that differ",
        unit="arrays",
        limit=0,
        measured=differing,
        source="one call of each, compared bit by bit"
        if differing is not None
        else "not compared: the function donates its arguments",
    )
    return Receipt((overhead, same) if differing is not None else (overhead,))


def variants_of(watched: Any) -> Any:
    """The programs of a watched function.

    Raises:
        TypeError: it is not from `watch.jit`.
    """
    variants = getattr(watched, "variants", None)
    if variants is None:
        raise TypeError(
            f"a function from watch.jit is needed, got {watched!r}: write "
            "watch.jit(fn)."
        )
    return variants()


def _differing(one: Any, other: Any) -> int:
    """How many arrays are not the same bits."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return sum(np.asarray(a).tobytes() != np.asarray(b).tobytes() for a, b in pairs)
