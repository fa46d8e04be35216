"""Measure what recording costs a function, before the run; for `watch.plan`."""

import dataclasses
import functools
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from frugax.measure import copy_args, time_interleaved

from ._collector import Collector
from ._dispatch import Dispatch
from ._program_variants import BARE, LOUD, QUIET, ProgramVariants, variants_of
from ._rate import Rate
from ._series import ProgramRecords
from .delivery import KINDS
from .journal import Journal

# Calls whose records are read in one timed batch, as a drain reads many at a time.
_READ_BATCH = 64
# Calls whose records are held while the program is timed.
_KEPT = 512
_BARE = "bare"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LevelCost:
    """What the records of one level add to a call that makes them.

    Attributes:
        level: `BARE`, `QUIET` or `LOUD`.
        names: the probes.
        seconds: seconds that they add to those of the levels below, collecting
            included; >= 0.
        bytes: bytes that leave the program with each call.
    """

    level: int
    names: tuple[str, ...]
    seconds: float
    bytes: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecordingCosts:
    """What recording costs a function.

    Attributes:
        step_seconds: seconds of one call without watching.
        drain_seconds: seconds to write and flush the records of one call.
        levels: the levels that the function has records of, from the lowest.
    """

    step_seconds: float
    drain_seconds: float
    levels: tuple[LevelCost, ...]


def measure_costs(
    fn: Callable[..., Any],
    args: Sequence[Any],
    *,
    seconds: float,
    chunk_s: float,
    clock: Callable[[], float],
) -> RecordingCosts:
    """Time the programs of a function in turns, and the collection of their records.

    Args:
        fn: a function, or one from `watch.jit`.
        args: its arguments; copied for each call if it donates them.
        seconds: total time to measure besides compiling, roughly.
        chunk_s: duration of one turn, roughly.
        clock: a monotonic clock in seconds.

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
    levels: list[LevelCost] = []
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
        levels.append(
            LevelCost(
                level=level,
                names=variants.names_at(level),
                seconds=max(added_s - below_s, 0.0),
                bytes=batch[0].nbytes - below_bytes,
            )
        )
        below_s, below_bytes = max(added_s, below_s), batch[0].nbytes
    return RecordingCosts(
        step_seconds=float(np.median(times.seconds[_BARE])),
        drain_seconds=drain_s,
        levels=tuple(levels),
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
    # The handler of a "call" probe is not called: planning must have no side effects.
    probes = {
        name: dataclasses.replace(one, handler=None)
        for name, one in batch[0].probes.items()
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        Journal.create(Path(folder) / "journal", {}) as journal,
    ):
        collector = Collector(
            Dispatch(journal, (), asynchronous=True, max_bytes=1),
            rate=Rate(1.0),
            max_entries=len(batch),
            clock=clock,
        )
        collector.has_started = True  # no thread: its work is timed here

        def collect(first: int, entries: Sequence[Any]) -> float:
            for step, records in enumerate(entries, first):
                entry = ProgramRecords(step, probes, records, frozenset(KINDS))
                collector.add(entry)
            started = clock()
            collector.collect()
            return clock() - started

        # The first one imports and fills caches, which a run does once.
        collect(0, batch[:1])
        started = clock()
        one_s = collect(1, batch[:1])
        journal.flush()
        drain_s = clock() - started
        all_s = collect(2, batch)
    return max(all_s - one_s, 0.0) / (len(batch) - 1), drain_s
