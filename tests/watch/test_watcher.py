"""The watcher keeps to its budget and drops nothing. Time is made by the tests."""

import dataclasses
import resource
import subprocess
import sys
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from frugax import OverheadBudget, watch
from frugax.budget import Verdict
from frugax.errors import OutputError
from frugax.watch.probes import Last, Partly, Probe


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


class Listener:
    """A sink that keeps all it gets."""

    def __init__(self):
        self.name = "listener"
        self.got = []
        self.closed = False

    def write(self, events):
        self.got += events

    def close(self):
        self.closed = True


def probe(name: str, kind: Any = "scalar", example: Any = 1.0, handler: Any = None):
    return Probe.of(name, kind, handler, example)


class Given(dict):
    """What a program gave: values by name, and what their first axes are."""

    def __init__(self, values, axes=None):
        super().__init__(values)
        self.axes = axes or {}


def taking(journal, level="full", **options):
    return watch.Watcher(journal, OverheadBudget("100%"), level=level, **options)


def test_what_a_program_gives_is_filed_by_its_class(tmp_path):
    probes = {
        "norm": probe("norm"),
        "parts": probe("parts", example={"a": 1.0, "b": 1.0}),
        "grid": probe("grid", "frame", np.zeros((2, 2))),
        "end": probe("end", "summary", {"reward": 1.0, "solved": True}),
        "lanes": probe("lanes"),
    }
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        with taking(journal) as watcher:
            for i in range(5):
                values = {
                    "norm": jnp.float32(i),
                    "parts": {"a": jnp.float32(1), "b": jnp.float32(2)},
                    "grid": jnp.full((2, 2), i, jnp.int8),
                    "end": {"reward": jnp.float32(i), "solved": jnp.bool_(i % 2)},
                    "lanes": jnp.arange(3.0) + i,
                }
                watcher.take(i, probes, Given(values))
        assert watcher.latest["norm"] == 4
        assert str(watcher.losses) == (
            "0 of 5 summaries lost; 0 of 10 scalars lost; 0 of 5 frames lost"
        )
    back = watch.read(tmp_path / "a", strict=True)
    assert back["norm"].tolist() == [0, 1, 2, 3, 4]
    assert set(back.names) == {"norm", "parts/a", "parts/b"}
    assert back.streams["grid"]["grid"][3].tolist() == [[3, 3], [3, 3]]
    assert back.streams["end"]["solved"].tolist() == [0, 1, 0, 1, 0]
    assert back.streams["lanes"]["lanes"][1].tolist() == [1, 2, 3]


def test_rounds_of_a_loop_become_steps_of_their_own(tmp_path):
    probes = {"h": probe("h"), "some": probe("some"), "ring": probe("ring", "frame")}
    present = np.array([True, False, False, True])
    axes = {"h": ("steps",), "some": ("steps", "lanes"), "ring": ("ring",)}
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        watcher = taking(journal)
        for i in range(3):
            h = np.arange(4.0) + 10 * i
            some = Partly(np.stack([h, h], 1), present)
            ring = Last(np.array([[4.0], [2.0], [3.0]]), np.uint32(4))
            given = {"h": h, "some": some, "ring": ring}
            watcher.take(i, probes, Given(given, axes))
        watcher.finish()
    back = watch.read(tmp_path / "a", strict=True).streams
    assert back["h"]["h"].tolist() == [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]
    assert back["h"].steps.tolist() == list(range(12))
    assert back["some"]["some"][:, 0].tolist() == [0, 3, 10, 13, 20, 23]
    assert back["ring"]["ring"][:3, 0].tolist() == [2, 3, 4]


def test_what_a_branch_or_loop_did_not_make_is_not_recorded(tmp_path):
    probes = {"a": probe("a"), "b": probe("b"), "c": probe("c")}
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        watcher = taking(journal)
        for i in range(4):
            a = Partly(np.float32(i), np.bool_(i % 2))
            b = Last(np.float32(i), np.uint32(i))
            watcher.take(i, probes, {"a": a, "b": b, "c": np.float32(i)})
        watcher.finish()
    back = watch.read(tmp_path / "a", strict=True)
    assert back["a"].tolist() == [1, 3]
    assert back.steps_with("a").tolist() == [1, 3]
    assert back["b/b"].tolist() == [1, 2, 3]
    assert back["b/count"].tolist() == [1, 2, 3]
    assert back["c"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("level", "scalars", "frames", "summaries"),
    [
        ("off", 0, 0, 0),
        ("minimal", 0, 0, 20),
        ("standard", 2, 20, 20),
        ("verbose", 4, 20, 20),
        ("full", 20, 20, 20),
    ],
)
def test_a_level_says_what_is_kept_and_what_it_left_out(
    tmp_path, level, scalars, frames, summaries
):
    probes = {"n": probe("n"), "g": probe("g", "frame"), "e": probe("e", "summary")}
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        watcher = taking(journal, level)
        due = [watcher.due(step) for step in range(20)]
        for i in range(20):
            x = jnp.float32(i)
            watcher.take(i, probes, {"n": x, "g": x, "e": x})
        watcher.finish()
        kept = {k: t.kept for k, t in watcher.losses.tallies.items()}
        assert kept == {"summary": summaries, "scalar": scalars, "frame": frames}
        left = {k: t.left_out for k, t in watcher.losses.tallies.items()}
        assert all(kept[kind] + left[kind] == 20 for kind in kept)
        assert sum(n > 0 for n in due) == scalars
    back = watch.read(tmp_path / "a", strict=True)
    assert len(back) == scalars


