"""The guide's callbacks for use inside `jit`: grids, summaries, user functions.

Under `watch.jit` and `watch.scan` grids and summaries leave the program as outputs.
Functions, and all of them in any other program, are called back from inside, which
costs each call of that program its fast path and keeps it out of the compile cache.
"""

import math
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax.trees import combine, key_to_data, partition

# Drawing is the same in both packages, so these are passed on unwrapped.
from frugax.watch.drawing import grid_svg as grid_svg, log_grid_to_console
from frugax.watch.journal import check_name
from frugax.watch.probes import Kind, Probe, emit

from ._host_calls import host_calls

# As many lanes as pictures and grids show.
_MOST_LANES = 4


def jax_debug_callback(
    callback_func: Callable[..., object],
    *args: Any,
    callback_name: str | None = None,
    **kwargs: Any,
) -> None:
    """Call a function on the host with values of a running program.

    It runs in a thread of its own, on NumPy copies. Its errors are counted, and the
    program goes on. The program waits until it ends, at most 10 s; then it is left to
    itself.

    Args:
        callback_func: what to call. It must not call JAX, which may be waiting for it.
        *args: any trees. Arrays come as NumPy arrays, everything else as it is.
        callback_name: in the statistics; the function's own name if not given.
        **kwargs: as `args`.

    Raises:
        TypeError: `callback_func` is not callable.
    """
    name = _name_of(callback_func, callback_name)
    _call_back(callback_func, args, kwargs, name)


def _call_back(
    fn: Callable[..., object],
    args: Any,
    kwargs: Any,
    name: str,
    max_avg_s: float = math.inf,
) -> None:
    # Only arrays pass through the program. Python values stay in the closure, so that
    # flags and names reach the function with their own types.
    moving, fixed = partition((args, kwargs), select=_is_array)
    leaves, tree = jax.tree.flatten(moving)

    def act(*arrays: np.ndarray) -> None:
        given, named = combine(jax.tree.unflatten(tree, arrays[: len(leaves)]), fixed)
        host_calls.run(name, lambda: fn(*given, **named), max_avg_s=max_avg_s)

    # A probe has at least one value; a function without any is called all the same.
    values = {f"arg{i}": leaf for i, leaf in enumerate(leaves)} or {"nothing": 0}
    _emit(name, "call", act, values)


def adaptive_visualization_callback(
    callback_func: Callable[..., object],
    *args: Any,
    callback_name: str | None = None,
    max_avg_time_ms: float = 10.0,
    **kwargs: Any,
) -> None:
    """Call a function on the host, at a rate at which it stays cheap on average.

    Decided on the host each time the program comes by, so one compiled program backs
    off when the function is expensive and comes back when it is cheap again. A skipped
    call still has the price of a callback.

    Args:
        callback_func: as in `jax_debug_callback`.
        *args: as in `jax_debug_callback`.
        callback_name: in the statistics; calls of the same name share their frequency.
        max_avg_time_ms: average milliseconds that the function may take per call,
            skipped calls included; > 0.
        **kwargs: as in `jax_debug_callback`.

    Raises:
        TypeError: `callback_func` is not callable.
        ValueError: `max_avg_time_ms` is not positive.
    """
    # Written as `not >`, so that NaN is refused too.
    if not max_avg_time_ms > 0:
        raise ValueError(f"max_avg_time_ms must be > 0, got {max_avg_time_ms}.")
    name = _name_of(callback_func, callback_name)
    _call_back(callback_func, args, kwargs, name, max_avg_time_ms / 1000)


def jax_log_grid(
    grid_data: Any,
    mask: Any = None,
    title: str = "Grid",
    *,
    show_numbers: bool = False,
) -> None:
    """Show a grid: to the current watcher, or in the terminal without one.

    Args:
        grid_data: `(rows, columns)`; leading axes are lanes, of which four are shown.
        mask: which cells count, `(rows, columns)`.
        title: its name; also that of the watcher's stream, at most 100 characters.
        show_numbers: as in `log_grid_to_console`.

    Raises:
        ValueError: a watcher could not name a stream by the title.
    """
    stream = title or "Grid"
    # While tracing, where an error points at the user's line: a watcher could only
    # tell that it lost the record.
    check_name(stream, "a grid's title")

    def show(grid: np.ndarray, mask: np.ndarray | None = None) -> None:
        log_grid_to_console(grid, title, mask=mask, show_numbers=show_numbers)

    values = {"grid": grid_data} | ({} if mask is None else {"mask": mask})
    # The guide's name of these statistics; scripts that read them expect it.
    _show(stream, "frame", show, values, name=f"log_grid_{title}")


def jax_log_episode_summary(
    episode_num: Any,
    total_steps: Any,
    total_reward: Any,
    final_similarity: Any,
    success: Any,
) -> None:
    """Show how an episode went: to the current watcher, or as a line in the terminal.

    A watcher files it under "episode_summary", and loses none.

    Args:
        episode_num: its number.
        total_steps: how many steps it had.
        total_reward: the sum of its rewards.
        final_similarity: how close it came, in [0, 1].
        success: whether that was enough.
    """
    # Journals hold these names, so renaming one would break the readers of older files.
    values = {
        "episode_num": episode_num,
        "total_steps": total_steps,
        "total_reward": total_reward,
        "final_similarity": final_similarity,
        "success": success,
    }
    name = "log_episode_summary"
    _show("episode_summary", "summary", _print_episodes, values, name=name)


def _print_episodes(*arrays: np.ndarray) -> None:
    """Print how an episode went, one line each; of many lanes the first four."""
    # Under `vmap` some values may be batched and others shared by all lanes.
    lanes = [array.ravel().tolist() for array in np.broadcast_arrays(*arrays)]
    rows = list(zip(*lanes, strict=True))
    for number, steps, reward, similarity, success in rows[:_MOST_LANES]:
        sys.stdout.write(
            f"Episode {number}: {'solved' if success else 'not solved'} after {steps} "
            f"steps, reward {reward:.4g}, similarity {similarity:.1%}\n"
        )
    if len(rows) > _MOST_LANES:
        sys.stdout.write(f"... and {len(rows) - _MOST_LANES} more lanes\n")


def _name_of(fn: object, given: str | None) -> str:
    """The name of a callback in the statistics.

    Raises:
        TypeError: it is not callable.
    """
    if not callable(fn):
        raise TypeError(f"the callback must be a function, got {fn!r:.99}.")
    # A partial or an object with `__call__` has no name, and its class stands in.
    return given or getattr(fn, "__name__", type(fn).__name__)


def _show(
    stream: str,
    kind: Kind,
    show: Callable[..., None],
    values: dict[str, Any],
    *,
    name: str,
) -> None:
    """Record values, which are shown where no watcher takes them."""

    def act(*arrays: np.ndarray) -> None:
        host_calls.run(name, lambda: show(*arrays))

    _emit(stream, kind, act, values)


def _emit(
    name: str, kind: Kind, act: Callable[..., None], values: dict[str, Any]
) -> None:
    """Leave a probe in the program that hands these values over."""
    arrays = tuple(_as_data(value) for value in values.values())
    emit(Probe(name, kind, act, tuple(values)), *arrays)


def _is_array(leaf: object) -> bool:
    # Not those of other libraries, such as torch, which a program cannot hand over.
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def _as_data(value: Any) -> jax.Array:
    """An array that can leave the program; a random key as the numbers in it."""
    return key_to_data(jnp.asarray(value))
