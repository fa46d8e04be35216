"""`watch.jit`: `jax.jit` for a function whose records leave it as outputs.

There are up to three programs. The bare one has no probe and runs while nothing is
due, the quiet one returns numbers and summaries, and the loud one returns frames as
well. The host chooses one of them at each call, so no choice compiles anything. None of
them has an effect: they keep JAX's fast call path and are found in the compile cache.
"""

import functools
import threading
import types
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import jax

from frugax.jaxprs import is_tracing

from ._current import current
from ._idle_registry import change_count, register_idle
from ._program_variants import BARE, LOUD, QUIET, ProgramVariants
from .probes import MaskedValues, NestedCall, Probe, deliver


@runtime_checkable
class RecordConsumer(Protocol):
    """Consumer of a watched function's records; `Watcher` is one.

    Three members are optional. `due(step) -> int` returns 0 to record nothing in this
    step, 1 for numbers, 2 for frames as well. `idle(step) -> int | None` is asked when
    nothing is due, and returns for how many more calls it need not be asked, None for
    "until a level or a watcher changes". `stride` is the stride of frames in `scan`.
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
    Levels, rates and strides change nothing that is compiled.

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
        options = {"watcher": watcher, "ahead": ahead, **jit_options}
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
    # A call goes through two objects of the standard library that are written in C: one
    # counts it and the other holds the program to run. A Python function with `*args,
    # **kwargs` instead costs three times as much (`python -m benchmarks.watch --parts
    # call`).
    target: Any = functools.partial(fn)
    # With maxsize=0 it caches nothing and counts every call as a miss.
    call: Any = functools.lru_cache(maxsize=0)(target)
    bare = variants.bare
    last = -1  # step of the last call that `ask` has counted
    granted = left = 0  # calls without asking: how many were granted, how many are left
    slept = False  # since `ask` last ran, only `call` has counted
    inside = 0  # calls while tracing another program, which are not steps
    count_lock = threading.Lock()  # two threads that call at once make two steps
    nested = NestedCall(getattr(fn, "__name__", "fn"), variants.probes)

    def run_next(program: Callable[..., Any]) -> None:
        # Replaces the function inside the partial object; the only way to do so
        # without another layer of Python per call.
        target.__setstate__((program, (), {}, None))

    def ask(*args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        # Inside another program a call does not count as a step, and its arrays are
        # tracers: the probes are left to the `watch.jit` around, if one is there.
        if is_tracing():
            inside += 1
            out = variants.nested(*args, **kwargs)
            nested.register()
            return out
        step = next_step()
        # Read before asking the watcher, so that a change in between is noticed.
        seen = change_count()
        if not variants.is_traced:
            variants.trace(args, kwargs)
        consumer: Any = current() if watcher is None else watcher
        if consumer is None:
            consumer = _NoWatcher(variants.probes)
        level = variants.reduce_level(_due_level(consumer, step))
        if level == BARE and not variants.records_always:
            out = bare(*args, **kwargs)
            go_idle(getattr(consumer, "idle", None), step, seen)
        else:
            stride = getattr(consumer, "stride", 1)
            out, records = variants.call(level, stride, args, kwargs)
            consumer.ingest(step, records.probes, records)
        if variants.is_new:
            # After the call: its own program has just been compiled, and the run waits
            # for the others once, here, and never in the middle.
            wake()
            if ahead:
                variants.compile(args, kwargs)
            variants.is_new = False
        return out

    def next_step() -> int:
        nonlocal last, granted, left, slept
        with count_lock:
            if slept:
                # All calls so far, less this one and the zero-based offset.
                last = max(last, call.cache_info().misses - 2 - inside)
            else:
                last += granted - left
            granted, left, slept = 0, 0, False
            last += 1
            return last

    def go_idle(idle: Callable[[int], int | None] | None, step: int, seen: int) -> None:
        nonlocal granted, left, slept
        free = 0 if idle is None else idle(step)
        if free is None:
            slept = True
            run_next(bare)
            if not register_idle(wake, since=seen):
                wake()
        elif free > 0:
            with count_lock:
                done = granted - left
                # Other threads may have made some of these calls already.
                free = int(free) - (last + done - step)
                if free <= 0:
                    return
                granted, left = free + done, free
            run_next(count_down)

    def count_down(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        with count_lock:
            mine = left - 1
            left = max(mine, 0)
        # The last free call: the next one asks again.
        if mine <= 0:
            wake()
        if mine < 0:  # another thread made the last free call
            return ask(*args, **kwargs)
        return bare(*args, **kwargs)

    def wake() -> None:
        run_next(ask)

    wake()
    # A trace may find new probes, for which the watcher must be asked.
    variants.on_trace = wake
    functools.update_wrapper(call, fn)
    call.lower = variants.lower
    call.probes = types.MappingProxyType(variants.probes)
    call.variants = lambda: variants
    return call


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

    def idle(self, step: int) -> int | None:
        return None  # entering a watcher later is announced as a change

    def wants_frames(self) -> bool:
        return self._has_handlers

    def ingest(self, step: int, probes: Mapping[str, Probe], records: Any) -> None:
        for name, probe in probes.items():
            if probe.handler is not None:
                for value in _iterate_loops(records[name], records.rounds[name]):
                    deliver(probe, value)


def _iterate_loops(value: Any, loops: int) -> Any:
    """Yield the recorded values of a loop, one after the other."""
    if loops:
        for i in range(jax.tree.leaves(value)[0].shape[0]):
            yield from _iterate_loops(
                jax.tree.map(lambda x, i=i: x[i], value), loops - 1
            )
    elif not isinstance(value, MaskedValues) or value.present.any():
        yield value
