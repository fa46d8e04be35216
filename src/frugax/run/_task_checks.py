"""Check the return values of a task's functions before its step is planned."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from frugax import train
from frugax.errors import ConfigError
from frugax.trees import PyTree
from frugax.watch.journal import check_names

from ._bound_task import BoundTask
from ._example_batches import to_arrays
from ._user_code import user_code

# Streams that frugax writes: the metrics of training steps, and those of watching.
RESERVED_STREAMS = ("", "watch")


@dataclasses.dataclass(frozen=True, eq=False)
class Figures:
    """The result of one evaluation.

    Attributes:
        values: figures by name.
        examples: those of single examples, where the task returns them.
    """

    values: dict[str, float]
    examples: dict[str, Float[np.ndarray, " examples"]]


def check_batches(batches: Any) -> Callable[[int], PyTree]:
    """Return batches by step, each checked, with arrays in place of torch tensors."""
    seen: set[Any] = set()

    def convert(batch: PyTree, name: str) -> PyTree:
        leaves = jax.tree.leaves(batch)
        if any(hasattr(leaf, "detach") for leaf in leaves):
            return convert(jax.tree.map(to_arrays, batch), name)
        # Looked at once for each form, as this is done in every step.
        form = tuple(
            (type(x), getattr(x, "dtype", None), getattr(x, "shape", None))
            for x in leaves
        )
        if form not in seen:
            check_batch(batch, name)
            seen.add(form)
        return batch

    batch_of = train.index_batches(batches)
    if isinstance(batch_of, train.ResumableIterator):
        return _CheckedIterator(batch_of.iterator, convert)

    def at(step: int) -> PyTree:
        with user_code("batches"):
            return convert(batch_of(step), f"batches({step})")

    return at


class _CheckedIterator(train.ResumableIterator):
    """An iterator of the user's, whose batches are checked."""

    def __init__(self, iterator: Any, convert: Callable[[PyTree, str], PyTree]) -> None:
        super().__init__(iterator)
        self._convert = convert

    def __call__(self, index: int) -> PyTree:
        with user_code("batches"):
            return self._convert(super().__call__(index), f"batch {index}")


def check_batch(batch: PyTree, name: str = "batches(0)") -> None:
    """Check that a batch is a pytree of arrays or numbers, with rows."""
    # JAX treats an iterator as a leaf, with a warning; here it is an error. None would
    # be an empty container.
    is_leaf = lambda x: isinstance(x, Iterator) or x is None
    flat = jax.tree_util.tree_leaves_with_path(batch, is_leaf=is_leaf)
    if not flat:
        raise ConfigError(f"task: {name} is empty: a batch is a pytree of arrays.")
    for path, leaf in flat:
        place = f"task: {name}{jax.tree_util.keystr(path)}"
        is_array = isinstance(leaf, jax.Array | np.ndarray | np.generic | int | float)
        is_object = isinstance(leaf, np.ndarray) and leaf.dtype.kind == "O"
        if not is_array or is_object:
            raise ConfigError(
                f"{place} is {_describe(leaf)}; a batch is a pytree of arrays."
            )
        if np.ndim(leaf) and np.shape(leaf)[0] == 0:
            raise ConfigError(
                f"{place} has no rows, its shape is {np.shape(leaf)}: a slice beyond "
                "the end of the data is empty; wrap around, as in data[i % len(data)]."
            )
        if not isinstance(leaf, jax.Array) and np.asarray(leaf).dtype.kind in "USMm":
            raise ConfigError(f"{place} holds text or dates; a batch is of numbers.")


def check_loss(step: train.TrainStep, state: train.TrainState, batch: PyTree) -> None:
    """Check the results of a loss, and the names of its metrics."""
    # Traced before the step is: inside it the same mistake would surface as an error of
    # `jax.grad`, far from the user's code.
    with user_code("loss"):
        metrics = step.check_loss(state, batch)
    for name, metric in metrics.items():
        _check_name(name, "a metric of loss")
        if not _is_real(metric):
            raise ConfigError(
                f"task: the metric {name!r} of loss must be a real scalar, got "
                f"{_describe(metric)}."
            )
        if name == "seconds":  # the journal would hold two columns of one name
            raise ConfigError(
                f"task: loss names a metric {name!r}, which frugax records itself: "
                "choose another name."
            )


def _check_name(name: Any, what: str) -> None:
    try:
        check_names([name])
    except ValueError as e:
        raise ConfigError(f"task: {what}: {e}") from e


def check_show(show: Any, *arrays: PyTree) -> dict[str, tuple[str, ...]]:
    """Check that `show` returns streams by name, each a dict of real arrays."""
    with user_code("show"):
        streams = _trace(show, *arrays)
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
        _check_name(stream, "a stream of show")
        for name, value in columns.items():
            _check_name(name, f"{stream!r} of show")
            if not (_is_real(value) and np.size(value)):
                raise ConfigError(
                    f"task: show returns {_describe(value)} as {name!r} of "
                    f"{stream!r}: it must be a number or an array of some."
                )
    return {stream: tuple(columns) for stream, columns in streams.items()}


def evaluate_model(bound: BoundTask, whole: PyTree) -> Figures:
    """Evaluate a model by its task; empty if the task has no `evaluate`."""
    found = Figures({}, {})
    if bound.task.evaluate is None:
        return found
    with user_code("evaluate"):
        # A copy of dicts and lists: `evaluate` may change them, the state must not.
        whole = jax.tree.map(lambda x: x, whole)
        # Fetched at once: one by one each figure would wait for the device.
        figures = jax.device_get(bound.call(bound.task.evaluate, whole))
    if any(isinstance(x, jax.Array) and x.is_deleted() for x in jax.tree.leaves(whole)):
        raise ConfigError(
            "task: evaluate has deleted or donated arrays of the model, which training "
            "still needs: call jax.jit without donate_argnums."
        )
    if not isinstance(figures, Mapping):
        raise ConfigError(
            f"task: evaluate must return a dict of figures, such as "
            f'{{"accuracy": 0.97}}, got {_describe(figures)}.'
        )
    for name, value in figures.items():
        if not isinstance(name, str):
            raise ConfigError(
                f"task: evaluate names a figure {name!r}: a name must be text."
            )
        array = np.asarray(to_arrays(value))
        if array.dtype.kind not in "buif" or array.ndim > 1 or not array.size:
            raise ConfigError(
                f"task: evaluate returns {_describe(value)} as {name!r}: it must be a "
                "number, or an array with one number for each example."
            )
        if array.ndim:
            found.examples[name] = array.astype(np.float64)
        found.values[name] = float(array.mean(dtype=np.float64))
    return found


def _trace(function: Any, *args: PyTree) -> Any:
    """Call `function` on abstract arrays: nothing is computed."""
    results = []

    def call(*args: PyTree) -> int:
        results.append(function(*args))
        return 0  # the real result may hold values that no JAX function can return

    jax.eval_shape(call, *args)
    return results[0]


def _is_real(value: Any) -> bool:
    if isinstance(value, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct):
        real = (np.bool_, np.integer, np.floating)
        return any(jnp.issubdtype(value.dtype, kind) for kind in real)
    return isinstance(value, int | float)


def _describe(value: Any) -> str:
    if isinstance(value, jax.Array | np.ndarray | jax.ShapeDtypeStruct):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_describe, value))})"
    return f"{value!r:.40} (type {type(value).__name__})"
