"""Measure what recording costs a function, before the run; for `watch.plan`."""

import functools
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from frugax.budget import OverheadBudget
from frugax.measure import copy_args, time_interleaved

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


def measure_costs(
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

    Args:
        fn: a function, or one from `watch.jit`.
        args: its arguments; copied for each call if it donates them.
        budget: the budget of the plan.
        steps: calls of the run.
        seconds: total time to measure besides compiling, roughly.
        chunk_s: duration of one turn, roughly.
        clock: a monotonic clock in seconds.

    Returns:
        The least that can be done: summaries, and their collection.

    Raises:
        TypeError: `fn` is not callable.
        ValueError: `seconds` or `chunk_s` is not positive and finite.
    """
    if not callable(fn):
        raise TypeError(f"a function is needed, got {fn!r}.")
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
