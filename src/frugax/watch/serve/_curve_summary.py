"""A curve of any length in bounded memory: the extremes and the mean of each bucket.

Buckets hold equally many points. When there are too many of them, neighbours are merged
and each holds twice as many: a pyramid of which only the finest affordable level is
kept, since every coarser one follows from it.
"""

from typing import Any

import numpy as np
from jaxtyping import Float, Int64, Shaped

from ._journal_index import to_json_number

# The most buckets, of which at least half are used: more than a chart has pixels.
MAX_BUCKETS = 1024
# Points that are folded into buckets at a time: blocks of a journal are shorter.
_FOLDED = 2048
BUCKET = np.dtype(
    [
        ("first", "<i8"),
        ("last", "<i8"),
        ("low", "<f8"),
        ("high", "<f8"),
        ("sum", "<f8"),
        ("count", "<i4"),  # finite points
        ("holes", "<i4"),  # points that are not finite
    ]
)


class CurveSummary:
    """The summary of one column.

    Attributes:
        size: points of a bucket.
        points: how many points it has been given, less those that a rewind took back.
        last: the newest finite value.
    """

    def __init__(self) -> None:
        self.size = 1
        self.points = 0
        self.last: float | None = None
        self._buckets = np.empty(0, BUCKET)
        self._steps: list[np.ndarray] = []
        self._values: list[np.ndarray] = []
        self._waiting = 0

    @classmethod
    def restore(cls, buckets: Shaped[np.ndarray, " n"], size: int) -> "CurveSummary":
        """Make a summary again from its buckets."""
        summary = cls()
        summary.size = size
        summary._take(buckets)
        return summary

    @property
    def buckets(self) -> Shaped[np.ndarray, " n"]:
        """All buckets; the last may hold fewer points."""
        self._fold()
        if not self._waiting:
            return self._buckets
        tail = _to_buckets(
            np.concatenate(self._steps)[None], np.concatenate(self._values)[None]
        )
        return np.concatenate([self._buckets, tail])

    @property
    def extremes(self) -> tuple[float, float]:
        """The lowest and the highest finite value; there must be one."""
        buckets = self.buckets
        return float(buckets["low"].min()), float(buckets["high"].max())

    def extend(
        self, steps: Int64[np.ndarray, " n"], values: Shaped[np.ndarray, " n"]
    ) -> None:
        """Append points."""
        if not len(steps):
            return
        self._steps.append(steps)
        self._values.append(values.astype(np.float64))
        self._waiting += len(steps)
        self.points += len(steps)
        finite = values[-64:][np.isfinite(values[-64:])]
        if len(finite):
            self.last = float(finite[-1])
        if self._waiting >= max(_FOLDED, self.size):
            self._fold()

    def rewind(self, step: int) -> None:
        """Forget the points after a step; a bucket that is cut keeps its extremes."""
        buckets = self.buckets
        buckets = buckets[buckets["first"] <= step].copy()
        buckets["last"] = np.minimum(buckets["last"], step)
        self._steps, self._values, self._waiting = [], [], 0
        self._take(buckets)

    def _take(self, buckets: Shaped[np.ndarray, " n"]) -> None:
        self._buckets = buckets
        self.points = int(buckets["count"].sum() + buckets["holes"].sum())
        finite = buckets[buckets["count"] > 0]
        self.last = None
        if len(finite):
            self.last = float(finite["sum"][-1] / finite["count"][-1])

    def _fold(self) -> None:
        """Move whole buckets of the points that wait to the others."""
        full = self._waiting // self.size
        if not full:
            return
        steps, values = np.concatenate(self._steps), np.concatenate(self._values)
        cut = full * self.size
        fresh = _to_buckets(
            steps[:cut].reshape(full, -1), values[:cut].reshape(full, -1)
        )
        self._buckets = np.concatenate([self._buckets, fresh])
        self._steps, self._values = [steps[cut:]], [values[cut:]]
        self._waiting -= cut
        while len(self._buckets) > MAX_BUCKETS:
            self._buckets = merge_pairs(self._buckets)
            self.size *= 2


