"""What a task's functions give back, looked at before a step is planned."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax.errors import ConfigError
from frugax.trees import PyTree

from ._task import Task

# The metrics of the training steps, and how watching itself goes.
RESERVED_STREAMS = ("", "watch")


def check_batch(batch: PyTree) -> None:
    """A batch must be a pytree of arrays or numbers.

    Raises:
        ConfigError: something else is in it.
    """
    # An iterator is a leaf to JAX, with a warning; here it is refused.
    is_leaf = lambda x: isinstance(x, Iterator)
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch, is_leaf=is_leaf):
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic | int | float):
            raise ConfigError(
                f"task: batches(0){jax.tree_util.keystr(path)} is a "
                f"{type(leaf).__name__}; a batch is a pytree of arrays."
            )


def check_loss(loss: Any, arrays: PyTree, batch: PyTree) -> None:
    """A loss must be a real scalar, or that and a dict of scalars.

    The user's own errors pass through as they are.

    Raises:
        ConfigError: it gives something else.
    """
    kinds = []

    def look(arrays: PyTree, batch: PyTree) -> Any:
        out = loss(arrays, batch)
        kinds.append(out)
        return 0

    jax.eval_shape(look, arrays, batch)
    (out,) = kinds
    value, metrics = out if isinstance(out, tuple) and len(out) == 2 else (out, {})
    if not _is_scalar(value) or not jnp.issubdtype(
        jnp.result_type(value), jnp.floating
    ):
        mean = " Take the mean over the batch?" if np.ndim(value) else ""
        raise ConfigError(
            "task: loss must give a real scalar, or (scalar, dict of scalars), but it "
            f"gives {_kind(out)}.{mean}"
        )
    if not isinstance(metrics, Mapping):
        raise ConfigError(
            f"task: beside its value, loss must give a dict of scalars, got "
            f"{_kind(metrics)}."
        )
    for name, metric in metrics.items():
        if not _is_scalar(metric):
            raise ConfigError(
                f"task: the metric {name!r} of loss must be a scalar, got "
                f"{_kind(metric)}."
            )
        if name in ("loss", "seconds"):
            raise ConfigError(
                f"task: loss names a metric {name!r}, which frugax records itself: "
                "call it something else."
            )


def check_show(show: Any, arrays: PyTree) -> dict[str, tuple[str, ...]]:
    """What is shown must be streams by name, each a dict of arrays of real numbers.

    The user's own errors pass through as they are.

    Returns:
        The names in each stream, in the task's order: JAX sorts them.

    Raises:
        ConfigError: it is something else, or a stream has a name that frugax uses.
    """
    kinds = []

    def look(arrays: PyTree) -> Any:
        kinds.append(show(arrays))
        return 0

    jax.eval_shape(look, arrays)
    (streams,) = kinds
    if not isinstance(streams, Mapping):
        raise ConfigError(
            f"task: show must give a dict of streams, each a dict of arrays, got "
            f"{_kind(streams)}."
        )
    for stream, columns in streams.items():
        if stream in RESERVED_STREAMS or not isinstance(stream, str):
            raise ConfigError(
                f"task: show names a stream {stream!r}, which frugax writes itself: "
                "call it something else."
            )
        if not isinstance(columns, Mapping) or not columns:
            raise ConfigError(
                f"task: show gives {_kind(columns)} as {stream!r}: a stream is a dict "
                "of arrays."
            )
        for name, value in columns.items():
            if not _is_real(value):
                raise ConfigError(
                    f"task: show gives {_kind(value)} as {name!r} of {stream!r}: it "
                    "must be a number or an array of them."
                )
    return {stream: tuple(columns) for stream, columns in streams.items()}


def evaluation(task: Task, model: PyTree) -> dict[str, float]:
    """What the task says about a model; empty if it does not evaluate.

    Raises:
        ConfigError: it is no dict of numbers.
    """
    if task.evaluate is None:
        return {}
    said = task.evaluate(model)
    if not isinstance(said, Mapping):
        raise ConfigError(
            f"task: evaluate must give a dict of numbers, such as "
            f'{{"accuracy": 0.97}}, got {_kind(said)}.'
        )
    for name, value in said.items():
        if np.ndim(value) or not np.issubdtype(np.asarray(value).dtype, np.number):
            raise ConfigError(
                f"task: evaluate gives {_kind(value)} as {name!r}: it must be a number."
            )
    return {name: float(value) for name, value in said.items()}


def _is_real(value: Any) -> bool:
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        real = (np.bool_, np.integer, np.floating)
        return any(jnp.issubdtype(value.dtype, kind) for kind in real)
    return isinstance(value, int | float)


def _is_scalar(value: Any) -> bool:
    number = isinstance(value, jax.Array | np.ndarray | np.generic | int | float)
    return number and jnp.shape(value) == ()


def _kind(value: Any) -> str:
    if isinstance(value, jax.Array | np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_kind, value))})"
    return f"{value!r:.40} (type {type(value).__name__})"
