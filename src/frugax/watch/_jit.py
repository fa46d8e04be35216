"""`watch.jit`: `jax.jit` for a function whose records leave it as outputs.

The bare program has no probe, the recording one returns one packed vector of numbers
more, and the loud one frames as well, if there are any. The host chooses one of them at
each call, so no choice compiles anything. None of them has an effect: they keep JAX's
fast call path and are found in the compile cache.
"""

import time
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import jax

from frugax.jaxprs import is_tracing

from ._call_schedule import NEVER, CallSchedule
from ._callback_receiver import call_handler
from ._current import changes, current
from ._program_queue import ProgramQueue, queue_seconds
from ._program_variants import BARE, LOUD, QUIET, ProgramVariants
from .probes import MaskedValues, NestedCall, Probe


@runtime_checkable
class RecordConsumer(Protocol):
    """Consumer of a watched function's records; `Watcher` is one.

    A member is optional: `due(step) -> int` returns 0 to record nothing in this step, 1
    for numbers, 2 for frames as well.
    """

    def ingest(
        self, step: int, probes: Mapping[str, Probe], records: Mapping[str, Any]
    ) -> None:
        """Accept the records of one call.

        Args:
            step: the number of calls before this one.
            probes: the probes by name.
            records: the records by name; reading a value waits for the device.
        """
        ...

    def wants_frames(self) -> bool:
        """Return whether a frame is affordable now."""
        ...


