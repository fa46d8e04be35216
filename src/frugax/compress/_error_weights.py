"""What a squared error of each tensor is worth, beside one of another tensor."""

import math
from collections.abc import Mapping, Sequence

from ._sources import Source

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