def test_idle_counts_the_calls_until_something_is_due(journal):
    for level in ("standard", "verbose", "full"):
        watcher = taking(journal, level)
        for step in range(30):
            idle = watcher.idle(step)
            assert all(watcher.due(step + 1 + k) == 0 for k in range(idle))
            assert watcher.due(step + 1 + idle) > 0


def test_frames_are_wanted_only_when_the_budget_has_earned_them(journal):
    clock = Clock()
    watcher = watch.Watcher(journal, OverheadBudget("1%"), clock=clock)
    assert not watcher.wants_frames()  # nothing is earned yet
    watcher.record(0, {"x": 1.0})
    clock.now += 10.0
    assert watcher.wants_frames()
    assert watcher.affords(0.09)
    assert not watcher.affords(0.11)
    watcher.take(0, {"g": probe("g", "frame")}, {"g": np.zeros(3)})
    assert not watcher.wants_frames()  # 30 a second at most
    clock.now += 0.04
    assert watcher.wants_frames()
    with watcher.spending():
        clock.now += 1.0
        watcher.record(1, {"x": 1.0})  # counted once, although it is inside
    assert not watcher.wants_frames()
    assert not watcher.affords(0.0)
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
            watcher.take(step, probes, Slow({"g": np.zeros((4, 2))}, axes, value))
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


def test_numbers_of_the_same_step_from_both_sides_are_one_record(tmp_path):
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        watcher = taking(journal)
        for i in range(10):
            watcher.take(i, {"norm": probe("norm")}, {"norm": jnp.float32(i)})
            watcher.record(i, {"loss": jnp.float32(-i)})
        watcher.finish()
        assert watcher.losses.tally("scalar").given == 20
        assert watcher.losses.tally("scalar").kept == 20
    back = watch.read(tmp_path / "a", strict=True)
    assert len(back) == 10
    assert back["norm"].tolist() == list(range(10))
    assert back["loss"].tolist() == [-i for i in range(10)]


def test_sinks_get_what_the_journal_gets_and_how_watching_goes(tmp_path):
    sink = Listener()
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        with taking(journal, sinks=[sink]) as watcher:
            for i in range(3):
                watcher.record(i, {"loss": jnp.float32(i)})
            probes, axes = {"h": probe("h")}, {"h": ("steps",)}
            watcher.take(0, probes, Given({"h": np.arange(10_000.0)}, axes))
        assert "and CPU time of its sinks" in watcher.report().spends[0].source
        assert "listener: working, 0 of" in watcher.report().spends[0].source
    assert sink.closed
    losses = [e for e in sink.got if e.stream == ""]
    assert [float(e.values["loss"]) for e in losses] == [0, 1, 2]
    rounds = [e.step for e in sink.got if e.stream == "h"]
    assert len(rounds) == 64  # of 10,000: the journal has them all
    assert rounds[-1] == 9999
    status = [e for e in sink.got if e.stream == "watch"]
    assert {"overhead", "budget", "dropped.frame"} <= set(status[-1].values)
    back = watch.read(tmp_path / "a", strict=True).streams
    assert len(back["h"]) == 10_000
    assert back["watch"]["kept_scalar"][-1] == 10_003


def test_when_it_is_not_asynchronous_each_record_waits_for_the_sinks(journal):
    sink = Listener()
    watcher = taking(journal, sinks=[sink], asynchronous=False)
    watcher.note("summary", "s", {"x": np.ones(())})
    assert len(sink.got) == 1
    watcher.close()


def test_functions_on_the_host_are_called_with_each_row(journal):
    got, done = [], threading.Event()

    def look(x):
        got.append(float(x))
        if len(got) == 5:
            done.set()

    watcher = taking(journal, "off")  # no question of how much is watched
    probes = {"look": probe("look", "call", handler=look)}
    given = Given({"look": np.arange(5.0)}, {"look": ("steps",)})
    watcher.take(0, probes, given)
    watcher.close()
    assert done.wait(10.0)
    assert got == [0, 1, 2, 3, 4]


