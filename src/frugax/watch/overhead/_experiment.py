"""The in-run A/B test: estimate overhead from watched and bare stretches of one loop.

The calls of a function are cut into units of equal length. Two neighbouring units form
a pair: one of them, drawn at random, runs bare, the other watched. Between two pairs
everything is watched. Neighbours in time share the drift of the machine, and the draw
makes both orders equally likely, so the logarithm of the ratio of a pair is symmetric
about the true slowdown whatever the noise looks like.
"""

import dataclasses
import math
import random
import statistics
import threading
from collections import deque
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

# Long enough that the queue of calls before the device, 32 at most, and the thread that
# takes the time are small beside it.
UNIT_S = 0.4
# Shorter units are not compared: the loop is still being compiled or sized.
_MIN_UNIT_S = 0.1
# Below this number of pairs no interval at 95% exists.
MIN_PAIRS = 6
# Units that are only watched, after each pair.
_WATCHED_BETWEEN = 2
# Once the verdict is clear, bare units become rare: they cost records.
_WATCHED_WHEN_CLEAR = 30
_MAX_GROWTH = 8
# A unit so short that the loop does nothing but call the function in most of them: it
# takes the time of a call by itself, which the mean of a loop that evaluates now and
# then does not.
_SHORT_S = 0.005
_SHORT_CALLS = 16
_SHORT_KEPT = 31
_MIN_SHORTS_IN_UNIT = 8
_MAX_WALSH = 1000


@dataclasses.dataclass(slots=True, eq=False)
class Unit:
    """A stretch of consecutive calls that are all watched or all bare.

    Attributes:
        first: the number of its first call.
        last: the number of its last call.
        watched: whether records are made and collected in it.
        pair: the number of its pair; None for a unit between two pairs.
        spoilt: whether something else happened in it, such as a compilation.
        short: whether it only takes the time of a call.
    """

    first: int
    last: int
    watched: bool
    pair: int | None
    spoilt: bool = False
    short: bool = False

    @property
    def calls(self) -> int:
        """The number of its calls."""
        return self.last - self.first + 1


@dataclasses.dataclass(frozen=True, slots=True)
class Estimate:
    """The share of time that watching adds, with its 95% confidence interval.

    Attributes:
        low: lower end; minus infinity with fewer than 6 pairs.
        middle: the Hodges-Lehmann estimate; NaN without pairs.
        high: upper end.
        pairs: how many pairs it is made of.
        calls_per_pair: calls of the loop for each pair.
    """

    low: float
    middle: float
    high: float
    pairs: int
    calls_per_pair: float = 0.0

    def more_calls(self, limit: float) -> float:
        """Return how many further calls would tell whether `limit` is kept."""
        if self.pairs < MIN_PAIRS:
            return (MIN_PAIRS - self.pairs) * self.calls_per_pair
        gap = abs(limit - self.middle)
        half = max(self.high - self.middle, self.middle - self.low)
        if half < gap:
            return 0.0
        if gap == 0:
            return math.inf
        # The width of an interval falls with the root of the number of pairs.
        return ((half / gap) ** 2 - 1) * self.pairs * self.calls_per_pair


