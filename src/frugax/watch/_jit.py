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
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from frugax.jaxprs import is_tracing

from ._call_schedule import NEVER, CallSchedule, Program
from ._current import changes, current
from ._program_variants import BARE, ProgramVariants
from ._watcher import Watcher
from .probes import Probe, is_collected

# More than the caches of a core hold, in float64.
_EVICTING = 1 << 20
_TIMINGS = 64


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    watcher: Watcher | None = None,
    ahead: bool = True,
    **jit_options: Any,
) -> Any:
    """Compile a function whose records go to a watcher.

    Its results are made by the operations of `jax.jit(fn)`; `prove` compares the bits.
    Levels and rates change nothing that is compiled.

    Inside another `jit`, `grad` or `vmap` its records go to the `watch.jit` around
    that. Without one they leave by callbacks to the current watcher, which is slow:
    take the gradient first, `watch.jit(jax.grad(loss))`.

    Args:
        fn: the function; without it, `jit` is a decorator with options.
        watcher: takes the records; None for the one that is current when the function
            is called.
        ahead: compile every program after the first call, so that none is compiled
            later in the middle of the run. False to compile each when it is needed.
        jit_options: as for `jax.jit`: `static_argnums`, `donate_argnums` and so on.

    Returns:
        A `WatchedFunction`, whose `probes` are known after the first call.

    Raises:
        TypeError: `fn` is not callable, or `watcher` is not a Watcher.

    Example:
        >>> import jax.numpy as jnp
        >>> from frugax import OverheadBudget, watch
        >>> @jit
        ... def double(x):
        ...     watch.record("total", x.sum())
        ...     return 2 * x
        >>> with watch.Watcher(None, OverheadBudget("1%")) as watcher:
        ...     _ = double(double(jnp.ones(3)))
        >>> watcher.latest
        {'total': 6.0}
    """
    if fn is None:
        options: dict[str, Any] = {"watcher": watcher, "ahead": ahead, **jit_options}
        return lambda fn: jit(fn, **options)
    if not callable(fn):
        raise TypeError(f"watch.jit needs a function, got {fn!r}.")
    if not isinstance(watcher, Watcher | None):
        raise TypeError(
            f"watcher must be a Watcher, such as run.watcher, got {watcher!r:.99}."
        )
    return WatchedFunction(fn, ProgramVariants(fn, jit_options), watcher, ahead=ahead)


class WatchedFunction:
    """A jitted function that is watched; call it like the function itself.

    Attributes:
        probes: its probes by name, known after the first call.
        watcher: takes its records; None for the current watcher.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        variants: ProgramVariants,
        watcher: Watcher | None,
        *,
        ahead: bool,
    ) -> None:
        """Compile nothing yet; the arguments are those of `jit`."""
        functools.update_wrapper(self, fn)
        self.probes: Mapping[str, Probe] = types.MappingProxyType(variants.probes)
        self.watcher: Any = watcher
        self._variants = variants
        self._compiles_ahead = ahead
        self._has_warned = False
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
        # tracers: the probes are left to the `watch.jit` around, or call back.
        if is_tracing():
            self._warn_if_not_current()
            return self._variants.unwatched(*args, **kwargs)
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

    def _warn_if_not_current(self) -> None:
        """Warn once if records of a call inside another program may reach nobody."""
        is_theirs = self.watcher is None or self.watcher is current()
        if is_theirs or is_collected() or self._has_warned:
            return
        self._has_warned = True
        name = getattr(self, "__name__", "fn")
        warnings.warn(
            f"{name} from watch.jit is called inside another program: its records go "
            "to the watcher that is current when that runs, and its own is not now: "
            "enter it by `with`, or make watch.jit the outermost, as in "
            f"watch.jit(jax.grad({name})).",
            UserWarning,
            stacklevel=3,  # the line that calls the watched function
        )

    def _ask_next(self) -> None:
        self._ahead = 0, 0, self._variants.call_bare

    def _ask(self, step: int, args: Any, kwargs: Any) -> Any:
        """Ask the watcher which program to run, now and in the next calls."""
        variants = self._variants
        # Read before asking the watcher, so that a change in between is noticed.
        now_seen = changes[0]
        if not variants.is_traced:
            try:
                variants.trace(args, kwargs)
            except TypeError as e:
                _note_modules(e, (*args, *kwargs.values()))
                raise
        watcher = current() if self.watcher is None else self.watcher
        if watcher is None:
            # Handlers show what no watcher takes.
            has_handlers = any(probe.handler for probe in variants.probes.values())
            run = variants.call_unwatched if has_handlers else variants.call_bare
            self._ahead = NEVER, now_seen, run
            return run(step, args, kwargs)
        schedule = self._schedule_of(watcher)
        level = schedule.level_at(step)
        if level == BARE and not variants.records_always:
            out = schedule.call_bare(step, args, kwargs)
        else:
            out, records = variants.call_level(level, *args, **kwargs)
            watcher.ingest(step, records, schedule)
        if variants.is_new:
            # After the call: its own program has just been compiled, and the run waits
            # for the others once, here, and never in the middle.
            variants.is_new = False
            began = time.perf_counter()
            if self._compiles_ahead:
                variants.compile(args, kwargs)
            watcher.compile_s += time.perf_counter() - began
        schedule.begin(step, watcher.clock())
        until, program = schedule.rest(step, args, kwargs)
        if not variants.records_always:
            self._ahead = until, now_seen, program
        return out

    def _schedule_of(self, watcher: Watcher) -> CallSchedule:
        if watcher not in self._schedules:
            self._schedules[watcher] = watcher.schedule(
                _added_seconds(), self._variants
            )
        return self._schedules[watcher]


def _note_modules(error: TypeError, arguments: Sequence[Any]) -> None:
    """Say what to do where a module has leaves that are not arrays."""
    for argument in arguments:
        is_module = not isinstance(argument, dict | list | tuple)
        leaves = (
            [] if jax.tree_util.all_leaves([argument]) else jax.tree.leaves(argument)
        )
        if is_module and any(not hasattr(leaf, "dtype") for leaf in leaves):
            error.add_note(
                f"A {type(argument).__name__} has leaves that are not arrays, and "
                "watch.jit, as jax.jit, takes none: keep @eqx.filter_jit and give its "
                "metrics to run.record, or pass eqx.partition(..., eqx.is_array)[0]."
            )
            return


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
