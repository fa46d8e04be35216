"""The confidence interval of the accuracy lost by compression, paired by example."""

import dataclasses
import math

import numpy as np
from jaxtyping import Float
from scipy import stats

# A budget is a one-sided claim: the accuracy drops by no more than this. Each bound
# holds with this confidence.
_CONFIDENCE = 0.95
_MAX_EXAMPLES = 10**9
# Numbers that resampling holds at once.
_MAX_RESAMPLED = 10**7


@dataclasses.dataclass(frozen=True, slots=True)
class PairedDifference:
    """The mean of a difference, example by example, with its interval.

    Attributes:
        mean: of the differences.
        low: lower bound of the true mean.
        high: upper bound.
        num_examples: number of pairs.
        method: how the bounds were computed.
    """

    mean: float
    low: float
    high: float
    num_examples: int
    method: str

    @property
    def noise(self) -> float:
        """Distance of the mean from the farther bound."""
        return max(self.high - self.mean, self.mean - self.low)


def paired_difference(
    before: Float[np.ndarray, " examples"], after: Float[np.ndarray, " examples"]
) -> PairedDifference:
    """Return the mean of `before - after` over the examples, with its interval.

    Right or wrong answers, two values on any scale, are counted: the shares that were
    lost and gained have Wilson intervals, which are combined by squares (Newcombe 1998,
    Statistics in Medicine 17, 2635-2650). Other values are resampled (BCa bootstrap).
    """
    first, second = np.asarray(before, np.float64), np.asarray(after, np.float64)
    change, count = first - second, len(first)
    if scale := _scale_of_answers(np.union1d(first, second)):
        lost, gained = int((change > 0).sum()), int((change < 0).sum())
        low, high = (scale * x for x in _bounds_of_counts(lost, gained, count))
        method = f"{lost} answers lost, {gained} gained; Newcombe's interval"
    elif np.ptp(change) == 0:
        low = high = float(change[0])
        method = "every example changes by the same amount"
    else:
        interval = stats.bootstrap(
            (change,),
            np.mean,
            confidence_level=2 * _CONFIDENCE - 1,
            rng=np.random.default_rng(0),  # the same receipt each time
            batch=max(1, _MAX_RESAMPLED // count),
        ).confidence_interval
        low, high = float(interval.low), float(interval.high)
        method = "bootstrap over the examples"
    return PairedDifference(float(change.mean()), low, high, count, method)


def examples_that_tell(difference: PairedDifference, limit: float) -> int | None:
    """Estimate how many examples would tell whether the mean is within the limit.

    Returns:
        None if the mean is too near the limit for any number of them.
    """
    gap = abs(limit - difference.mean)
    if gap == 0 or not math.isfinite(difference.noise):
        return None
    # The width of an interval falls with the root of the number of examples, and where
    # hardly any answer changes with the number itself: the root is the safe estimate.
    count = difference.num_examples * (difference.noise / gap) ** 2
    return math.ceil(count) if count < _MAX_EXAMPLES else None


def _scale_of_answers(values: Float[np.ndarray, " values"]) -> float | None:
    """Return by how much right answers differ from wrong ones; None for other values.

    Args:
        values: the different values, in order.
    """
    if len(values) > 2:
        return None
    if len(values) == 2:
        return float(values[1] - values[0])
    # All answers are right, or all wrong; of wrong ones alone no scale is known.
    return float(abs(values[0])) or 1.0


def _bounds_of_counts(lost: int, gained: int, count: int) -> tuple[float, float]:
    level = 2 * _CONFIDENCE - 1
    shares = []
    for number in (lost, gained):
        found = stats.binomtest(number, count).proportion_ci(level, method="wilson")
        shares.append((number / count, found.low, found.high))
    (p, p_low, p_high), (q, q_low, q_high) = shares
    mean = p - q
    return (
        mean - math.hypot(p - p_low, q_high - q),
        mean + math.hypot(p_high - p, q - q_low),
    )
