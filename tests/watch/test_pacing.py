"""The watcher keeps to its budget. Time is made by the tests."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from frugax import OverheadBudget, watch
from frugax.budget import Verdict

from .watching import Clock, Given, Metric, probe


@settings(max_examples=12, deadline=None)
@given(
    share=st.floats(0.001, 0.5),
    step=st.floats(1e-4, 0.1),
    fetch=st.floats(1e-6, 1e-3),
    n=st.integers(1, 400),
)
def test_the_bucket_never_overdraws_by_more_than_one_drain(
    tmp_path_factory, share, step, fetch, n
):
    path, clock = tmp_path_factory.mktemp("watch") / "a", Clock()
    with watch.Journal.create(path, {}) as journal:
        watcher = watch.Watcher(journal, OverheadBudget(share=share), clock=clock)
        outside = 0.0
        for i in range(n):
            watcher.record(i, {"loss": Metric(clock, i, fetch)})
            assert watcher.recorded == i + 1 == watcher.written + watcher.pending
            (spend,) = watcher.report().spends
            if spend.measured is not None:
                # A drain takes at most one block of 64 records; 1e-9: rounding.
                assert spend.measured * outside <= share * outside + 64 * fetch + 1e-9
            clock.now += step
            outside += step
        watcher.finish()
        assert watcher.written == n
        assert watcher.pending == watcher.forced == 0
    assert list(watch.read(path, strict=True)["loss"]) == list(range(n))


def test_a_long_run_keeps_its_budget_to_the_end(journal):
    clock = Clock()
    watcher = watch.Watcher(journal, OverheadBudget("1%"), clock=clock)
    for i in range(5000):
        watcher.record(i, {"loss": Metric(clock, i, 30e-6)})
        clock.now += 0.01
    watcher.finish()
    report = watcher.report()
    assert report.verdict is Verdict.KEPT
    # 5000 records of 30 us in 50 s: 0.3 %.
    assert report.spends[0].measured == pytest.approx(0.003, rel=1e-3)
    assert "`watch.prove` measures that" in report.spends[0].source


def test_what_the_budget_cannot_pay_is_reported_as_broken(journal):
    clock = Clock()
    watcher = watch.Watcher(journal, OverheadBudget("1%"), clock=clock)
    for i in range(100):
        watcher.record(i, {"loss": Metric(clock, i, 0.001)})
        clock.now += 0.01
    watcher.finish()
    assert watcher.written == 100
    assert watcher.report().spends[0].measured == pytest.approx(0.1)
    assert watcher.report().verdict is Verdict.BROKEN


def test_with_no_budget_nothing_is_read_until_the_end(journal):
    clock = Clock()
    watcher = watch.Watcher(journal, OverheadBudget(share=0.0), clock=clock)
    for i in range(100):
        watcher.record(i, {"loss": Metric(clock, i, 0.001)})
        clock.now += 1.0
    assert watcher.written == 0
    assert watcher.latest == {}
    watcher.finish()
    assert watcher.written == 100
    assert watcher.latest == {"loss": 99}
    assert watcher.latest_step == 99


def test_only_what_the_device_has_finished_is_read(journal):
    clock = Clock()
    watcher = watch.Watcher(journal, OverheadBudget("50%"), clock=clock)
    metrics = [Metric(clock, i, ready=i < 3) for i in range(6)]
    for i, metric in enumerate(metrics):
        watcher.record(i, {"loss": metric})
        clock.now += 1.0
    assert watcher.written == 3
    assert watcher.latest_step == 2
    metrics[3].ready = True
    watcher.record(6, {"loss": Metric(clock, 6)})
    assert watcher.latest == {"loss": 3}


def test_a_full_buffer_is_read_whatever_it_costs_and_said(journal):
    clock = Clock()
    watcher = watch.Watcher(
        journal, OverheadBudget(share=0.0), clock=clock, max_pending=10
    )
    for i in range(100):
        watcher.record(i, {"loss": Metric(clock, i, 0.001)})
        clock.now += 1.0
        assert watcher.pending <= 10
    (spend,) = watcher.report().spends
    assert watcher.forced == 15  # at the 11th record, then at every sixth
    assert "15 drains were forced" in spend.source
    assert watcher.report().verdict is Verdict.BROKEN


def test_a_plan_sets_the_pace_and_the_prediction(journal):
    clock = Clock()
    budget = OverheadBudget("1%")
    plan = watch.WatchPlan(
        budget=budget,
        steps=100,
        step_seconds=0.01,
        drain_seconds=0.002,
        probes=(),
        interval=20,
    )
    watcher = watch.Watcher(journal, budget, plan=plan, clock=clock)
    written = [0]
    for i in range(100):
        watcher.record(i, {"loss": Metric(clock, i)})
        written.append(watcher.written)
        clock.now += 0.01
    drained = np.diff(written)
    assert plan.interval <= drained[drained > 0].min()
    assert drained.sum() >= 80
    assert watcher.report().spends[0].predicted == plan.predicted


def test_before_any_time_has_passed_nothing_can_be_told(journal):
    watcher = watch.Watcher(journal, OverheadBudget("1%"), clock=Clock())
    assert watcher.report().verdict is Verdict.CANNOT_TELL
    watcher.record(0, {"loss": 1.0})
    assert watcher.report().verdict is Verdict.CANNOT_TELL


def test_frames_are_wanted_only_when_the_budget_has_earned_them(journal):
    clock = Clock()
    watcher = watch.Watcher(journal, OverheadBudget("1%"), clock=clock)
    assert not watcher.wants_frames()  # nothing is earned yet
    watcher.record(0, {"x": 1.0})
    clock.now += 10.0
    assert watcher.wants_frames()
    assert watcher.can_afford(0.09)
    assert not watcher.can_afford(0.11)
    watcher.ingest(0, {"g": probe("g", "frame")}, {"g": np.zeros(3)})
    assert not watcher.wants_frames()  # 30 a second at most
    clock.now += 0.04
    assert watcher.wants_frames()
    with watcher.overhead():
        clock.now += 1.0
        watcher.record(1, {"x": 1.0})  # counted once, although it is inside
    assert not watcher.wants_frames()
    assert not watcher.can_afford(0.0)
    watcher.level = "full"
    assert watcher.wants_frames()
    assert watcher.report().spends[0].measured == pytest.approx(1.0 / 10.04)


def test_the_stride_of_frames_follows_their_price(journal):
    clock = Clock()
    watcher = watch.Watcher(journal, OverheadBudget("10%"), clock=clock)
    probes, axes = {"g": probe("g", "frame")}, {"g": ("steps",)}

    def run(calls, seconds):
        for step in range(calls):
            clock.now += 1.0
            value = Metric(clock, 0.0, seconds)
            watcher.ingest(step, probes, Slow({"g": np.zeros((4, 2))}, axes, value))
            watcher.collect()

    run(4, 0.5)  # half a second for what earned a tenth
    assert watcher.stride == 16
    run(8, 0.001)
    assert watcher.stride == 1


class Slow(Given):
    """Records whose reading takes time on the clock."""

    def __init__(self, values, axes, metric):
        super().__init__(values, axes)
        self.metric = metric

    def fetch(self):
        np.asarray(self.metric)
        return dict(self)
