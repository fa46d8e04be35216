"""The report's time of a step, and its curve of steps per second."""

import numpy as np
import pytest

from frugax import watch
from frugax.measure import StepTime
from frugax.run import StepTimeFacts
from frugax.run._page import _compute_throughput


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [(1.5, "kept"), (0.5, "cannot tell"), (3.0, "cannot tell"), (None, "cannot tell")],
)
def test_a_steps_time_is_kept_or_cannot_be_told(measured, verdict):
    assert StepTimeFacts(predicted=StepTime(1.0, 2.0), measured=measured).verdict == (
        verdict
    )
    unknown = StepTimeFacts(predicted=StepTime(problem="why"), measured=measured)
    assert unknown.verdict == "cannot tell"
    assert "why" in str(unknown)


@pytest.fixture
def records_at(tmp_path):
    """Records of steps that were written at some seconds."""

    def write(seconds):
        path = tmp_path / "journal"
        with watch.Journal.create(path, {}) as journal:
            for step, at in enumerate(seconds):
                journal.write(step, {"seconds": float(at)})
        return watch.read(path)

    return write


def test_a_short_run_has_no_curve_of_its_speed(records_at):
    # The device answers four times a second, so that many steps seem to take no time.
    assert _compute_throughput(records_at(np.repeat(np.arange(20) / 4, 50))) is None


def test_a_steady_run_has_a_flat_curve(records_at):
    found = _compute_throughput(records_at(np.repeat(np.arange(80) / 4, 5)))
    assert found is not None
    steps, rates = found
    assert len(steps) == 9
    np.testing.assert_allclose(rates, 20.0, rtol=0.15)


def test_a_resumed_run_counts_no_time_between(records_at):
    seconds = np.concatenate([np.arange(200) / 10, np.arange(200) / 10 + 5])
    found = _compute_throughput(records_at(seconds))
    assert found is not None
    np.testing.assert_allclose(found[1], 10.0, rtol=0.06)