class Experiment:
    """Draws the units of one function and keeps the ratio of each finished pair.

    `begin` belongs to the thread that calls the function, `add` to the one that takes
    the time.

    Attributes:
        seconds: the time of all units that have ended.
        call_s: the time of one call, roughly.
        is_clear: set once the verdict is clear, so that bare units become rare.
    """

    def __init__(self, *, seed: int | None = None, unit_s: float = UNIT_S) -> None:
        self._random = random.Random(seed)
        self._unit_s = unit_s
        self._size = self._short_size = 1
        self._shorts: deque[float] = deque(maxlen=_SHORT_KEPT)
        self._plan: list[tuple[bool, int | None, bool]] = []
        self._pair = 0
        self._began = 0.0
        self._calls_begun = 0
        self._lock = threading.Lock()
        self._open: dict[int, list[tuple[Unit, float]]] = {}
        self._ratios: list[float] = []  # logarithms
        self._recent = 0  # pairs before the last change of pace
        # The latest estimate by its first pair, with the number of pairs: it is asked
        # for once a second, its price grows with the square of that number, and 5% more
        # pairs change little.
        self._known: dict[int, tuple[int, Estimate]] = {}
        self._calls = 0
        self.seconds = 0.0
        self.call_s = 0.0
        self.is_clear = False

    def begin(self, first: int, *, now: float, multiple: int = 1) -> Unit:
        """Start the unit whose first call has the number `first`.

        Args:
            first: the number of the call.
            now: the time on the host, from which the length of units is chosen.
            multiple: the length must be a multiple of this, the stride of recording,
                so that all watched units record equally often.
        """
        if not self._plan:
            self._resize(now)
            self._plan = self._draw()
            self._began, self._calls_begun = now, 0
        watched, pair, short = self._plan.pop(0)
        calls = -(-self._size // multiple) * multiple
        if short:
            calls = self._short_size
        self._calls_begun += calls
        return Unit(first, first + calls - 1, watched, pair, short=short)

    @property
    def own_s(self) -> float | None:
        """The time of a call by itself, once units have taken a tenth of a second.

        Where the loop does other things between some calls, this is less than the mean.
        """
        if self.seconds <= 0.1:
            return None
        mean_s = self.seconds / self._calls
        with self._lock:
            shorts = list(self._shorts)
        return min(mean_s, statistics.median(shorts)) if len(shorts) > 2 else mean_s

    def _resize(self, now: float) -> None:
        if not self._calls_begun:
            return
        per_call = max(now - self._began, 1e-9) / self._calls_begun
        self.call_s = per_call
        wanted = max(1, round(self._unit_s / per_call))
        self._size = min(wanted, self._size * _MAX_GROWTH)
        self._short_size = max(round(_SHORT_S / per_call), _SHORT_CALLS)

    def _draw(self) -> list[tuple[bool, int | None, bool]]:
        """Return for each unit whether it is watched, its pair, whether it is short."""
        between = _WATCHED_WHEN_CLEAR if self.is_clear else _WATCHED_BETWEEN
        self._pair += 1
        first = self._random.random() < 0.5
        # Long calls need none: what is foreseen for short ones is nothing beside them.
        shorts = 1 if _MIN_SHORTS_IN_UNIT * self._short_size <= self._size else 0
        return [
            *[(True, None, True)] * shorts,
            *[(True, None, False)] * between,
            (first, self._pair, False),
            (not first, self._pair, False),
        ]

    def add(self, unit: Unit, seconds: float) -> bool:
        """Add the duration of a unit; returns whether it completed a pair."""
        with self._lock:
            self.seconds += seconds
            self._calls += unit.calls
            if unit.short and not unit.spoilt:
                self._shorts.append(seconds / unit.calls)
            if unit.pair is None:
                return False
            both = self._open.setdefault(unit.pair, [])
            both.append((unit, seconds))
            if len(both) < 2:
                return False
            del self._open[unit.pair]
            per_call = {u.watched: s / u.calls for u, s in both}
            usable = all(s >= _MIN_UNIT_S and not u.spoilt for u, s in both)
            if not usable or len(per_call) < 2 or not per_call[False] > 0:
                return False
            self._ratios.append(math.log(per_call[True] / per_call[False]))
            return True

    def restart_recent(self) -> None:
        """Forget earlier pairs in `recent`, because the pace has changed."""
        with self._lock:
            self._recent = len(self._ratios)

    @property
    def estimate(self) -> Estimate:
        """The estimate from all pairs of the run."""
        return self._estimate(0)

    @property
    def recent(self) -> Estimate:
        """The estimate from the pairs since the pace changed last."""
        return self._estimate(self._recent)

    def _estimate(self, since: int) -> Estimate:
        with self._lock:
            made = len(self._ratios)
            known = self._known.get(since)
            if known is not None and made - known[0] <= made // 20:
                return known[1]
            ratios = np.array(self._ratios[since:])
            each = self._calls / max(made, 1)
        low, middle, high = confidence_interval(ratios)
        found = Estimate(
            math.expm1(low), math.expm1(middle), math.expm1(high), len(ratios), each
        )
        self._known[since] = made, found
        return found


def combine(estimates: Sequence[Estimate], weights: Sequence[float]) -> Estimate:
    """Add the estimates of several functions that share the time of one run.

    Args:
        estimates: one for each function.
        weights: the share of the run in which each was called; several functions that
            are called in turns have a weight of 1 each.
    """
    pairs = min((e.pairs for e in estimates), default=0)
    middle = sum(w * e.middle for e, w in zip(estimates, weights, strict=True))
    # Independent experiments: the half-widths add in quadrature.
    spread = lambda half: math.sqrt(
        sum((w * half(e)) ** 2 for e, w in zip(estimates, weights, strict=True))
    )
    low = middle - spread(lambda e: e.middle - e.low)
    high = middle + spread(lambda e: e.high - e.middle)
    calls = max((e.calls_per_pair for e in estimates), default=0.0)
    return Estimate(low, middle, high, pairs, calls)


def confidence_interval(
    values: Float[np.ndarray, " n"],
) -> tuple[float, float, float]:
    """Return the Hodges-Lehmann estimate between the ends of its 95% interval.

    The interval inverts Wilcoxon's signed-rank test (Hollander, Wolfe & Chicken,
    Nonparametric Statistical Methods, 2013, section 3.3): it needs symmetry and no
    normal distribution, and a few units that were held up do not move it.
    """
    n = len(values)
    if not n:
        return -math.inf, math.nan, math.inf
    if n > _MAX_WALSH:
        # The averages of all pairs grow with n squared: a million are enough.
        values = values[np.linspace(0, n - 1, _MAX_WALSH).astype(int)]
        n = _MAX_WALSH
    first, second = np.triu_indices(n)
    walsh = np.sort((values[first] + values[second]) / 2)
    middle = float(np.median(walsh))
    if n < MIN_PAIRS:
        return -math.inf, middle, math.inf
    mean = n * (n + 1) / 4
    deviation = math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
    # At 6 pairs this is the largest and the smallest average, as in the exact tables.
    cut = max(0, math.floor(mean - 1.96 * deviation))
    return float(walsh[cut]), middle, float(walsh[len(walsh) - 1 - cut])
