"""Batches by step number from a data set of examples: torch's, Hugging Face's, arrays.

Anything with a length and items is a data set: those of torch, Hugging Face and grain,
tuples of arrays, lists. Batches are a pure function of the step's index, which makes a
resumed run exact: a new order in every epoch, no example twice in one.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from frugax.errors import ConfigError
from frugax.trees import PyTree


def batch_examples(data: Any, *, batch: int, seed: int) -> Callable[[int], PyTree]:
    """Make a function from the step to its batch."""
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise ConfigError(
            "task: batch_size is for a data set with a length and items, got a "
            f"{type(data).__name__}."
        )
    count = len(data)
    if type(batch) is not int or not 1 <= batch <= max(count, 1):
        raise ConfigError(
            "task: batch_size must be a whole number from 1 to the number of examples "
            f"({count:,}), got {batch!r}."
        )
    if not count:
        raise ConfigError("task: the data set of batches is empty.")
    order = epoch_order(count, batch=batch, seed=seed)
    return lambda step: _collate(_fetch(data, order(step)))


def epoch_order(count: int, *, batch: int, seed: int) -> Callable[[int], np.ndarray]:
    """Make a function from the step to the numbers of its examples."""
    # The rest of an epoch is dropped: a shorter last batch would be another shape, and
    # so another compile.
    per_epoch = count // batch
    last: tuple[int, np.ndarray] = (-1, np.empty(0))

    def at(step: int) -> np.ndarray:
        nonlocal last  # the order of the current epoch, drawn once
        epoch, place = divmod(step, per_epoch)
        # Seeded by the epoch and not drawn one after another, so that a resumed run can
        # ask for any step first.
        if last[0] != epoch:
            last = (epoch, np.random.default_rng((seed, epoch)).permutation(count))
        return last[1][place * batch : (place + 1) * batch]

    return at


def to_arrays(value: Any) -> PyTree:
    """Convert tensors, images and lists of numbers in an example to NumPy arrays."""
    if isinstance(value, Mapping):
        return {str(k): to_arrays(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return tuple(map(to_arrays, value))
    if isinstance(value, jax.Array | np.ndarray | str | bytes) or value is None:
        return value
    if hasattr(value, "detach"):  # a torch tensor, perhaps on a device
        return value.detach().cpu().numpy()
    return np.asarray(value)


def _fetch(data: Any, indices: np.ndarray) -> list[Any]:
    numbers = indices.tolist()
    # torch and Hugging Face fetch many at once, which is much faster than one by one.
    if hasattr(data, "__getitems__"):
        return list(data.__getitems__(numbers))
    return [data[i] for i in numbers]


def _collate(examples: Sequence[Any]) -> PyTree:
    converted = [to_arrays(example) for example in examples]
    try:
        return jax.tree.map(lambda *leaves: np.stack(leaves), *converted)
    except ValueError as e:
        shapes = {str(jax.tree.map(np.shape, c)) for c in converted}
        raise ConfigError(
            "task: the examples of a batch must have the same fields and shapes, got "
            f"{' and '.join(sorted(shapes)[:2])}."
        ) from e
