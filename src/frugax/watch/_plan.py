"""`watch.plan`: choose how often records are made, to keep an overhead budget.

Between two collections the records stay where the program left them, as device
arrays. A collection (a "drain") has a cost of its own whatever it carries, and each
record adds a little. Summaries are in every call, and a watcher collects a few times a
second: a budget below the cost of these cannot be kept.
"""

import dataclasses
import functools
import math
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from frugax.budget import OverheadBudget, check_budget
from frugax.errors import InfeasibleBudgetError
from frugax.measure import copy_args, time_interleaved
from frugax.options import check_integer

from ._callback_receiver import ignore_calls
from ._entries import ProgramRecords
from ._event import KINDS as CLASSES
from ._program_variants import BARE, LOUD, QUIET, ProgramVariants, variants_of
from ._rate import Rate
from ._recorder import Recorder
from ._watch_plan import KINDS, PlannedRecords, WatchPlan
from .journal import Journal

# Calls whose records are read in one timed batch, as a drain reads many at a time.
_READ_BATCH = 64
# Calls whose records are held while the program is timed.
_KEPT = 512
_BARE = "bare"


def plan(
    fn: Callable[..., Any],
    budget: OverheadBudget,
    *,
    example_args: Sequence[Any],
    steps: int,
    seconds: float = 5.0,
    chunk_s: float = 0.005,
    clock: Callable[[], float] = time.perf_counter,
) -> WatchPlan:
    """Measure a function's records and plan how often the budget can pay for them.

    Summaries come first, since they are in every call, then numbers, then frames.
    Frames, and numbers that are not affordable in every call, get a rate that takes
    half of the rest.

    Args:
        fn: a function, or one from `watch.jit`.
        budget: the share of the running time that watching may add.
        example_args: arguments of `fn`, with which it is measured.
        steps: calls of the run; >= 1.
        seconds: total time to measure besides compiling, roughly.
        chunk_s: duration of one turn, roughly.
        clock: a monotonic clock in seconds.

    Raises:
        InfeasibleBudgetError: summaries and the collections cost more than the budget.
            With `needed` as the budget, planning succeeds, if it measures the same
            times.
        TypeError: `fn` is not callable, or `budget` is not an OverheadBudget.
        ValueError: a number is out of its range.
    """
    check_budget(budget, OverheadBudget)
    check_integer("steps", steps)
    if not callable(fn):
        raise TypeError(f"a function is needed, got {fn!r}.")
    timing: dict[str, Any] = {"seconds": seconds, "chunk_s": chunk_s, "clock": clock}
    with ignore_calls():
        draft = _measure_costs(fn, example_args, budget, steps, **timing)
    return choose_rates(draft)


def _measure_costs(
    fn: Callable[..., Any],
    args: Sequence[Any],
    budget: OverheadBudget,
    steps: int,
    *,
    seconds: float,
    chunk_s: float,
    clock: Callable[[], float],
) -> WatchPlan:
    """Time the programs of a function in turns, and the collection of their records.

    Returns:
        The least that can be done: summaries, and their collection.
    """
    variants = variants_of(fn) if hasattr(fn, "variants") else ProgramVariants(fn, {})
    if not variants.is_traced:
        variants.trace(args, {})
    programs = {
        level: functools.partial(variants.call_level, level)
        for level in (BARE, QUIET, LOUD)
        if variants.names_at(level)
    }
    times = time_interleaved(
        {_BARE: variants.bare}
        | {str(level): _keep_records(program) for level, program in programs.items()},
        args,
        seconds=seconds,
        chunk_s=chunk_s,
        donates=variants.donates,
        clock=clock,
    )
    records: list[PlannedRecords] = []
    drain_s = below_s = 0.0
    below_bytes = 0
    for level, program in programs.items():
        batch = [
            program(*(copy_args(args) if variants.donates else args))[1]
            for _ in range(_READ_BATCH)
        ]
        # Outside of the timed part: waiting for the device is the program's own time.
        jax.block_until_ready(batch)
        read_s, drain_s = _time_collection(batch, clock)
        # Noise may make cheap records look faster than nothing, or than fewer.
        added_s = max(times.added(str(level), _BARE).middle, 0.0) + read_s
        records.append(
            PlannedRecords(
                kind=KINDS[level],
                names=variants.names_at(level),
                seconds=max(added_s - below_s, 0.0),
                bytes=batch[0].nbytes - below_bytes,
                every=int(level == BARE),
            )
        )
        below_s, below_bytes = max(added_s, below_s), batch[0].nbytes
    return WatchPlan(
        budget=budget,
        steps=steps,
        step_seconds=float(np.median(times.seconds[_BARE])),
        drain_seconds=drain_s,
        records=tuple(records),
    )


