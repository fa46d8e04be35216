"""`fx.planned`: functions that are jitted inside of a block keep to a memory budget."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax

from frugax.jaxprs import hides_frames_below

from ._jit import Memory, PlannedFunction, jax_jit, read_memory

_local = threading.local()
_lock = threading.Lock()
_open_blocks: list[object] = []
# For every thread, where a whole script is planned.
_for_process: list[Callable[..., Any]] = []


@contextlib.contextmanager
def planned(memory: Memory) -> Iterator[None]:
    """Replace `jax.jit` by `fx.jit` in this thread, inside of the block.

    Functions that are jitted inside of it, also by `nnx.jit` or `eqx.filter_jit`, are
    planned at their first call, and stay planned after the block. Those that were
    jitted before it are not affected.

    Args:
        memory: as for `fx.jit`.

    Raises:
        TypeError: `memory` is not a budget.
        ValueError: `memory` is out of range.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> with planned(memory="60%"):
        ...     step = jax.jit(jax.grad(lambda w: jnp.sum(w**2)))
        >>> type(step).__name__, type(jax.jit(jnp.sin)).__name__
        ('PlannedFunction', 'PjitFunction')
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

    Args:
        make: makes the jitted function.
        everywhere: whether all threads are meant, or only this one.
    """
    outer = getattr(_local, "make", None)
    token = object()
    with _lock:
        if not _open_blocks:
            jax.jit = _jit
        _open_blocks.append(token)
        if everywhere:
            _for_process.append(make)
    if not everywhere:
        _local.make = make
    try:
        yield
    finally:
        if not everywhere:
            _local.make = outer
        with _lock:
            if everywhere:
                _for_process.remove(make)
            _open_blocks.remove(token)
            if not _open_blocks:
                jax.jit = jax_jit


@hides_frames_below
def _jit(fun: Any = None, /, **options: Any) -> Any:
    if fun is None:
        return lambda fun: _jit(fun, **options)
    make = getattr(_local, "make", None)
    if make is None and _for_process:
        make = _for_process[-1]
    if make is None or not callable(fun):
        return jax_jit(fun, **options)
    return make(fun, options)
