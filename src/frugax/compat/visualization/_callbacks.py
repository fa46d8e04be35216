"""The guide's callbacks for use inside `jit`: grids, steps, summaries, user functions.

Under `watch.jit` and `watch.scan` their values leave the program as outputs. In any
other program JAX calls back from inside, which costs each call of that program its
fast path and keeps it out of the compile cache.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax.watch.drawing import log_grid_to_console, step_svg
from frugax.watch.probes import Probe, emit
from frugax.watch.sinks import Kind

from . import host_calls
from ._display import (
    action_of,
    grid_of,
    log_episode_summary,
    log_grid,
    mask_of,
    save_step,
    step_of,
)

_NOTHING = "nothing"
# The order of the guide's positional arguments; journals hold these names, so renaming
# one would break the readers of older files.
_SUMMARY_FIELDS = (
    "episode_num",
    "total_steps",
    "total_reward",
    "final_similarity",
    "success",
)


def jax_debug_callback(
    callback_func: Callable[..., object],
    *args: Any,
    callback_name: str | None = None,
    enable_performance_monitoring: bool = True,
    wait_s: float = 10.0,
    **kwargs: Any,
) -> None:
    """Call a function on the host with values of a running program.

    It runs in a thread of its own, on NumPy copies. Its errors are counted,
    and the program goes on. In a program that nobody collects from, the program
    waits until it ends, at most `wait_s`; then it is left to itself, and its name rests
    for 30 s.

    Args:
        callback_func: what to call. It must not call JAX, which may be waiting for it.
        *args: any trees. Arrays come as NumPy arrays, everything else as it is.
        callback_name: in the statistics; the function's own name if not given.
        enable_performance_monitoring: keep its times; errors are always counted.
        wait_s: for how long the program waits, in seconds; > 0.
        **kwargs: as `args`.

    Raises:
        TypeError: `callback_func` is not callable.
        ValueError: `wait_s` is not positive.
    """
    _call(
        callback_func,
        args,
        kwargs,
        name=callback_name,
        most_avg_s=None,
        monitor=enable_performance_monitoring,
        wait_s=wait_s,
    )


def adaptive_visualization_callback(
    callback_func: Callable[..., object],
    *args: Any,
    callback_name: str | None = None,
    max_avg_time_ms: float = 10.0,
    wait_s: float = 10.0,
    **kwargs: Any,
) -> None:
    """Call a function on the host, at a rate at which it stays cheap on average.

    Decided on the host each time the program comes by, so one compiled program backs
    off when the function is expensive and comes back when it is cheap again. A skipped
    call still has the price of a callback, unless `watch.jit` collects it.

    Args:
        callback_func: as in `jax_debug_callback`.
        *args: as in `jax_debug_callback`.
        callback_name: in the statistics; calls of the same name share their frequency.
        max_avg_time_ms: average milliseconds that the function may take per call,
            skipped calls included; > 0.
        wait_s: as in `jax_debug_callback`.
        **kwargs: as in `jax_debug_callback`.

    Raises:
        TypeError: `callback_func` is not callable.
        ValueError: `max_avg_time_ms` or `wait_s` is not positive.
    """
    # Written as `not >`, so that NaN is refused too.
    if not max_avg_time_ms > 0:
        raise ValueError(f"max_avg_time_ms must be > 0, got {max_avg_time_ms}.")
    _call(
        callback_func,
        args,
        kwargs,
        name=callback_name,
        most_avg_s=max_avg_time_ms / 1000,
        monitor=True,
        wait_s=wait_s,
    )


def jax_log_grid(
    grid_data: Any,
    mask: Any = None,
    title: str = "Grid",
    **options: Any,
) -> None:
    """Show a grid: to the current watcher, or in the terminal without one.

    Args:
        grid_data: `(rows, columns)`; leading axes are lanes, of which four are shown.
        mask: which cells count, `(rows, columns)`.
        title: its name; also that of the watcher's stream.
        **options: of `log_grid_to_console`, such as `show_numbers=True`.

    Raises:
        TypeError: an option is unknown.
    """
    # `show_coordinates` is accepted for backward compatibility and ignored.
    # Checked while tracing, where an error still points at the user's line. Later it
    # would be raised inside the program, where it is only counted.
    _check_options("jax_log_grid", options, log_grid_to_console, "show_coordinates")
    values = {"grid": grid_data} | ({} if mask is None else {"mask": mask})

    def show(arrays: Sequence[np.ndarray]) -> None:
        log_grid(*arrays, title=title, **options)

    # The guide's name of these statistics; scripts that read them expect it.
    name = f"log_grid_{title}"
    _emit(show, values, name=name, kind="frame", stream=title, is_display=True)


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
    given = (episode_num, total_steps, total_reward, final_similarity, success)
    _emit(
        lambda arrays: log_episode_summary(*arrays),
        dict(zip(_SUMMARY_FIELDS, given, strict=True)),
        name="log_episode_summary",
        kind="summary",
        stream="episode_summary",
        is_display=True,
    )


def jax_save_step_visualization(
    before_state: Any,
    action: Any,
    after_state: Any,
    output_dir: str | Path,
    *,
    step_label: str = "Step",
    **options: Any,
) -> None:
    """Draw a step, the grid before and after it, as `output_dir/step_000.svg`.

    Args:
        before_state: a grid `(rows, columns)`, or an object or mapping with
            `working_grid` and, if it has them, `working_grid_mask` and `step_count`.
        action: a tree of arrays or text, written beside the grids.
        after_state: as `before_state`.
        output_dir: where the files go; made if need be.
        step_label: the title, before the step's number.
        **options: of `step_svg`, such as `show_numbers=True`.

    The number is the `step_count` after the step, or counts the files made here.

    Raises:
        TypeError: an option is unknown.
    """
    _check_options("jax_save_step_visualization", options, step_svg)
    values = {"before": grid_of(before_state), "after": grid_of(after_state)}
    for name, found in (
        ("mask", mask_of(before_state)),
        ("step", step_of(after_state)),
    ):
        values |= {} if found is None else {name: found}
    parts = action_of(action)
    values |= {name: part for name, part in parts.items() if _is_number(part)}
    # Text cannot enter a program, so it is bound here and joined on the host.
    text = {name: np.asarray(p) for name, p in parts.items() if not _is_number(p)}
    fields, folder = tuple(values), Path(output_dir)
    # Counts on the host, because a traced function runs once however often it is
    # called.
    made = iter(range(10**9))

    def save(arrays: Sequence[np.ndarray]) -> None:
        named = dict(zip(fields, arrays, strict=True)) | text
        save_step(named, folder, made, label=step_label, options=options)

    _emit(save, values, name="save_step_visualization", kind="frame", stream="steps")


def _call(
    fn: Callable[..., object],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    name: str | None,
    most_avg_s: float | None,
    monitor: bool,
    wait_s: float,
) -> None:
    if not callable(fn):
        raise TypeError(f"the callback must be a function, got {fn!r:.99}.")
    # A wait of 0 would abandon every call and let its name rest at once.
    if not wait_s > 0:
        raise ValueError(f"wait_s must be > 0, got {wait_s}.")
    leaves, tree = jax.tree.flatten((args, kwargs))
    # Only arrays pass through the program. Python values stay in the closure, so that
    # flags and names reach the function with their own types.
    moving = [isinstance(leaf, jax.Array | np.ndarray | np.generic) for leaf in leaves]
    fixed = [leaf for leaf, moves in zip(leaves, moving, strict=True) if not moves]

    def act(arrays: Sequence[np.ndarray]) -> object:
        moved, stayed = iter(arrays), iter(fixed)
        both = [next(moved if moves else stayed) for moves in moving]
        given, named = jax.tree.unflatten(tree, both)
        return fn(*given, **named)

    values = {
        f"arg{i}": leaf
        for i, (leaf, moves) in enumerate(zip(leaves, moving, strict=True))
        if moves
    }
    # A partial or an object with `__call__` has no name, and its class stands in.
    own = getattr(fn, "__name__", type(fn).__name__)
    _emit(
        act,
        values,
        name=own if name is None else name,
        most_avg_s=most_avg_s,
        monitor=monitor,
        wait_s=wait_s,
    )


def _emit(
    act: Callable[[Sequence[np.ndarray]], object],
    values: dict[str, Any],
    *,
    name: str,
    most_avg_s: float | None = None,
    kind: Kind | None = None,
    stream: str = "",
    **how: Any,
) -> None:
    """Leave a probe in the program that hands these values over."""
    # A probe has at least one value; a function without any is called all the same.
    given = values or {_NOTHING: 0}
    arrays = tuple(_as_data(value) for value in given.values())
    call = host_calls.HostCall(
        name=name,
        act=act if values else lambda _: act(()),
        # By name and not by probe: a function that is traced again keeps the rate that
        # it has learnt.
        pace=host_calls.paces.of(name, most_avg_s),
        kind=kind,
        stream=stream or name,
        fields=tuple(given),
        **how,
    )
    # Built from the arrays as they leave the program, which is the form in which the
    # receiver gets them.
    tree = jax.tree.structure(arrays)
    emit(Probe(call.stream, kind or "call", call, tree, call.fields), *arrays)


def _check_options(
    whose: str, options: Mapping[str, Any], fn: Callable[..., object], *others: str
) -> None:
    """Refuse an unknown option where it is written: a callback cannot raise later."""
    taken = {"mask", "title"}  # passed by the callback itself
    known = [
        name
        for name, parameter in inspect.signature(fn).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and name not in taken
    ]
    if unknown := [name for name in options if name not in (*known, *others)]:
        raise TypeError(
            f"{whose} has no option {unknown[0]!r}; there are {', '.join(known)}."
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray | np.generic | bool | int | float)


def _as_data(value: Any) -> jax.Array:
    """An array that can leave the program; a random key as the numbers in it."""
    array = jnp.asarray(value)
    # Random keys have an extended dtype, which no array on the host can have.
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(array)
    return array
