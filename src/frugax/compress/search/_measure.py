"""Weight each tensor's squared error, by a rule or a model's measured sensitivity."""

import math
import numbers
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from frugax.trees import PyTree, is_array

from ..arrays import Tensor, named_arrays, unwrap_modules
from ..codecs import ChannelScaling
from ._calibration import Calibration
from ._columns import code_by_columns_if_shorter
from ._rows import scale_rows_if_worth, scale_table_if_compared
from ._source import Source

# The weight of each tensor's squared error by name, or the name of a rule.
Sensitivity: TypeAlias = (
    Mapping[str, float] | Literal["default", "equal", "rows"] | None
)

# Biases and norms cost few bytes and their errors do much: three bits more each. Of six
# trained nets one is 3 dB better for it, and none worse; five bits are no better.
_SMALL_BITS = 3.0
# What these may cost in total error, in dB.
_MAX_COST_DB = 0.2
# And variances and scales, whose relative errors count. Without it a net of batch norms
# is lost: a recogniser of text keeps half of its letters at 4 bits.
_MAX_DIVISORS_COST_DB = 1.0
_DB_PER_BIT = 20 * math.log10(2)
# Norms undo the size of the weights before them, so that relative errors count; without
# norms absolute ones do. For tensors below the common size the mean of both is taken,
# and the relative one below it by more than this many times.
_SIZE_RANGE = 4


def choose_weights(
    sources: Sequence[Source], sensitivity: Sensitivity, *, scale_tables: bool
) -> tuple[tuple[Source, ...], dict[str, float]]:
    """Return the error that a search minimises: a sum of weighted squares.

    The weight of a number's squared error is that of its tensor, over the squared scale
    of its row where rows have scales.

    Args:
        sources: the tensors.
        sensitivity: the one asked for.
        scale_tables: whether rows of tables may have scales by default.

    Returns:
        The tensors, each with the scaling of its rows, and the weight of each float
        tensor by name.
    """
    scaled = tuple(sources)
    match sensitivity:
        case None | "default":
            if scale_tables:
                scaled = tuple(map(scale_table_if_compared, sources))
            weights = default_weights(sources)
        case "rows":
            scaled = tuple(map(scale_rows_if_worth, sources))
            weights = default_weights(sources)
        case "equal":
            weights = {s.name: 1.0 for s in sources if s.quantisable}
        case _:
            weights = _weights_by_sensitivity(sources, sensitivity)
    if isinstance(sensitivity, Calibration):
        scaled = tuple(map(sensitivity.scale, sources))
        for source in scaled:
            # Errors count over the scales of channels, and so does the weight.
            if isinstance(source.scaling, ChannelScaling):
                weights[source.name] = source.scaling.weight
        weights = _floor_weights(scaled, weights)
    return tuple(map(code_by_columns_if_shorter, scaled)), weights


def default_weights(sources: Sequence[Source]) -> dict[str, float]:
    """Return 1 for most tensors, and more for small ones and those of small weights."""
    floats = [source for source in sources if source.quantisable]
    # The median over numbers and not over tensors: hundreds of biases would otherwise
    # set the common size of a network.
    middle = _weighted_median([(s.rms, s.array.size) for s in floats])
    weights: dict[str, float] = {}
    for source in floats:
        smaller = middle / source.rms
        weights[source.name] = max(1.0, smaller, (smaller / _SIZE_RANGE) ** 2)
    # At high rate a bit more for each of these is taken from all the numbers.
    small = sum(s.array.size for s in floats if s.small)
    total = sum(s.array.size for s in floats)
    bits = min(_SMALL_BITS, _MAX_COST_DB / _DB_PER_BIT * total / max(1, small))
    for source in floats:
        if source.small:
            weights[source.name] = max(weights[source.name], 4.0**bits)
    # A variance with one step for all loses its small numbers, and a channel with it.
    finer: dict[str, float] = {}
    for source in floats:
        if (size := source.divisor_size) is not None:
            wanted = _SMALL_BITS + math.log2(middle / size)
            finer[source.name] = max(0.0, wanted - math.log2(weights[source.name]) / 2)
    cost = sum(finer.get(s.name, 0.0) * s.array.size for s in floats)
    share = min(1.0, _MAX_DIVISORS_COST_DB / _DB_PER_BIT * total / max(1.0, cost))
    for name, more in finer.items():
        weights[name] *= 4.0 ** (share * more)
    return weights


def _weights_by_sensitivity(
    sources: Sequence[Source], sensitivity: Any
) -> dict[str, float]:
    # Callers are checked at run time, whatever their annotations say.
    if not isinstance(sensitivity, Mapping):
        raise TypeError(
            'sensitivity must be "default", "equal", "rows" or numbers by name, as '
            f"frugax.compress.sensitivity_of gives them, got {sensitivity!r:.60}."
        )
    tied = {s.name: [name for _, name in s.ties] for s in sources}
    check_sensitivity(sensitivity, {*tied}.union(*tied.values()))
    missing = [s.name for s in sources if s.energy and s.name not in sensitivity]
    if missing:
        raise ValueError(
            f"sensitivity lacks {missing[0]!r}: give every float tensor one."
        )
    # Errors of a tied tensor count under each of its names.
    total = {
        name: sensitivity[name] + sum(sensitivity.get(other, 0) for other in others)
        for name, others in tied.items()
        if name in sensitivity
    }
    return _floor_weights(sources, total)


