"""`watch.jit`: `jax.jit` for a function whose records leave it as outputs.

The bare program has no probe, the recording one returns one packed vector of numbers
more, and the loud one frames as well, if there are any. The host chooses one of them at
each call, so no choice compiles anything. None of them has an effect: they keep JAX's
fast call path and are found in the compile cache.
"""

import functools
import itertools
import time
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from frugax.jaxprs import is_tracing

from ._call_schedule import NEVER, CallSchedule, Program
from ._callback_receiver import call_handler
from ._current import changes, current
from ._program_variants import BARE, LOUD, QUIET, ProgramVariants
from .probes import MaskedValues, NestedCall, Probe

# More than the caches of a core hold, in float64.
_EVICTING = 1 << 20
_TIMINGS = 64


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
    return WatchedFunction(fn, ProgramVariants(fn, jit_options), watcher, ahead=ahead)


class WatchedFunction:
    """A jitted function that is watched; call it like the function itself.

    Attributes:
        probes: its probes by name, known after the first call.
        watcher: consumer of its records; None for the current watcher.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        variants: ProgramVariants,
        watcher: RecordConsumer | None,
        *,
        ahead: bool,
    ) -> None:
        """Compile nothing yet; the arguments are those of `jit`."""
        functools.update_wrapper(self, fn)
        self.probes: Mapping[str, Probe] = types.MappingProxyType(variants.probes)
        self.watcher: Any = watcher
        self._variants = variants
        self._compiles_ahead = ahead
        self._nested = NestedCall(getattr(fn, "__name__", "fn"), variants.probes)
        self._schedules: weakref.WeakKeyDictionary[Any, CallSchedule] = (
            weakref.WeakKeyDictionary()
        )
        # One call for each number, also of threads that call at once.
        self._next_step = itertools.count().__next__
        # Calls below a number run a program without asking the watcher, as long as no
        # level and no watcher changes.
        self._ahead: tuple[int, int, Program]
        self._ask_next()
        # A trace may find new probes, for which the watcher must be asked.
        variants.on_trace = self._ask_next

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        # Inside another program a call does not count as a step, and its arrays are
        # tracers: the probes are left to the `watch.jit` around, if one is there.
        if is_tracing():
            out = self._variants.nested(*args, **kwargs)
            self._nested.register()
            return out
        step = self._next_step()
        until, seen, program = self._ahead
        if step < until and seen == changes[0]:
            return program(step, args, kwargs)
        return self._ask(step, args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        # A function in a class is a method of its instances.
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<watched {getattr(self, '__qualname__', 'function')}>"

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Lower the program that returns numbers, as `jax.jit(fn).lower` does."""
        return self._variants.lower(*args, **kwargs)

    def variants(self) -> ProgramVariants:
        """Return its programs, for measurements."""
        return self._variants

    def _ask_next(self) -> None:
        self._ahead = 0, 0, self._variants.call_bare

    def _ask(self, step: int, args: Any, kwargs: Any) -> Any:
        """Ask the watcher which program to run, now and in the next calls."""
        variants = self._variants
        # Read before asking the watcher, so that a change in between is noticed.
        now_seen = changes[0]
        if not variants.is_traced:
            variants.trace(args, kwargs)
        consumer: Any = current() if self.watcher is None else self.watcher
        if consumer is None:
            consumer = _NoWatcher(variants.probes)
        schedule = self._schedule_of(consumer)
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
            if self._compiles_ahead:
                variants.compile(args, kwargs)
            if schedule is not None:
                consumer.compile_s += time.perf_counter() - began
        if schedule is not None:
            schedule.thinning.begin(step, consumer.clock())
            until, program = schedule.rest(step)
        else:
            until = NEVER if isinstance(consumer, _NoWatcher) else 0
            program = variants.call_bare
        if not variants.records_always:
            self._ahead = until, now_seen, program
        return out

    def _schedule_of(self, consumer: Any) -> CallSchedule | None:
        if not hasattr(consumer, "schedule"):
            return None
        if consumer not in self._schedules:
            self._schedules[consumer] = consumer.schedule(
                _added_seconds(), self._variants
            )
        return self._schedules[consumer]


@functools.cache
def _added_seconds() -> tuple[float, float]:
    """Measure what watching adds to a call, with warm and with cold caches."""
    call = lambda step, args, kwargs: abs(*args, **kwargs)
    watched = WatchedFunction(abs, ProgramVariants(abs, {}), None, ahead=False)
    watched._ahead = NEVER, changes[0], call
    return _time_added(watched, 1), _time_added(watched, _EVICTING)


def _time_added(watched: WatchedFunction, evicting: int) -> float:
    memory = np.ones(evicting)
    added = []
    for i in range(_TIMINGS):
        taken: dict[Any, float] = {}
        for fn in (watched, abs) if i % 2 else (abs, watched):
            memory.sum()
            started = time.perf_counter()
            fn(1)
            taken[fn] = time.perf_counter() - started
        added.append(taken[watched] - taken[abs])
    return max(float(np.median(added)), 0.0)


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
