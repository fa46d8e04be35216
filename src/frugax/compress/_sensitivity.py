"""How much a model's answers mind errors in each tensor, measured on your data."""

import math
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from frugax.trees import PyTree, is_array

from ._arrays import arrays_of, unwrapped
from ._sources import Source


def sensitivity_of(
    answer: Callable[[dict[str, np.ndarray]], Any],
    tree: PyTree,
    *,
    noise: float = 0.03,
    seed: int = 0,
) -> dict[str, float]:
    """What a squared error in each float tensor does to the answers.

    Each tensor in turn gets normal noise, and the squared change of the answers is
    divided by the squared noise. It is a measurement on your batches, of errors that
    are independent from number to number; it proves nothing about other data.

    Args:
        answer: from weights by name, as NumPy arrays, to the model's output on your
            calibration batches, one array; called once for each float tensor and once
            more.
        tree: the weights; they are only read.
        noise: deviation of the noise over the tensor's root mean square; > 0.
        seed: of the noise.

    Returns:
        One number >= 0 for each float tensor, for `plan(..., sensitivity=)`.

    Raises:
        TypeError: the answers are no array.
        ValueError: the answers are not finite, or the noise is not above 0.

    >>> weights = {"used": np.ones((2, 2)), "unused": np.ones((2, 2))}
    >>> found = sensitivity_of(lambda w: w["used"] @ np.ones(2), weights)
    >>> found["used"] > 0, found["unused"]
    (True, 0.0)
    """
    if not 0 < noise < math.inf:
        raise ValueError(f"noise must be > 0 and finite, got {noise}.")
    arrays = arrays_of(unwrapped(tree))
    right = _checked(answer(dict(arrays)))
    rng = np.random.default_rng(seed)
    found: dict[str, float] = {}
    for name, array in arrays.items():
        source = Source(name, array)
        if not source.energy:
            continue
        change = rng.normal(size=array.shape) * (noise * source.rms)
        other = (array.astype(np.float64) + change).astype(array.dtype)
        moved = _checked(answer(arrays | {name: other})) - right
        made = other.astype(np.float64) - array.astype(np.float64)
        found[name] = float(np.vdot(moved, moved) / max(np.vdot(made, made), 1e-300))
    return found


def _checked(output: Any) -> np.ndarray:
    """The answers in float64.

    Raises:
        TypeError: they are no array.
        ValueError: they are not finite.
    """
    if not (is_array(output) or isinstance(output, numbers.Real)):
        raise TypeError(
            f"answer must give one array, got a {type(output).__name__}: write "
            "np.concatenate([...]) or np.asarray(...) around it."
        )
    found = np.asarray(output, np.float64)
    if not np.isfinite(found).all():
        raise ValueError("the answers of the calibration batches are not finite.")
    return found
