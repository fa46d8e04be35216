"""What a squared error of each tensor is worth, beside one of another tensor."""

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from frugax.trees import PyTree, is_array

from ..arrays._leaves import named_arrays, unwrap_modules
from ._source import Source

# Biases and norms weigh little and err much: they get 30 dB more than matrices.
_SMALL_SHARE = 1 / 32
# Sizes this many times the median one, or smaller by it, are where relative error
# begins to count alone: it is then at most this, rooted, from the median tensor's.
_ALIKE = 16


def error_weights(
    sources: Sequence[Source], sensitivity: Mapping[str, float] | None
) -> dict[str, float]:
    """The weight of each float tensor's squared error.

    Raises:
        TypeError: what is given is no mapping of numbers.
        ValueError: a name that no tensor has, a tensor without one, or a weight that
            is negative or not finite.
    """
    if sensitivity is None:
        return _by_size([source for source in sources if source.quantisable])
    return _by_sensitivity(sources, sensitivity)


def _by_size(floats: Sequence[Source]) -> dict[str, float]:
    middle = _middle([(s.rms, s.array.size) for s in floats])
    weights = {s.name: _worth(s.rms, middle) for s in floats}
    for source in floats:
        if source.small:
            weights[source.name] /= _SMALL_SHARE**2
    return weights


def _by_sensitivity(
    sources: Sequence[Source], given: Mapping[str, float]
) -> dict[str, float]:
    # Callers are checked at run time, whatever their annotations promise.
    if not isinstance(given, Mapping):
        raise TypeError(
            "sensitivity must be numbers by name, as frugax.compress.sensitivity_of "
            f"gives them, got {given!r:.60}."
        )
    names = {source.name for source in sources}
    for name, weight in given.items():
        if name not in names:
            raise ValueError(f"sensitivity names {name!r}, which is no tensor.")
        try:
            sound = 0 <= weight < math.inf
        except TypeError as e:
            raise TypeError(
                f"sensitivity of {name!r} must be a number, got {weight!r}."
            ) from e
        if not sound:
            raise ValueError(f"sensitivity of {name!r} must be >= 0, got {weight}.")
    missing = [s.name for s in sources if s.energy and s.name not in given]
    if missing:
        raise ValueError(
            f"sensitivity lacks {missing[0]!r}: give every float tensor one."
        )
    # Nothing is worth nothing: its step would have no end. Little is what is little
    # beside the tensor's own squares, whatever unit these are in.
    squares = {s.name: s.rms**2 for s in sources if s.quantisable}
    most = max((given[n] * square for n, square in squares.items()), default=0.0)
    least = 1e-9 * most or 1.0
    return {n: max(given[n], least / square) for n, square in squares.items()}


def _middle(sizes: Sequence[tuple[float, int]]) -> float:
    """The root mean square that half of all numbers are in tensors at or below."""
    half, count = sum(size for _, size in sizes) / 2, 0
    for rms, size in sorted(sizes):
        count += size
        if count >= half:
            return rms
    return 1.0


def _worth(rms: float, middle: float) -> float:
    """What a squared error of a tensor is worth: 1 over its size, where that is common.

    >>> _worth(0.5, 1.0), _worth(1 / 64, 1.0)
    (2.0, 256.0)
    """
    return min(max(rms, middle / _ALIKE), middle * _ALIKE) / rms**2


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
    arrays = named_arrays(unwrap_modules(tree))
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