def test_a_record_that_the_journal_cannot_hold_is_counted_and_named(tmp_path):
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        watcher = taking(journal)
        probes = {"g": probe("g", "frame")}
        for i, size in enumerate([2, 3, 2]):  # a stream's frames have one shape
            watcher.take(i, probes, {"g": np.zeros(size)})
        watcher.finish()
        tally = watcher.losses.tally("frame")
        assert (tally.kept, dict(tally.dropped)) == (2, {"refused": 1})
        assert "Refused last: ValueError" in watcher.report().spends[0].source
    assert len(watch.read(tmp_path / "a", strict=True).streams["g"]) == 2


def test_a_program_that_failed_is_its_callers_affair(journal):
    watcher = taking(journal)
    watcher.take(0, {"x": probe("x", "frame")}, Gone())
    watcher.take(1, {"x": probe("x", "frame")}, {"x": np.zeros(2)})
    watcher.finish()
    tally = watcher.losses.tally("frame")
    assert (tally.kept, tally.lost, tally.waiting) == (1, 1, 0)
    assert "the device is gone" in watcher.report().spends[0].source


class Gone(Given):
    """Records of a program that failed."""

    def __init__(self):
        super().__init__({"x": None})

    def is_ready(self):
        return True

    def fetch(self):
        raise RuntimeError("the device is gone")


def test_the_current_watcher_is_the_one_entered_last(journal):
    assert watch.current() is None
    with taking(None) as outer:
        with taking(None) as inner:
            assert watch.current() is inner
        assert watch.current() is outer
    assert watch.current() is None
    assert watch.default() is watch.default()


def test_a_process_that_ends_without_finish_keeps_its_records(tmp_path):
    code = (
        "import sys, numpy as np\n"
        "from frugax import OverheadBudget, watch\n"
        "class Sink:\n"
        "    name = 'sink'\n"
        "    def write(self, events): print(len(events), 'came', flush=True)\n"
        "    def close(self): print('closed', flush=True)\n"
        "journal = watch.Journal.create(sys.argv[1], {})\n"
        "watcher = watch.Watcher(journal, OverheadBudget(share=0.0), sinks=[Sink()])\n"
        "for i in range(100): watcher.record(i, {'x': float(i)})\n"
        "assert watcher.written == 0\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a")],
        check=True,
        capture_output=True,
        text=True,
    )
    assert len(watch.read(tmp_path / "a")) == 100
    assert "came" in ran.stdout
    assert "closed" in ran.stdout
    assert ran.stderr == ""


def test_an_interrupt_in_the_middle_of_a_drain_doubles_no_record(journal, monkeypatch):
    watcher = watch.Watcher(journal, OverheadBudget(share=0.0))
    for i in range(5):
        watcher.record(i, {"x": float(i)})
    write = journal.write

    def write_then_interrupt(step, values, stream=""):
        write(step, values, stream)
        if step == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(journal, "write", write_then_interrupt)
    with pytest.raises(KeyboardInterrupt):
        watcher.finish()
    monkeypatch.setattr(journal, "write", write)
    watcher.finish()
    assert watcher.written == 5
    assert journal.last_step == 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"frames_per_s": 0.0}, "frames_per_s must be > 0, got 0"),
        ({"most_pending": 0}, "most_pending must be >= 1, got 0"),
    ],
)
def test_options_out_of_range_are_refused(journal, options, said):
    with pytest.raises(ValueError, match=said):
        taking(journal, **options)


def test_what_only_calls_back_loses_no_summary_though_nobody_collects(tmp_path):
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        watcher = taking(journal, "minimal", most_queue_bytes=200_000)
        threads = [
            threading.Thread(
                target=lambda: [
                    watcher.note("summary", "s", {"x": np.ones(3)}) for _ in range(500)
                ]
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        watcher.finish()
        tally = watcher.losses.tally("summary")
        assert (tally.given, tally.kept, tally.lost) == (2000, 2000, 0)
    assert len(watch.read(tmp_path / "a", strict=True).streams["s"]) == 2000


def test_a_shorter_loop_goes_on_behind_the_longer_one(tmp_path):
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        watcher = taking(journal)
        for i, length in enumerate([4, 2, 3]):
            given = Given({"h": np.arange(float(length))}, {"h": ("steps",)})
            watcher.take(i, {"h": probe("h")}, given)
        watcher.finish()
    back = watch.read(tmp_path / "a", strict=True).streams["h"]
    assert back["h"].tolist() == [0, 1, 2, 3, 0, 1, 0, 1, 2]
    assert back.steps.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8]
