"""The watcher keeps to its budget and drops nothing. Time is made by the tests."""

import dataclasses
import resource

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from frugax import OverheadBudget, watch
from frugax.budget import Verdict
from frugax.errors import OutputError


@dataclasses.dataclass
class Clock:
    """Seconds that pass only when told to."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclasses.dataclass
class Metric:
    """A number on an imagined device: reading it takes time on the clock."""

    clock: Clock
    value: float
    seconds: float = 0.0
    ready: bool = True
    shape: tuple[int, ...] = ()
    dtype: np.dtype = dataclasses.field(default=np.dtype(float))

    def is_ready(self) -> bool:
        return self.ready

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        self.clock.now += self.seconds
        return np.asarray(self.value)


@pytest.fixture
def journal(tmp_path):
    with watch.Journal.create(tmp_path / "journal", {}) as made:
        yield made


@settings(max_examples=50, deadline=None)
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
    assert "A/B run would prove" in report.spends[0].source


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
        journal, OverheadBudget(share=0.0), clock=clock, most_pending=10
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
    plan = watch.plan(budget, step_seconds=0.01, drain_seconds=0.002, steps=100)
    watcher = watch.Watcher(journal, budget, plan=plan, clock=clock)
    written = [0]
    for i in range(100):
        watcher.record(i, {"loss": Metric(clock, i)})
        written.append(watcher.written)
        clock.now += 0.01
    drained = np.diff(written)
    assert plan.every == 20 <= drained[drained > 0].min()
    assert drained.sum() >= 80
    assert watcher.report().spends[0].predicted == plan.predicted


def test_before_any_time_has_passed_nothing_can_be_told(journal):
    watcher = watch.Watcher(journal, OverheadBudget("1%"), clock=Clock())
    assert watcher.report().verdict is Verdict.CANNOT_TELL
    watcher.record(0, {"loss": 1.0})
    assert watcher.report().verdict is Verdict.CANNOT_TELL


def test_a_full_disk_costs_no_record(tmp_path):
    path, clock = tmp_path / "a", Clock()
    journal = watch.Journal.create(path, {})
    watcher = watch.Watcher(journal, OverheadBudget("50%"), clock=clock)
    values = np.random.default_rng(0).random(500)  # noise does not pack
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    failures = 0
    try:
        for i, value in enumerate(values):
            clock.now += 1.0
            try:
                watcher.record(i, {"x": value})
            except OutputError:
                failures += 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert failures > 1
    watcher.finish()
    journal.close()
    np.testing.assert_array_equal(watch.read(path, strict=True)["x"], values)


def test_what_is_no_scalar_and_what_is_traced_is_refused_and_named(journal):
    watcher = watch.Watcher(journal, OverheadBudget("1%"))
    with pytest.raises(ValueError, match=r"'loss' must have shape \(\), got \(3,\)"):
        watcher.record(0, {"loss": jnp.zeros(3)})
    with pytest.raises(TypeError, match="'loss' is being traced"):
        jax.jit(lambda x: watcher.record(0, {"loss": x}))(1.0)
    assert watcher.recorded == 0


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"v": "s"}, "'v' must be a real number, got 's'"),
        ({"v": None}, "'v' must be a real number, got None"),
        ({"v": 3j}, "'v' must be a real number, got 3j"),
        ({"v": jnp.complex64(3j)}, "'v' must be a real number, got complex64"),
        ({"v": 2**64 - 1}, "'v' must fit in int64"),
        ({"v": 2**64}, "'v' must be a real number"),
        ({"": 1.0}, "a name must be text"),
        ({str(i): 1.0 for i in range(1000)}, "at most 1000 values, got 1001"),
    ],
)
def test_what_is_no_number_is_refused_by_name_before_anything_is_kept(
    journal, tmp_path, metrics, said
):
    watcher = watch.Watcher(journal, OverheadBudget(share=0.0))
    watcher.record(1, {"v": 1.0})
    with pytest.raises((TypeError, ValueError), match=said):
        watcher.record(2, {"first": 1.0, **metrics})
    assert (watcher.recorded, watcher.pending) == (1, 1)
    watcher.record(2, {"v": 2})
    watcher.finish()
    assert list(watch.read(tmp_path / "journal")["v"]) == [1.0, 2.0]


def test_steps_must_rise_from_record_to_record(journal):
    watcher = watch.Watcher(journal, OverheadBudget(share=0.0))
    for _ in range(2):  # the record before it waits, then it is in the journal
        watcher.record(watcher.recorded, {"x": 1.0})
        with pytest.raises(ValueError, match=f"above {watcher.recorded - 1}, got 0"):
            watcher.record(0, {"x": 1.0})
        watcher.finish()
    assert watcher.recorded == watcher.written == 2


def test_a_number_is_what_it_was_when_it_was_recorded(journal):
    watcher = watch.Watcher(journal, OverheadBudget(share=0.0))
    mutable = np.array(1.0)
    watcher.record(1, {"x": mutable})
    mutable[...] = 2.0
    watcher.finish()
    assert watcher.latest == {"x": 1.0}


def test_a_record_that_only_the_journal_can_refuse_does_not_block_the_others(journal):
    watcher = watch.Watcher(journal, OverheadBudget(share=0.0))
    with jax.enable_x64(True):
        large = jnp.uint64(2**63)  # on the device: not looked at when it is recorded
    for step, value in ((1, 1.0), (2, large), (3, 4.0)):
        watcher.record(step, {"x": value})
    with pytest.raises(ValueError, match="'x' must fit in int64"):
        watcher.finish()
    watcher.finish()
    assert watcher.recorded == watcher.written == 2
    assert watcher.latest == {"x": 4.0}


def test_recording_goes_on_after_finish_until_the_journal_is_closed(tmp_path):
    journal = watch.Journal.create(tmp_path / "a", {})
    watcher = watch.Watcher(journal, OverheadBudget(share=0.0))
    watcher.record(1, {"x": 1.0})
    watcher.finish()
    watcher.record(2, {"x": 2.0})
    watcher.finish()
    watcher.record(3, {"x": 3.0})
    journal.close()
    with pytest.raises(ValueError, match="closed"):
        watcher.record(4, {"x": 4.0})
    for _ in range(2):  # and what waits is not dropped without a word
        with pytest.raises(ValueError, match=r"closed, with 1 record\(s\) not written"):
            watcher.finish()
    assert (watcher.recorded, watcher.written, watcher.pending) == (3, 2, 1)
    assert list(watch.read(tmp_path / "a", strict=True).steps) == [1, 2]


def test_metrics_of_a_jitted_step_arrive_exactly(journal, tmp_path):
    traces = []

    @jax.jit
    def step(x):
        traces.append(1)
        x = jnp.cos(x)
        return x, {"x": x, "low": x.astype(jnp.bfloat16), "n": jnp.int32(3)}

    watcher = watch.Watcher(journal, OverheadBudget("1%"))
    x, expected = jnp.float32(1.0), []
    for i in range(200):
        x, metrics = step(x)
        expected.append(float(x))
        watcher.record(i, {**metrics, "lr": 0.1})
    watcher.finish()
    assert len(traces) == 1
    back = watch.read(tmp_path / "journal")
    assert list(back["x"]) == expected
    assert set(back["n"]) == {3}
    assert set(back["lr"]) == {0.1}
    np.testing.assert_array_equal(
        back["low"], np.asarray(jnp.array(expected, jnp.bfloat16), np.float32)
    )


def test_what_was_collected_and_flushed_is_there_for_a_checkpoint(tmp_path):
    path = tmp_path / "journal"
    with watch.Journal.create(path, {}) as journal:
        # A budget of nothing: by itself the watcher would not collect before the end.
        watcher = watch.Watcher(journal, OverheadBudget(share=0.0))
        for i in range(10):
            watcher.record(i, {"loss": jnp.float32(i)})
        assert (watcher.pending, watcher.written) == (10, 0)
        watcher.collect()
        assert (watcher.pending, watcher.written) == (0, 10)
        journal.flush()
        assert list(watch.read(path)["loss"]) == list(range(10))