def _keep_records(program: Callable[..., Any]) -> Callable[..., Any]:
    """Hold the records of a program for a while, as a watcher does.

    A program whose outputs are dropped at once gets the same warm buffers again.
    """
    kept: deque[Any] = deque(maxlen=_KEPT)

    def call(*args: Any) -> Any:
        out, records = program(*args)
        kept.append(records)
        return out

    return call


def _time_collection(
    batch: Sequence[Any], clock: Callable[[], float]
) -> tuple[float, float]:
    """Return the seconds to collect the records of a call, and those of one drain.

    They are collected as a watcher does it, into a journal in a temporary folder. A
    drain has the records of one call, and is flushed.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        Journal.create(Path(folder) / "journal", {}) as journal,
    ):
        recorder = Recorder(journal, rate=Rate(1.0), clock=clock)
        recorder.has_started = True  # no thread: its work is timed here

        def collect(first: int, entries: Sequence[Any]) -> float:
            for step, records in enumerate(entries, first):
                recorder.add(ProgramRecords(step, records, frozenset(CLASSES)))
            started = clock()
            recorder.collect()
            return clock() - started

        # The first one imports and fills caches, which a run does once.
        collect(0, batch[:1])
        started = clock()
        one_s = collect(1, batch[:1])
        journal.flush()
        drain_s = clock() - started
        all_s = collect(2, batch)
    return max(all_s - one_s, 0.0) / (len(batch) - 1), drain_s


def choose_rates(draft: WatchPlan) -> WatchPlan:
    """Choose the rates of a plan of summaries only; see `plan`."""
    budget, steps = draft.budget, draft.steps
    # Whether a plan fits is always decided by the prediction itself, so that rounding
    # cannot make a plan of `needed` exceed it.
    fits = lambda candidate: candidate.predicted <= budget.share
    if not fits(draft):
        raise InfeasibleBudgetError(
            "collecting records during the run, with the summaries if there are any,",
            needed=draft.predicted,
            limit=budget.share,
            unit="of the running time (as a share)",
            hint="run more steps, or record fewer summaries if there are any.",
        )
    for i, planned in enumerate(draft.records):
        if planned.every:
            continue
        if planned.kind == "numbers" and fits(with_rate := _set_rate(draft, i, 1)):
            draft = with_rate
            continue
        # Half of the rest: something is left for the next kind, and for a run whose
        # times are longer than the measured ones.
        rest_s = (budget.share - draft.predicted) * draft.step_seconds / 2
        # A call that makes frames makes numbers as well: it must be one of theirs.
        base = max(draft.every("numbers"), 1)
        every = steps + 1
        if rest_s > 0 and planned.seconds / rest_s <= steps:
            every = base * max(math.ceil(planned.seconds / rest_s / base), 1)
        if every <= steps and fits(with_rate := _set_rate(draft, i, every)):
            draft = with_rate
    return draft


def _set_rate(draft: WatchPlan, i: int, every: int) -> WatchPlan:
    records = list(draft.records)
    records[i] = dataclasses.replace(records[i], every=every)
    return dataclasses.replace(draft, records=tuple(records))
