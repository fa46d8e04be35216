"""`fx.planned`: functions that are jitted inside of a block keep to a memory budget."""

import contextlib
import functools
import inspect
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax import (  # kept where they are replaced
    jit as _jax_jit,
    pmap as _jax_pmap,
    vmap as _jax_vmap,
)
from jax.lax import (
    fori_loop as _jax_fori_loop,
    scan as _jax_scan,
    while_loop as _jax_while_loop,
)

from frugax.jaxprs import hides_frames_below, is_tracing

from ._absent_devices import without_backend
from ._jit import Memory, PlannedFunction, read_memory
from ._pmap import jitted_pmap

# These jit what their users wrote; elsewhere frugax jits what plans and measures, which
# is not to be planned.
_FOR_USERS = ("train", "models", "watch")

_lax: Any = jax.lax
_MADE = "__frugax_made__"
_lock = threading.Lock()
# The thread of each open block, None for all threads, and what makes jitted functions.
_open_blocks: list[tuple[int | None, Callable[..., Any]]] = []


@contextlib.contextmanager
def planned(memory: Memory) -> Iterator[None]:
    """Replace `jax.jit` by `fx.jit` in this thread, inside of the block.

    Functions that are jitted inside of it, also by `nnx.jit`, `eqx.filter_jit` or
    `jax.pmap`, are planned at their first call, and stay planned after the block.
    Those that were jitted before it are not affected.

    Args:
        memory: as for `fx.jit`.

    Raises:
        TypeError: `memory` is not a budget.
        ValueError: `memory` is out of range.

    Example:
        >>> import equinox as eqx, jax, jax.numpy as jnp
        >>> with planned(memory="60%"):
        ...     step = eqx.filter_jit(jax.grad(lambda w: jnp.sum(w**2)))
        >>> step(jnp.ones(3)).tolist()
        [2.0, 2.0, 2.0]
    """
    budget = read_memory(memory)

    def make(fun: Callable[..., Any], options: dict[str, Any]) -> PlannedFunction:
        return PlannedFunction(fun, budget, options, needs_gradient=False)

    with replace_jit(make):
        yield


@contextlib.contextmanager
def replace_jit(
    make: Callable[..., Any], *, everywhere: bool = False
) -> Iterator[None]:
    """Let `make(fun, options)` take the place of `jax.jit(fun, **options)`.

    And that of `jax.pmap`, of a `scan`, `fori_loop` or `while_loop` outside of a jitted
    function, and of the `jax.vmap` of a jitted function, which all make one compiled
    program. Not where frugax itself calls them to plan or to measure.

    Args:
        make: makes the jitted function.
        everywhere: whether all threads are meant, or only this one.
    """
    block = (None if everywhere else threading.get_ident(), make)
    with _lock:
        _open_blocks.append(block)
        jax.jit, jax.pmap, jax.vmap = _jit, _pmap, _vmap
        _lax.scan, _lax.fori_loop = _scan, _fori_loop
        _lax.while_loop = _while_loop
    try:
        yield
    finally:
        with _lock:
            _open_blocks.remove(block)
            if not _open_blocks:
                jax.jit, jax.pmap = _jax_jit, _jax_pmap
                jax.vmap = _jax_vmap
                _lax.scan, _lax.fori_loop = _jax_scan, _jax_fori_loop
                _lax.while_loop = _jax_while_loop


@hides_frames_below
def _jit(fun: Any = None, /, **options: Any) -> Any:
    if fun is None:
        return functools.partial(_jit, **options)
    make = _find_maker(fun)
    if make is None:
        return _jax_jit(fun, **options)
    build = lambda: make(fun, without_backend(options))
    return _made_once(fun, (make, "jit", options), build)


@hides_frames_below
def _pmap(fun: Any, axis_name: Any = None, **options: Any) -> Any:
    options["axis_name"] = axis_name
    make = _find_maker(fun)
    if make is None:
        return _jax_pmap(fun, **options)
    build = lambda: jitted_pmap(make, fun, without_backend(options))
    return _made_once(fun, (make, "pmap", options), build)