@runtime_checkable
class WatchedFunction(Protocol):
    """A jitted function that is watched; call it like the function itself."""

    probes: Mapping[str, Probe]

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Lower the program that returns numbers, as `jax.jit(fn).lower` does."""
        ...

    def variants(self) -> ProgramVariants:
        """Return its programs, for measurements."""
        ...


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    watcher: RecordConsumer | None = None,
    ahead: bool = True,
    **jit_options: Any,
) -> Any:
    """Compile a function whose records go to a watcher.

    Its results are made by the operations of `jax.jit(fn)`; `prove` compares the bits.
    Levels and rates change nothing that is compiled.

    Inside another `jit`, `grad` or `vmap` its records go to the `watch.jit` around
    that, if there is one; where they are dropped, a warning is given once. Take the
    gradient first: `watch.jit(jax.grad(loss))`.

    Args:
        fn: the function; without it, `jit` is a decorator with options.
        watcher: consumer of the records; None for the `Watcher` that is current when
            the function is called.
        ahead: compile every program after the first call, so that none is compiled
            later in the middle of the run. False to compile each when it is needed.
        jit_options: as for `jax.jit`: `static_argnums`, `donate_argnums` and so on.

    Returns:
        A `WatchedFunction`, whose `probes` are known after the first call.

    Raises:
        TypeError: `fn` is not callable.

    Example:
        >>> import jax.numpy as jnp
        >>> from frugax.watch.probes import record
        >>> class Printer:
        ...     def wants_frames(self):
        ...         return False
        ...     def ingest(self, step, probes, records):
        ...         print(step, float(records["total"]))
        >>> def double(x):
        ...     record("total", x.sum())
        ...     return 2 * x
        >>> watched = jit(double, watcher=Printer())
        >>> _ = watched(watched(jnp.ones(3)))
        0 3.0
        1 6.0
    """
    if fn is None:
        options: dict[str, Any] = {"watcher": watcher, "ahead": ahead, **jit_options}
        return lambda fn: jit(fn, **options)
    if not callable(fn):
        raise TypeError(f"watch.jit needs a function, got {fn!r}.")
    return watch_variants(fn, ProgramVariants(fn, jit_options), watcher, ahead=ahead)


def watch_variants(
    fn: Callable[..., Any],
    variants: ProgramVariants,
    watcher: RecordConsumer | None,
    *,
    ahead: bool,
) -> Any:
    """Return the callable that chooses among a function's programs at each call."""
    nested = NestedCall(getattr(fn, "__name__", "fn"), variants.probes)
    schedules: weakref.WeakKeyDictionary[Any, CallSchedule] = (
        weakref.WeakKeyDictionary()
    )

    def ask(*args: Any, **kwargs: Any) -> Any:
        step = queue.count()
        # Inside another program a call does not count as a step, and its arrays are
        # tracers: the probes are left to the `watch.jit` around, if one is there.
        if is_tracing():
            queue.uncount()
            out = variants.nested(*args, **kwargs)
            nested.register()
            return out
        # Read before asking the watcher, so that a change in between is noticed.
        now_seen = changes[0]
        if not variants.is_traced:
            variants.trace(args, kwargs)
        consumer: Any = current() if watcher is None else watcher
        if consumer is None:
            consumer = _NoWatcher(variants.probes)
        schedule = schedule_of(consumer)
        if schedule is None:
            level = variants.reduce_level(_due_level(consumer, step))
        else:
            level = schedule.level_at(step)
        if level == BARE and not variants.records_always:
            if schedule is None:
                out = variants.bare(*args, **kwargs)
            else:
                out = schedule.call_bare(step, args, kwargs)
        else:
            out, records = variants.call_level(level, *args, **kwargs)
            if schedule is None:
                consumer.ingest(step, records.probes, records)
            else:
                consumer.ingest(step, records.probes, records, schedule)
        if variants.is_new:
            # After the call: its own program has just been compiled, and the run waits
            # for the others once, here, and never in the middle.
            variants.is_new = False
            began = time.perf_counter()
            if ahead:
                variants.compile(args, kwargs)
            if schedule is not None:
                consumer.compile_s += time.perf_counter() - began
        if schedule is not None:
            schedule.thinning.begin(step, consumer.clock())
            until, make_program = schedule.rest(step)
        else:
            until = NEVER if isinstance(consumer, _NoWatcher) else 0
            make_program = lambda _: variants.bare
        if not variants.records_always:
            queue.run_until(until, make_program, seen=now_seen)
        return out

    def schedule_of(consumer: Any) -> CallSchedule | None:
        if not hasattr(consumer, "schedule"):
            return None
        if consumer not in schedules:
            schedules[consumer] = consumer.schedule(queue_seconds(), variants)
        return schedules[consumer]

    queue: Any = ProgramQueue(fn, ask)
    # A trace may find new probes, for which the watcher must be asked.
    variants.on_trace = queue.stop
    queue.lower = variants.lower
    queue.probes = types.MappingProxyType(variants.probes)
    queue.variants = lambda: variants
    queue.watcher = watcher
    return queue


def _due_level(consumer: RecordConsumer, step: int) -> int:
    due = getattr(consumer, "due", None)
    if due is not None:
        return int(due(step))
    return LOUD if consumer.wants_frames() else QUIET


class _NoWatcher:
    """Consumer without a watcher: calls the handlers and keeps nothing."""

    def __init__(self, probes: Mapping[str, Probe]) -> None:
        self._has_handlers = any(p.handler is not None for p in probes.values())

    def due(self, step: int) -> int:
        return LOUD if self._has_handlers else BARE

    def wants_frames(self) -> bool:
        return self._has_handlers

    def ingest(self, step: int, probes: Mapping[str, Probe], records: Any) -> None:
        for name, probe in probes.items():
            if probe.handler is not None:
                for value in _iterate_loops(records[name], records.rounds[name]):
                    call_handler(probe, value)


def _iterate_loops(value: Any, loops: int) -> Any:
    """Yield the recorded values of a loop, one after the other."""
    if loops:
        for i in range(jax.tree.leaves(value)[0].shape[0]):
            yield from _iterate_loops(
                jax.tree.map(lambda x, i=i: x[i], value), loops - 1
            )
    elif not isinstance(value, MaskedValues) or value.present.any():
        yield value