def check_sensitivity(sensitivity: Mapping[str, float], names: Collection[str]) -> None:
    """Refuse weights that are not numbers >= 0, or are for none of these tensors."""
    for name, weight in sensitivity.items():
        if name not in names:
            raise ValueError(f"sensitivity names {name!r}, which is not a tensor.")
        try:
            valid = 0 <= weight < math.inf
        except TypeError as e:
            raise TypeError(
                f"sensitivity of {name!r} must be a number, got {weight!r}."
            ) from e
        if not valid:
            raise ValueError(f"sensitivity of {name!r} must be >= 0, got {weight}.")


def _floor_weights(
    sources: Sequence[Source], weights: Mapping[str, float]
) -> dict[str, float]:
    # A weight of 0 would have no largest step. The floor is relative to the tensor's
    # own squares, whatever their unit, and to the median: a mask of 1e9 says nothing.
    squares = {s.name: s.rms**2 for s in sources if s.quantisable}
    worth = sorted(weights[n] * square for n, square in squares.items() if weights[n])
    least = 1e-9 * worth[len(worth) // 2] if worth else 1.0
    return {n: max(weights[n], least / square) for n, square in squares.items()}


def _weighted_median(sizes: Sequence[tuple[float, int]]) -> float:
    """Return the root mean square of the tensor that the median number is in."""
    half, count = sum(size for _, size in sizes) / 2, 0
    for rms, size in sorted(sizes):
        count += size
        # Of two tensors alike in size the larger one: the other is below it.
        if count > half:
            return rms
    return 1.0


def sensitivity_of(
    answer: Callable[[dict[str, np.ndarray]], Any],
    tree: PyTree,
    *,
    noise: float = 0.03,
    seed: int = 0,
) -> dict[str, float]:
    """Measure the effect of a squared error in each float tensor on a model's answers.

    Each tensor in turn gets normal noise, and the squared change of the answers is
    divided by the squared noise. It is a measurement on your batches, of errors that
    are independent from number to number; it proves nothing about other data.

    Args:
        answer: a function from weights by name, as NumPy arrays, to the model's output
            on your calibration batches, one array; called once for each float tensor
            and once more.
        tree: the weights; they are only read.
        noise: deviation of the noise over the tensor's root mean square; > 0.
        seed: of the noise.

    Returns:
        One number >= 0 for each float tensor, for `plan(..., sensitivity=)`.

    Raises:
        TypeError: the answers are not an array.
        ValueError: the answers are not finite, or the noise is not above 0.

    >>> weights = {"used": np.ones((2, 2)), "unused": np.ones((2, 2))}
    >>> found = sensitivity_of(lambda w: w["used"] @ np.ones(2), weights)
    >>> found["used"] > 0, found["unused"]
    (True, 0.0)
    """
    if not 0 < noise < math.inf:
        raise ValueError(f"noise must be > 0 and finite, got {noise}.")
    arrays = named_arrays(unwrap_modules(tree))
    original = _check_answers(answer(dict(arrays)))
    rng = np.random.default_rng(seed)
    sensitivity: dict[str, float] = {}
    for name, array in arrays.items():
        source = Tensor(name, array)
        if not source.energy:
            continue
        # To first order the expected change is the variance of the noise times the
        # trace of J^T J, for the Jacobian J of the answers: one draw is the estimate of
        # Hutchinson 1990, Commun. Statist. Simul. Comput. 19(2).
        change = rng.normal(size=array.shape) * (noise * source.rms)
        noisy = (array.astype(np.float64) + change).astype(array.dtype)
        moved = _check_answers(answer(arrays | {name: noisy})) - original
        # The noise that the dtype could represent, not the one that was drawn.
        actual = noisy.astype(np.float64) - array.astype(np.float64)
        # A coarse dtype can round all of the noise away, and 0 / 0 is NaN.
        energy = max(np.vdot(actual, actual), 1e-300)
        sensitivity[name] = float(np.vdot(moved, moved) / energy)
    return sensitivity


def _check_answers(output: Any) -> np.ndarray:
    # The answers in float64.
    if not (is_array(output) or isinstance(output, numbers.Real)):
        raise TypeError(
            f"answer must give one array, got a {type(output).__name__}: write "
            "np.concatenate([...]) or np.asarray(...) around it."
        )
    answers = np.asarray(output, np.float64)
    if not np.isfinite(answers).all():
        raise ValueError("the answers of the calibration batches are not finite.")
    return answers