@hides_frames_below
def _vmap(fun: Any, *args: Any, **options: Any) -> Any:
    mapped: Any = _jax_vmap(fun, *args, **options)
    make = _find_maker(fun)
    if make is None or not isinstance(fun, PlannedFunction) or not fun.is_mappable:
        return mapped
    asked = (make, "vmap", args, options)
    jitted = _made_once(fun, asked, lambda: make(mapped, fun.options))

    @hides_frames_below
    @functools.wraps(mapped)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (mapped if is_tracing() else jitted)(*args, **kwargs)

    return call


@hides_frames_below
def _scan(f: Any, init: Any, xs: Any = None, *args: Any, **options: Any) -> Any:
    make = None if is_tracing() else _find_maker(f)
    if make is None:
        return _jax_scan(f, init, xs, *args, **options)

    def loop(init: Any, xs: Any) -> Any:
        return _jax_scan(f, init, xs, *args, **options)

    asked = (make, "scan", args, options)
    return _made_once(f, asked, lambda: make(_named(loop, f), {}))(init, xs)


@hides_frames_below
def _fori_loop(lower: Any, upper: Any, body_fun: Any, init_val: Any, **kw: Any) -> Any:
    is_known = isinstance(lower, int) and isinstance(upper, int)
    make = _find_maker(body_fun) if is_known and not is_tracing() else None
    if make is None:
        return _jax_fori_loop(lower, upper, body_fun, init_val, **kw)

    def loop(init_val: Any) -> Any:
        return _jax_fori_loop(lower, upper, body_fun, init_val, **kw)

    asked = (make, "fori_loop", lower, upper, kw)
    return _made_once(body_fun, asked, lambda: make(_named(loop, body_fun), {}))(
        init_val
    )


@hides_frames_below
def _while_loop(cond_fun: Any, body_fun: Any, init_val: Any) -> Any:
    make = None if is_tracing() else _find_maker(body_fun)
    if make is None:
        return _jax_while_loop(cond_fun, body_fun, init_val)

    def loop(init_val: Any) -> Any:
        return _jax_while_loop(cond_fun, body_fun, init_val)

    asked = (make, "while_loop", cond_fun)
    return _made_once(body_fun, asked, lambda: make(_named(loop, body_fun), {}))(
        init_val
    )


def _named(loop: Any, body: Any) -> Any:
    """The loop with the name and the line of its body, and arguments of its own."""
    signature = inspect.signature(loop)
    functools.update_wrapper(loop, body, updated=())
    loop.__signature__ = signature
    return loop


class _Made:
    """Jitted forms of a function, kept in its `__dict__` for as long as it lives.

    A copy of that, as `functools.wraps` makes, is not of the function it belongs to.

    Attributes:
        of: the function.
        found: what asks for a jitted function, and that function.
    """

    def __init__(self, of: Any = None) -> None:
        self.of, self.found = of, list[tuple[Any, Any]]()

    def __reduce__(self) -> Any:
        return _Made, ()  # a function that is pickled is jitted anew elsewhere


def _made_once(fun: Any, asked: Any, build: Callable[[], Any]) -> Any:
    """The result of `build`, or that for the same function and options before.

    `jax.jit(f)(x)` in a loop compiles once: JAX knows f again.
    """
    if not isinstance(fun, types.FunctionType | functools.partial | PlannedFunction):
        return build()
    with _lock:
        made = vars(fun).get(_MADE)
        if made is None or made.of is not fun:
            made = vars(fun)[_MADE] = _Made(fun)
    for known, jitted in made.found:
        if known == asked:
            return jitted
    jitted = build()
    made.found.append((asked, jitted))
    return jitted


def _find_maker(fun: Any) -> Callable[..., Any] | None:
    """Find the replacement of `jax.jit` for the caller of the caller; None for JAX."""
    # The frame between is that of `hides_frames_below`.
    caller = sys._getframe(3).f_globals.get("__name__", "")
    library, package = (*caller.split("."), "")[:2]
    is_own = library == "frugax" and package not in _FOR_USERS
    if not callable(fun) or is_own:
        return None
    # A block of this thread comes before those of all threads.
    for thread in (threading.get_ident(), None):
        made_by = [make for where, make in _open_blocks if where == thread]
        if made_by:
            return made_by[-1]
    return None
