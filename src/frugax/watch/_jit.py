"""`jax.jit` for a function that records: its records leave as outputs.

There are up to three programs. The bare one has no probe left in it and runs while
nothing is due; the quiet one gives numbers and summaries; the loud one gives frames as
well. Each call runs one of them, chosen on the host, so that no choice compiles anew.
None has an effect: they keep JAX's fast calls and are found in the compile cache.
"""

import functools
import threading
import types
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import jax

from frugax.jaxprs import is_tracing

from ._asleep import changes, sleep
from ._current import current
from ._variants import BARE, LOUD, QUIET, Variants
from .probes import Expected, Partly, Probe, hand_over


@runtime_checkable
class Taker(Protocol):
    """Whoever takes the records of a watched function; `Watcher` is one.

    Optional: `due(step) -> int` says what is wanted of this step (0 nothing, 1 numbers,
    2 frames as well); `idle(step) -> int | None`, asked when nothing is due, for how
    many more calls there is no need to ask, None until a level or a watcher changes;
    `stride`, the stride of frames in `scan`.
    """

    def take(
        self, step: int, probes: Mapping[str, Probe], records: Mapping[str, Any]
    ) -> None:
        """Take the records of one step.

        Args:
            step: how many calls were before this one.
            probes: by name.
            records: by name; reading a value waits for the device.
        """
        ...

    def wants_frames(self) -> bool:
        """Whether a frame can be paid for now."""
        ...


@runtime_checkable
class Watched(Protocol):
    """A jitted function that is watched; call it as the function itself."""

    probes: Mapping[str, Probe]

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """As that of `jax.jit`, for the program that gives numbers."""
        ...

    def variants(self) -> "Variants":
        """Its programs one by one, for those who measure them."""
        ...


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    watcher: Taker | None = None,
    ahead: bool = True,
    **jit_options: Any,
) -> Any:
    """Compile a function; what it records goes to a watcher.

    Its results are made by the operations of `jax.jit(fn)`; `prove` compares the bits.
    Levels, rates and strides
    change nothing that is compiled.

    Inside of another `jit`, `grad` or `vmap` its records go to the `watch.jit` around
    that, if there is one; where they are dropped, a warning says so once. Take the
    gradient first: `watch.jit(jax.grad(loss))`.

    Args:
        fn: the function; without it, `jit` is a decorator with options.
        watcher: who takes the records; None: the `Watcher` that is current when the
            function is called.
        ahead: compile every program after the first call, so that none is compiled
            later, in the middle of the run. False: each when it is first needed.
        jit_options: as for `jax.jit`: `static_argnums`, `donate_argnums` and so on.

    Returns:
        The function, with `lower`, `probes` (by name, known after the first call) and
        `variants`.

    Raises:
        TypeError: `fn` cannot be called.

    Example:
        >>> import jax.numpy as jnp
        >>> from frugax.watch.probes import record
        >>> class Printer:
        ...     def wants_frames(self):
        ...         return False
        ...     def take(self, step, probes, records):
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
    return _watched(fn, Variants(fn, jit_options), watcher, ahead=ahead)


def _watched(
    fn: Callable[..., Any], variants: "Variants", watcher: Taker | None, *, ahead: bool
) -> Any:
    # A call goes through two objects of the standard library, both written in C: one
    # counts it and one says what to run. A Python function with `*args, **kwargs` in
    # their place costs three times as much (`python -m benchmarks.watch --parts call`).
    now: Any = functools.partial(fn)
    call: Any = functools.lru_cache(maxsize=0)(now)  # keeps nothing, counts "misses"
    bare = variants.bare
    last = -1  # the step of the last call that was asked about
    granted = left = 0  # calls without asking: how many may be, how many may still be
    slept = False  # calls were made that only `call` has counted
    inside = 0  # calls from another program, which are no steps
    counting = threading.Lock()  # two threads that call at once are two steps
    expected = Expected(getattr(fn, "__name__", "fn"), variants.probes)

    def run_from_now_on(program: Callable[..., Any]) -> None:
        now.__setstate__((program, (), {}, None))

    def ask(*args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if is_tracing():
            inside += 1
            out = variants.hushed(*args, **kwargs)
            expected.called_inside()
            return out
        step = next_step()
        seen = changes()
        taker = current() if watcher is None else watcher
        if not variants.known:
            variants.look(args, kwargs)
        taker = _Nobody(variants.probes) if taker is None else taker
        level = variants.fitting(_wanted(taker, step))
        if level == BARE and not variants.always:
            out = bare(*args, **kwargs)
            rest(getattr(taker, "idle", None), step, seen)
        else:
            stride = getattr(taker, "stride", 1)
            out, records = variants.call(level, stride, args, kwargs)
            taker.take(step, records.probes, records)
        if variants.is_new:
            wake()
            if ahead:
                variants.compile(args, kwargs)
            variants.is_new = False
        return out

    def next_step() -> int:
        nonlocal last, granted, left, slept
        with counting:
            if slept:
                last = max(last, call.cache_info().misses - 2 - inside)
            else:
                last += granted - left
            granted, left, slept = 0, 0, False
            last += 1
            return last

    def rest(idle: Callable[[int], int | None] | None, step: int, seen: int) -> None:
        nonlocal granted, left, slept
        free = 0 if idle is None else idle(step)
        if free is None:
            slept = True
            run_from_now_on(bare)
            if not sleep(wake, since=seen):
                wake()
        elif free > 0:
            with counting:
                done = granted - left
                # Other threads may have made some of these calls already.
                free = int(free) - (last + done - step)
                if free <= 0:
                    return
                granted, left = free + done, free
            run_from_now_on(count_down)

    def count_down(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        with counting:
            mine = left - 1
            left = max(mine, 0)
        if mine <= 0:
            wake()
        if mine < 0:  # another thread made the last call that was free
            return ask(*args, **kwargs)
        return bare(*args, **kwargs)

    def wake() -> None:
        run_from_now_on(ask)

    wake()
    variants.on_new = wake
    functools.update_wrapper(call, fn)
    call.lower = variants.lower
    call.probes = types.MappingProxyType(variants.probes)
    call.variants = lambda: variants
    return call


def _wanted(taker: Taker, step: int) -> int:
    due = getattr(taker, "due", None)
    if due is not None:
        return int(due(step))
    return LOUD if taker.wants_frames() else QUIET


class _Nobody:
    """Takes records when there is no watcher: calls their handlers, keeps nothing."""

    def __init__(self, probes: Mapping[str, Probe]) -> None:
        self._called = any(probe.handler is not None for probe in probes.values())

    def due(self, step: int) -> int:
        return LOUD if self._called else BARE

    def idle(self, step: int) -> int | None:
        return None  # a watcher that is entered later is a change

    def wants_frames(self) -> bool:
        return self._called

    def take(self, step: int, probes: Mapping[str, Probe], records: Any) -> None:
        for name, probe in probes.items():
            if probe.handler is not None:
                for value in _each(records[name], records.rounds[name]):
                    hand_over(probe, value)


def _each(value: Any, rounds: int) -> Any:
    """The values of a loop one after the other; those that were made."""
    if rounds:
        for i in range(jax.tree.leaves(value)[0].shape[0]):
            yield from _each(jax.tree.map(lambda x, i=i: x[i], value), rounds - 1)
    elif not isinstance(value, Partly) or value.present.any():
        yield value
