"""A downsampled series has fewer points and looks the same."""

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from frugax.report import downsample
from refusals import refuses

series = hnp.arrays(
    np.float32,
    st.integers(0, 700),
    elements=st.floats(width=32, allow_nan=True, allow_infinity=True),
)


@given(series, st.integers(4, 90))
def test_a_subsequence_with_peaks_and_ends_is_kept(values, most):
    steps = 3 * np.arange(len(values), dtype=np.int64)
    kept_steps, kept = downsample(steps, values, most)
    assert (np.diff(kept_steps) > 0).all()
    np.testing.assert_array_equal(kept, values[kept_steps // 3])
    finite = np.isfinite(values)
    if finite.any():
        assert kept[np.isfinite(kept)].max() == values[finite].max()
        assert kept[np.isfinite(kept)].min() == values[finite].min()
    if len(values):
        assert kept_steps[0] == 0
        assert kept_steps[-1] == steps[-1]
    # A gap stays one.
    assert np.isfinite(kept).all() == finite.all()
    assert len(kept) <= (most if finite.all() else 1.5 * most + 1)


def test_a_short_series_is_left_alone():
    steps, values = np.arange(10), np.arange(10.0)
    assert downsample(steps, values, 10)[1] is values


def test_a_single_peak_in_a_million_stays():
    values = np.zeros(1_000_000, np.float32)
    values[123_456] = 1
    steps, kept = downsample(np.arange(1_000_000), values, 4000)
    assert steps[kept == 1].tolist() == [123_456]
    assert len(kept) <= 4000


def test_too_few_points_are_refused():
    with refuses(ValueError, "max_points", 3):
        downsample(np.arange(10), np.arange(10.0), 3)
