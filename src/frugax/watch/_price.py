"""`watch.price`: measure how much each probe of a function costs, before the run."""

import dataclasses
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from frugax.budget import format_bytes, format_seconds, table
from frugax.measure import InterleavedTimes, copy_args, time_interleaved

from ._collector import Collector
from ._dispatch import Dispatch
from ._entry_reader import ProgramRecords
from ._pace import Pace
from ._program_variants import ProgramVariants
from .delivery import KINDS
from .journal import Journal
from .probes import Probe

# Calls whose records are read in one timed batch, as a drain reads many at a time.
_READ_BATCH = 64
# Calls whose records are held while the program is timed.
_KEPT = 512
# Seconds to measure a probe as a callback: few, since the difference is large (a step
# of 10 us takes 11 times as long, see docs/maintainers.md).
_CALLBACK_SECONDS = 1.0
_BARE = "bare"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProbePrice:
    """The price of one probe.

    Attributes:
        name: name of the probe.
        kind: its class.
        seconds: seconds that it adds to a call, collecting included; >= 0. A number
            adds them to `WatchPrices.shared_seconds`.
        noise: half-width of the interval of `seconds`.
        bytes: bytes that leave the program with each call.
        callback_seconds: seconds that the same probe adds as a `jax.debug.callback`;
            None if not measured, or for a probe in `watch.scan`, which has no callback.
    """

    name: str
    kind: str
    seconds: float
    noise: float
    bytes: int
    callback_seconds: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WatchPrices:
    """The prices of a function's probes; `str` is a table.

    Attributes:
        step_seconds: seconds of one call without watching.
        drain_seconds: seconds to write and flush the records of one call.
        shared_seconds: seconds that the numbers of a call add once, however many they
            are: they leave the program as one vector and are read as one.
        probes: the price of each probe, in the order of the program.
    """

    step_seconds: float
    drain_seconds: float
    shared_seconds: float
    probes: tuple[ProbePrice, ...]

    @property
    def all_seconds(self) -> float:
        """Seconds that all probes add to a call that records them."""
        return self.shared_seconds + sum(p.seconds for p in self.probes)

    def __str__(self) -> str:
        rows = [
            [
                p.name,
                p.kind,
                f"{format_seconds(p.seconds)} ± {format_seconds(p.noise)}",
                format_bytes(p.bytes),
                "-"
                if p.callback_seconds is None
                else format_seconds(p.callback_seconds),
            ]
            for p in self.probes
        ]
        if self.shared_seconds:
            shared = format_seconds(self.shared_seconds)
            rows.append(["numbers, once", "scalar", shared, "", ""])
        rows.append(["one drain", "", format_seconds(self.drain_seconds), "", ""])
        rows.append(["one call", "", format_seconds(self.step_seconds), "", ""])
        return table(["probe", "kind", "adds", "bytes", "as a callback"], rows)


