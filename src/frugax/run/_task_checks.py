"""Check the return values of a task's functions before a step is planned."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax.errors import ConfigError
from frugax.trees import PyTree

from ._task import Task

# Streams that frugax writes: the metrics of training steps, and those of watching.
RESERVED_STREAMS = ("", "watch")


def check_batch(batch: PyTree) -> None:
    """Check that a batch is a pytree of arrays or numbers."""
    # JAX treats an iterator as a leaf, with a warning; here it is an error.
    is_leaf = lambda x: isinstance(x, Iterator)
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch, is_leaf=is_leaf):
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic | int | float):
            raise ConfigError(
                f"task: batches(0){jax.tree_util.keystr(path)} is a "
                f"{type(leaf).__name__}; a batch is a pytree of arrays."
            )


def check_loss(loss: Any, arrays: PyTree, batch: PyTree) -> None:
    """Check that a loss returns a real scalar, or that and a dict of scalars.

    The user's own errors pass through unchanged.

    Raises:
        ConfigError: the loss returns anything else.
    """
    # Traced before the step is: inside it the same mistake would surface as an error of
    # `jax.grad`, far from the user's code.
    out = _trace(loss, arrays, batch)
    value, metrics = out, {}
    if isinstance(out, tuple) and len(out) == 2:
        value, metrics = out
    if not _is_scalar(value) or not jnp.issubdtype(
        jnp.result_type(value), jnp.floating
    ):
        message = (
            "task: loss must return a real scalar, or (scalar, dict of scalars), but "
            f"it returns {_describe(out)}."
        )
        if np.ndim(value):
            message += " Take the mean over the batch?"
        raise ConfigError(message)
    if not isinstance(metrics, Mapping):
        raise ConfigError(
            f"task: besides its value, loss must return a dict of scalars, got "
            f"{_describe(metrics)}."
        )
    for name, metric in metrics.items():
        if not _is_scalar(metric):
            raise ConfigError(
                f"task: the metric {name!r} of loss must be a scalar, got "
                f"{_describe(metric)}."
            )
        # The journal would hold two columns of one name.
        if name in ("loss", "seconds"):
            raise ConfigError(
                f"task: loss names a metric {name!r}, which frugax records itself: "
                "choose another name."
            )


def check_show(show: Any, arrays: PyTree) -> dict[str, tuple[str, ...]]:
    """Check that `show` returns streams by name, each a dict of arrays of real numbers.

    The user's own errors pass through unchanged.

    Raises:
        ConfigError: `show` returns anything else, or uses a stream name of frugax's.
    """
    streams = _trace(show, arrays)
    if not isinstance(streams, Mapping):
        raise ConfigError(
            f"task: show must return a dict of streams, each a dict of arrays, got "
            f"{_describe(streams)}."
        )
    for stream, columns in streams.items():
        if stream in RESERVED_STREAMS or not isinstance(stream, str):
            raise ConfigError(
                f"task: show names a stream {stream!r}, which frugax writes itself: "
                "choose another name."
            )
        if not isinstance(columns, Mapping) or not columns:
            raise ConfigError(
                f"task: show returns {_describe(columns)} as {stream!r}: a stream is "
                "a dict of arrays."
            )
        for name, value in columns.items():
            if not _is_real(value):
                raise ConfigError(
                    f"task: show returns {_describe(value)} as {name!r} of "
                    f"{stream!r}: it must be a number or an array of them."
                )
    return {stream: tuple(columns) for stream, columns in streams.items()}


def evaluate_model(task: Task, model: PyTree) -> dict[str, float]:
    """Evaluate a model by its task; empty if the task has no `evaluate`."""
    if task.evaluate is None:
        return {}
    figures = task.evaluate(model)
    if not isinstance(figures, Mapping):
        raise ConfigError(
            f"task: evaluate must return a dict of numbers, such as "
            f'{{"accuracy": 0.97}}, got {_describe(figures)}.'
        )
    for name, value in figures.items():
        if np.ndim(value) or not np.issubdtype(np.asarray(value).dtype, np.number):
            raise ConfigError(
                f"task: evaluate returns {_describe(value)} as {name!r}: it must be a "
                "number."
            )
    return {name: float(value) for name, value in figures.items()}


def _trace(function: Any, *args: PyTree) -> Any:
    """Call `function` on abstract arrays: nothing is computed."""
    results = []

    def call(*args: PyTree) -> int:
        results.append(function(*args))
        return 0  # the real result may hold values that no JAX function can return

    jax.eval_shape(call, *args)
    return results[0]


def _is_real(value: Any) -> bool:
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        real = (np.bool_, np.integer, np.floating)
        return any(jnp.issubdtype(value.dtype, kind) for kind in real)
    return isinstance(value, int | float)


def _is_scalar(value: Any) -> bool:
    number = isinstance(value, jax.Array | np.ndarray | np.generic | int | float)
    return number and jnp.shape(value) == ()


def _describe(value: Any) -> str:
    if isinstance(value, jax.Array | np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_describe, value))})"
    return f"{value!r:.40} (type {type(value).__name__})"