def merge_pairs(buckets: Shaped[np.ndarray, " n"]) -> Shaped[np.ndarray, " m"]:
    """Merge each two neighbours; an odd last one stays alone."""
    even = len(buckets) // 2 * 2
    one, two = buckets[:even:2], buckets[1:even:2]
    merged = one.copy()
    merged["last"] = two["last"]
    # A bucket without a finite point has inf and -inf, which these leave out.
    merged["low"] = np.minimum(one["low"], two["low"])
    merged["high"] = np.maximum(one["high"], two["high"])
    with np.errstate(over="ignore"):
        for name in ("sum", "count", "holes"):
            merged[name] = one[name] + two[name]
    return np.concatenate([merged, buckets[even:]])


def to_points(
    buckets: Shaped[np.ndarray, " n"],
    seconds: tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]] | None,
    *,
    low: float,
    high: float,
    max_points: int,
) -> dict[str, Any]:
    """Return the buckets between two places of the axis, for JSON.

    Args:
        buckets: of a `CurveSummary`.
        seconds: steps and the times at which they were made, for an axis of time; None
            for an axis of steps.
        low: the lower end.
        high: the upper end.
        max_points: neighbours are merged until there are at most this many.
    """
    place = _place(buckets, seconds)
    # One more at each side, so that lines run out of the picture.
    first = max(int(np.searchsorted(place, low, side="left")) - 1, 0)
    buckets = buckets[first : int(np.searchsorted(place, high, side="right")) + 1]
    while len(buckets) > max_points:
        buckets = merge_pairs(buckets)
    place = _place(buckets, seconds)
    is_finite = buckets["count"] > 0
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(is_finite, buckets["sum"] / buckets["count"], np.nan)
    found: dict[str, Any] = {"x": _round(place), "y": _round(mean)}
    if (buckets["count"] > 1).any():
        found["low"] = _round(np.where(is_finite, buckets["low"], np.nan))
        found["high"] = _round(np.where(is_finite, buckets["high"], np.nan))
    holes = np.flatnonzero(buckets["holes"])
    if len(holes):
        found["holes"] = _round(place[holes])
        found["hole_steps"] = buckets["first"][holes].tolist()
    return found


def _place(
    buckets: Shaped[np.ndarray, " n"],
    seconds: tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]] | None,
) -> Float[np.ndarray, " n"]:
    """Return the place of each bucket on the axis, that of its last step."""
    place = buckets["last"].astype(np.float64)
    if seconds is None:
        return place
    steps, times = seconds
    if len(steps) > 1 and steps[-1] > steps[0]:
        # The clock is read once a second: go on at the mean speed to either side.
        pace = (times[-1] - times[0]) / (steps[-1] - steps[0])
        first = min(place.min(initial=steps[0]), steps[0]) - 1
        ends = np.array([first, max(place.max(initial=steps[-1]), steps[-1]) + 1])
        before = times[0] + (ends[0] - steps[0]) * pace
        after = times[-1] + (ends[1] - steps[-1]) * pace
        steps = np.concatenate([ends[:1], steps, ends[1:]])
        times = np.concatenate([[before], times, [after]])
    return np.interp(place, steps, times)


def _to_buckets(
    steps: Int64[np.ndarray, "rows size"], values: Float[np.ndarray, "rows size"]
) -> Shaped[np.ndarray, " rows"]:
    made = np.empty(len(steps), BUCKET)
    is_finite = np.isfinite(values)
    made["first"], made["last"] = steps[:, 0], steps[:, -1]
    made["low"] = values.min(1, where=is_finite, initial=np.inf)
    made["high"] = values.max(1, where=is_finite, initial=-np.inf)
    with np.errstate(over="ignore"):  # the mean of such values is not shown
        made["sum"] = values.sum(1, where=is_finite)
    made["count"] = is_finite.sum(1)
    made["holes"] = values.shape[1] - made["count"]
    return made


def _round(values: Float[np.ndarray, " n"]) -> list[float | None]:
    return list(map(to_json_number, values.tolist()))