def price(
    fn: Callable[..., Any],
    *args: Any,
    seconds: float = 5.0,
    chunk_s: float = 0.005,
    callbacks: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> WatchPrices:
    """Measure the price of each probe of a function.

    For each probe a program with that probe alone is compiled, and these programs and
    the bare one are timed in turns. The time to collect the records is added. Several
    numbers are cheaper than the sum of each alone, so a program with all of them is
    timed beside the others.

    Args:
        fn: a function, or one from `watch.jit`.
        args: its arguments; copied for each call if it donates them.
        seconds: total time to measure besides compiling, roughly.
        chunk_s: duration of one turn, roughly.
        callbacks: whether to measure each probe as a callback too.
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
    probes = variants.all_probes
    groups: list[tuple[Probe, ...]] = [(probe,) for probe in probes]
    numbers = tuple(probe for probe in probes if probe.kind == "scalar")
    if len(numbers) > 1:
        groups.append(numbers)
    programs = [variants.with_probes(group) for group in groups]

    def measure(
        timed: Mapping[str, Callable[..., Any]], seconds: float
    ) -> InterleavedTimes:
        return time_interleaved(
            timed,
            args,
            seconds=seconds,
            chunk_s=chunk_s,
            donates=variants.donates,
            clock=clock,
        )

    # Probes are numbered here, since two of them may have the same name.
    timed = {f"{i}": _keep_records(program) for i, program in enumerate(programs)}
    times = measure({_BARE: variants.bare, **timed}, seconds)
    added = [times.added(f"{i}", _BARE) for i in range(len(programs))]
    collections = [
        _measure_collection(program, args, clock, donates=variants.donates)
        for program in programs
    ]
    # Noise may make a cheap probe look faster than nothing.
    alone_s = [
        max(one.middle, 0.0) + read_s
        for one, (read_s, _) in zip(added, collections, strict=True)
    ]
    numbers_s = [s for s, p in zip(alone_s, probes, strict=False) if p in numbers]
    shared_s, each_s = _split(numbers_s, alone_s[-1])
    of_numbers = iter(each_s)
    prices = []
    for i, (probe, program) in enumerate(zip(probes, programs, strict=False)):
        callback_s = None
        if callbacks:
            callback_s = _measure_callback(variants, probe, args, measure)
        _, shapes = program.eval_shape(*args)
        leaves = jax.tree.leaves(shapes)
        prices.append(
            ProbePrice(
                name=probe.name,
                kind=probe.kind,
                seconds=next(of_numbers) if probe in numbers else alone_s[i],
                noise=added[i].noise,
                bytes=sum(x.size * x.dtype.itemsize for x in leaves),
                callback_seconds=callback_s,
            )
        )
    return WatchPrices(
        step_seconds=float(np.median(times.seconds[_BARE])),
        drain_seconds=sum(write_s for _, write_s in collections[: len(probes)]),
        shared_seconds=shared_s,
        probes=tuple(prices),
    )


def _split(
    alone_s: Sequence[float], together_s: float
) -> tuple[float, Sequence[float]]:
    """Return what numbers cost once, and what each adds; the sum is `together_s`.

    A number alone costs both: `together_s = once + sum(alone_s - once)`.
    """
    if len(alone_s) < 2:
        return 0.0, alone_s
    once_s = (sum(alone_s) - together_s) / (len(alone_s) - 1)
    once_s = float(np.clip(once_s, 0.0, together_s))
    # By noise some of them alone are cheaper than what all cost once. Together they
    # were timed in one program, so that figure stands.
    each_s = np.maximum(np.asarray(alone_s) - once_s, 0.0)
    if each_s.sum() > 0:
        each_s *= (together_s - once_s) / each_s.sum()
    else:
        once_s = together_s
    return once_s, each_s.tolist()


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


def variants_of(watched: Any) -> ProgramVariants:
    """Return the programs of a watched function."""
    variants = getattr(watched, "variants", None)
    if variants is None:
        raise TypeError(
            f"a function from watch.jit is needed, got {watched!r}: write "
            "watch.jit(fn)."
        )
    return variants()


def _measure_callback(
    variants: ProgramVariants,
    probe: Probe,
    args: Sequence[Any],
    measure: Callable[..., InterleavedTimes],
) -> float | None:
    """Return the seconds that a probe adds to a call as a callback, or None."""
    program = variants.with_callback(probe)
    # A probe in `watch.scan` leaves as an output in any case.
    if not program.trace(*args).jaxpr.effects:
        return None
    try:
        times = measure({_BARE: variants.bare, "callback": program}, _CALLBACK_SECONDS)
    except jax.errors.JaxRuntimeError:
        # XLA:CPU cannot compile every program with a callback: in JAX 0.10.2 it fails
        # for tanh(x @ w) that is both called back with and returned.
        return None
    return max(times.added("callback", _BARE).middle, 0.0)


def _measure_collection(
    program: Callable[..., Any],
    args: Sequence[Any],
    clock: Callable[[], float],
    *,
    donates: bool,
) -> tuple[float, float]:
    """Return the seconds to collect the records of a call, and those of one drain.

    They are collected as a watcher does it, into a journal in a temporary folder. A
    drain has the records of one call, and is flushed.
    """
    batch = [
        program(*(copy_args(args) if donates else args))[1] for _ in range(_READ_BATCH)
    ]
    # Outside of the timed part: waiting for the device is the program's own time.
    jax.block_until_ready(batch)
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
            pace=Pace(1.0),
            max_entries=_READ_BATCH,
            clock=clock,
            flight=None,
            inspect=lambda step, columns: None,
        )
        collector.has_started = True  # no thread: its work is timed here

        def time_collection(first: int, entries: Sequence[Any]) -> float:
            for step, records in enumerate(entries, first):
                entry = ProgramRecords(step, probes, records, frozenset(KINDS))
                collector.add(entry)
            started = clock()
            collector.collect()
            return clock() - started

        # The first one imports and fills caches, which a run does once.
        time_collection(0, batch[:1])
        started = clock()
        one_s = time_collection(1, batch[:1])
        journal.flush()
        drain_s = clock() - started
        all_s = time_collection(2, batch)
    return max(all_s - one_s, 0.0) / (_READ_BATCH - 1), drain_s
