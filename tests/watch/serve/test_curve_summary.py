"""A curve of any length is held in bounded memory, with its extremes and its holes."""

import json
from typing import Any

import numpy as np
import pytest

from frugax.budget import to_json
from frugax.watch.serve import MAX_BUCKETS, CurveSummary, to_points


def points_of(summary, **given):
    window: dict[str, Any] = {"low": -np.inf, "high": np.inf, "max_points": 400} | given
    return to_points(summary.buckets, window.pop("seconds", None), **window)


@pytest.mark.parametrize("piece", [1, 37, 5000])
def test_extremes_means_and_holes_are_exact_at_any_length(piece):
    n = 30_000 if piece > 1 else 1500
    values = np.random.default_rng(0).normal(size=n)
    values[n // 3] = 50.0
    values[n // 2] = np.nan
    steps = np.arange(n) * 3
    summary = CurveSummary()
    for start in range(0, n, piece):
        summary.extend(steps[start : start + piece], values[start : start + piece])
    buckets = summary.buckets
    assert len(buckets) <= MAX_BUCKETS + 1
    assert summary.points == n == buckets["count"].sum() + buckets["holes"].sum()
    assert buckets["high"].max() == 50.0
    assert buckets["low"].min() == np.nanmin(values)
    assert buckets["sum"].sum() == pytest.approx(np.nansum(values))
    assert (buckets["first"][1:] == buckets["last"][:-1] + 3).all()
    found = points_of(summary)
    assert len(found["x"]) <= 400
    assert max(found["high"]) == 50.0
    (hole,) = found["hole_steps"]
    assert hole <= 3 * (n // 2) < hole + 3 * n / 200


def test_a_rewind_removes_later_points():
    summary = CurveSummary()
    summary.extend(np.arange(100), np.arange(100.0))
    summary.rewind(39)
    assert summary.last == 39.0
    summary.extend(np.arange(40, 60), np.full(20, -1.0))
    found = points_of(summary)
    assert found["x"] == [*range(60)]
    assert found["y"][39:42] == [39.0, -1.0, -1.0]


def test_values_beyond_float32_keep_their_extremes():
    summary = CurveSummary()
    values = np.tile([-1e300, 1e39, 1.7e308, np.inf], 1000)
    summary.extend(np.arange(4000), values)
    assert summary.extremes == (-1e300, 1.7e308)
    found = points_of(summary)
    assert set(found["low"]) == {-1e300}
    assert json.loads(to_json(found), parse_constant=pytest.fail)["y"]


def test_late_steps_and_seconds_of_a_clock_keep_their_places():
    summary = CurveSummary()
    steps = np.arange(12_345_678, 12_345_682)
    summary.extend(steps, np.full(4, 1 / 3))
    assert points_of(summary)["x"] == steps.tolist()
    clock = np.array([0.0, 2e7]), 1.8e9 + np.array([0.0, 2.5])
    seconds = points_of(summary, seconds=clock)["x"]
    assert seconds == np.interp(steps, *clock).tolist()
