"""Records of programs are filed by class and level, and passed to sinks."""

import json
import subprocess
import sys
import textwrap
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fault_injection import at_once, full_disk
from forked import python
from frugax import OverheadBudget, watch
from frugax.errors import OutputError
from frugax.watch._event import event_numbers
from frugax.watch.probes import MaskedValues, PackedRecords
from refusals import refuses

from .watching import Clock, Given, Listener, finished, probe, taking


def test_records_of_a_program_are_filed_by_class(journal):
    probes = {
        "norm": probe("norm"),
        "parts": probe("parts", example={"a": 1.0, "b": 1.0}),
        "grid": probe("grid", "frame", np.zeros((2, 2))),
        "end": probe("end", "summary", {"reward": 1.0, "solved": True}),
        "lanes": probe("lanes"),
    }
    with taking(journal) as watcher:
        for i in range(5):
            values = {
                "norm": jnp.float32(i),
                "parts": {"a": jnp.float32(1), "b": jnp.float32(2)},
                "grid": jnp.full((2, 2), i, jnp.int8),
                "end": {"reward": jnp.float32(i), "solved": jnp.bool_(i % 2)},
                "lanes": jnp.arange(3.0) + i,
            }
            watcher.ingest(i, Given(probes, values))
    back = finished(watcher, journal)
    assert watcher.latest["norm"] == 4
    assert str(watcher.losses) == (
        "0 of 5 summaries lost; 0 of 10 scalars lost; 0 of 5 frames lost"
    )
    assert back["norm"].tolist() == [0, 1, 2, 3, 4]
    assert set(back.names) == {"norm", "parts/a", "parts/b"}
    assert back.streams["grid"]["grid"][3].tolist() == [[3, 3], [3, 3]]
    assert back.streams["end"]["solved"].tolist() == [0, 1, 0, 1, 0]
    assert back.streams["lanes"]["lanes"][1].tolist() == [1, 2, 3]


def test_rounds_of_a_loop_become_steps_of_their_own(journal):
    probes = {"h": probe("h"), "some": probe("some")}
    present = np.array([True, False, False, True])
    axes = {"h": ("steps",), "some": ("steps", "lanes")}
    watcher = taking(journal)
    for i in range(3):
        h = np.arange(4.0) + 10 * i
        some = MaskedValues(np.stack([h, h], 1), present)
        watcher.ingest(i, Given(probes, {"h": h, "some": some}, axes))
    for i, length in ((3, 2), (4, 3)):  # steps of a shorter loop go on after it
        h = {"h": np.arange(float(length))}
        watcher.ingest(i, Given(probes, h, axes))
    back = finished(watcher, journal).streams
    rounds = [*range(4), *range(10, 14), *range(20, 24), 0, 1, 0, 1, 2]
    assert back["h"]["h"].tolist() == rounds
    assert back["h"].steps.tolist() == list(range(17))
    assert back["some"]["some"][:, 0].tolist() == [0, 3, 10, 13, 20, 23]


@pytest.mark.parametrize(
    ("level", "scalars", "frames", "summaries"),
    [
        ("off", 0, 0, 0),
        ("minimal", 0, 0, 20),
        ("standard", 20, 20, 20),
        ("verbose", 20, 20, 20),
        ("full", 20, 20, 20),
    ],
)
def test_a_level_reports_kept_and_left_out_records(
    journal, level, scalars, frames, summaries
):
    probes = {"n": probe("n"), "g": probe("g", "frame"), "e": probe("e", "summary")}
    watcher = taking(journal, level)
    due = [watcher.rate.due(step) for step in range(20)]
    for i in range(20):
        x = jnp.float32(i)
        watcher.ingest(i, Given(probes, {"n": x, "g": x, "e": x}))
    back = finished(watcher, journal)
    kept = {k: t.kept for k, t in watcher.losses.tallies.items()}
    assert kept == {"summary": summaries, "scalar": scalars, "frame": frames}
    left = {k: t.left_out for k, t in watcher.losses.tallies.items()}
    assert all(kept[kind] + left[kind] == 20 for kind in kept)
    assert sum(n > 0 for n in due) == scalars
    assert len(back) == scalars


@pytest.mark.parametrize("level", ["standard", "full"])
@pytest.mark.parametrize("pause", ["none", "written", "flushed"])
def test_training_and_validation_numbers_of_a_step_are_one_record(
    journal, level, pause
):
    watcher = taking(journal, level)
    journal.write(7, {"episode": 1.0}, "other")
    for i in range(12):
        watcher.record(i, {"loss": jnp.float32(-i), "lr": 0.1})
        if not i % 4:
            if pause != "none":
                watcher.collect()
            if pause == "flushed":
                journal.flush()
            watcher.record(i, {"val/loss": i})
            watcher.record(i, {"val/acc": 0.5})
            with refuses(ValueError, "val/loss", i):
                watcher.record(i, {"val/loss": i})
    back = finished(watcher, journal)
    tally = watcher.losses.tally("scalar")
    assert (tally.given, tally.kept, tally.waiting) == (18, 18, 0)
    assert back.steps.tolist() == [*range(12)]
    assert back["loss"].tolist() == [-i for i in range(12)]
    assert back.steps_with("val/loss").tolist() == [0, 4, 8]
    assert back["val/loss"].tolist() == [0, 4, 8]
    assert back["val/acc"].tolist() == [0.5] * 3
    assert back.streams["other"].steps.tolist() == [7]
    assert back.lost == ()
    assert watcher.latest == pytest.approx(
        {"loss": -11, "lr": 0.1, "val/loss": 8, "val/acc": 0.5}
    )


def test_thinned_steps_keep_every_validation_and_the_training_of_its_step(journal):
    clock = Clock()
    watcher = watch.Watcher(journal, OverheadBudget("1%"), clock=clock)
    for i in range(4000):
        clock.now += 1e-3
        watcher.record(i, {"loss": float(i)})
        if not i % 99:
            watcher.record(i, {"val": float(i)})
        if i == 1000:
            watcher.recorder.tick()
    back = finished(watcher, journal)
    checks = {*range(0, 4000, 99)}
    assert set(back.steps_with("val").tolist()) == checks
    late = [i for i in checks if i > 1000]
    assert set(late) <= set(back.steps_with("loss").tolist())
    assert len(back) < 700
    assert back.steps_with("loss")[-1] == 3999


def test_ready_numbers_do_not_overtake_those_of_a_slow_program(journal, monkeypatch):
    clock = Clock()
    with taking(journal, clock=clock) as watcher:
        watcher.recorder.has_started = True  # no thread: collected below
        step = watch.jit(lambda x: watch.record("n", x) or x + 1)
        monkeypatch.setattr(PackedRecords, "is_ready", lambda records: False)
        x = jnp.zeros(())
        for i in range(5):
            x = step(x)
            watcher.record(i, {"host": i})
        clock.now += 1.0
        watcher.recorder.tick()
        monkeypatch.undo()
    back = finished(watcher, journal)
    assert back.steps.tolist() == back["n"].tolist() == back["host"].tolist()


def test_short_calls_leave_out_numbers_and_no_summary(journal):
    def fn(x):
        watch.summarise("end", x)
        watch.record("n", x)
        return x + 1

    with taking(journal, "standard") as watcher:
        step, x = watch.jit(fn), jnp.zeros(())
        for _ in range(20):
            x = step(x)
            watcher.recorder.schedules[0].found = 8
    back = finished(watcher, journal).streams["end"]
    assert back["end"].tolist() == [*range(20)]


def test_the_state_of_watching_agrees_with_the_receipt(journal):
    with taking(journal, "standard") as watcher:
        for i in range(200):
            watcher.record(i, {"loss": float(i)})
    status = finished(watcher, journal).streams["watch"]
    spend = watcher.report().spends[0]
    # Counted, as too few stretches were compared; a comparison could be negative.
    assert spend.measured is not None
    assert 0 < status["overhead_low"][-1] < status["overhead"][-1]
    assert status["overhead"][-1] < status["overhead_high"][-1]


def test_sinks_get_the_records_of_the_journal_and_the_status(tmp_path):
    sink = Listener()
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        with taking(journal, sinks=[sink]) as watcher:
            for i in range(3):
                watcher.record(i, {"loss": jnp.float32(i)})
            probes, axes = {"h": probe("h")}, {"h": ("steps",)}
            watcher.ingest(0, Given(probes, {"h": np.arange(10_000.0)}, axes))
        assert "listener: working, 0 of" in watcher.report().spends[0].source
    assert sink.closed
    losses = [e for e in sink.got if e.stream == ""]
    assert [float(e.values["loss"]) for e in losses] == [0, 1, 2]
    rounds = [e.step for e in sink.got if e.stream == "h"]
    assert len(rounds) == 64  # of 10,000: the journal has them all
    assert rounds[-1] == 9999
    back = watch.read(tmp_path / "a", strict=True).streams
    assert len(back["h"]) == 10_000
    status = [e for e in sink.got if e.stream == "watch"]
    assert {"overhead", "dropped_frame"} <= {*status[-1].values} <= {*back["watch"]}
    assert back["watch"]["kept_scalar"][-1] == 10_003


def test_arrays_of_a_new_shape_get_a_stream_of_their_own(journal):
    watcher = taking(journal)
    probes = {"g": probe("g", "frame")}
    for i, size in enumerate([2, 3, 2]):  # a stream's frames have one shape
        watcher.ingest(i, Given(probes, {"g": np.full(size, i)}))
    back = finished(watcher, journal).streams
    assert watcher.losses.tally("frame").lost == 0
    assert back["g"]["g"][:, 0].tolist() == [0, 2]
    (other,) = back.keys() - {"g", "watch"}
    assert back[other]["g"].tolist() == [[1, 1, 1]]


def test_a_value_that_cannot_be_stored_loses_only_itself_and_is_reported(
    tmp_path, capfd
):
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        watcher = taking(journal)
        probes = {"good": probe("good"), "large": probe("large")}
        for i in range(5):
            large = np.uint64(2**63)  # beyond int64
            values = {"good": np.float32(i), "large": large}
            watcher.ingest(i, Given(probes, values))
        watcher.finish()
        (spend,) = watcher.report().spends
    assert "'large' must fit in int64" in spend.source
    assert capfd.readouterr().err.count("a record is lost") == 1
    assert watch.read(tmp_path / "a")["good"].tolist() == [0, 1, 2, 3, 4]


def test_a_program_that_failed_is_its_callers_affair(journal):
    watcher = taking(journal)
    watcher.ingest(0, Gone())
    watcher.ingest(1, Given({"x": probe("x", "frame")}, {"x": np.zeros(2)}))
    watcher.finish()
    tally = watcher.losses.tally("frame")
    assert (tally.kept, tally.lost, tally.waiting) == (1, 1, 0)
    assert "the device is gone" in watcher.report().spends[0].source


class Gone(Given):
    """Records of a program that failed."""

    def __init__(self):
        super().__init__({"x": probe("x", "frame")}, {})

    def fetch(self):
        raise RuntimeError("the device is gone")


def test_a_program_of_callbacks_loses_no_summary_without_collections(journal):
    watcher = taking(journal, "minimal")
    x = {"x": np.ones(3)}
    at_once(lambda: [watcher.ingest_callback("summary", "s", x) for _ in range(500)])
    back = finished(watcher, journal)
    tally = watcher.losses.tally("summary")
    assert (tally.given, tally.kept, tally.lost) == (2000, 2000, 0)
    assert len(back.streams["s"]) == 2000


def test_a_callback_that_finds_no_room_loses_its_record_and_counts_it(journal):
    watcher = taking(journal, max_pending=2)
    holds, release = threading.Event(), threading.Event()

    def hold():
        with watcher.recorder._owner:  # as if it were collecting
            holds.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait()
    for i in range(5):
        watcher.ingest_callback("frame", "s", {"x": np.full(3, i)})
    release.set()
    thread.join()
    rows = finished(watcher, journal).streams["s"]["x"]
    tally = watcher.losses.tally("frame")
    assert (tally.given, tally.kept) == (5, 3)
    assert dict(tally.dropped) == {"queue full": 2}
    assert watcher.pending == 0
    assert rows[:, 0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("calls", [20, pytest.param(1000, marks=pytest.mark.thorough)])
def test_no_summary_is_lost_and_each_is_the_right_one(journal, calls):
    watcher = watch.Watcher(journal, OverheadBudget("1%"), level="minimal")
    for i in range(calls):
        ends = {"end": jnp.arange(i * 1000, (i + 1) * 1000)}
        one = {"end": probe("end", "summary", 1)}
        watcher.ingest(i, Given(one, ends, {"end": ("steps",)}))
    back = finished(watcher, journal).streams["end"]
    tally = watcher.losses.tally("summary")
    assert tally.given == tally.kept == calls * 1000
    assert back["end"].tolist() == back.steps.tolist() == [*range(calls * 1000)]


def test_late_records_are_kept_without_blocking_the_caller(journal):
    watcher = taking(journal)
    for i in (0, 2, 1, 3):
        watcher.ingest(i, Given({"t": probe("t")}, {"t": jnp.float32(i)}))
    watcher.collect()
    watcher.record(3, {"own": 1.0})  # the program is ahead: at 4
    watcher.record(4, {"own": 2.0})
    back = finished(watcher, journal)
    assert watcher.losses.tally("scalar").kept == 6
    assert back["t"].tolist() == [0, 2, 1, 3]
    assert back["own"].tolist() == [1.0, 2.0]


def test_waiting_records_keep_the_level_at_which_they_were_made(journal):
    watcher = watch.Watcher(journal, OverheadBudget(share=0.0), level="full")
    for i in range(20):
        if i == 10:
            watcher.level = "minimal"
        watcher.ingest(i, Given({"t": probe("t")}, {"t": jnp.float32(i)}))
    back = finished(watcher, journal)
    assert back["t"].tolist() == [*range(10)]


def recorded(tmp_path, fn, *args, calls=3):
    """Call a watched function and return the records of the journal."""
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        with taking(journal) as watcher:
            watched = watch.jit(fn)
            for _ in range(calls):
                watched(*args)
        for tally in watcher.losses.tallies.values():
            assert tally.lost == tally.waiting == 0
    return watch.read(tmp_path / "a", strict=True)


def count_down(n):
    def body(state):
        i, x = state
        watch.record("a", x)
        return i - 1, 2 * x

    start = n, jnp.float32(1)
    return jax.lax.while_loop(lambda state: state[0] > 0, body, start)[1]


def test_a_number_called_count_is_not_taken_for_that_of_the_loop(tmp_path):
    def fn(n):
        def body(i):
            watch.record("s", {"count": 10 * i, "x": i})
            watch.record("count", 20 * i)
            return i + 1

        return jax.lax.while_loop(lambda i: i < n, body, 0)

    back = recorded(tmp_path, fn, jnp.int32(3), calls=1)
    found = {name: back[name].tolist() for name in back.names}
    assert found == {"s/count": [20], "s/x": [2], "s/count.1": [3]} | {
        "count": [40],
        "count/count.1": [3],
    }


def test_lanes_whose_loop_never_ran_have_no_value(tmp_path):
    back = recorded(tmp_path, jax.vmap(count_down), jnp.array([0, 3, 5])).streams["a"]
    np.testing.assert_array_equal(back["a"][0], [np.nan, 4.0, 16.0])
    assert back["count"][0].tolist() == [0, 3, 5]


@pytest.mark.parametrize("compiled_by", [watch.jit, jax.jit])
def test_lanes_without_a_record_count_neither_for_means_nor_for_alerts(
    tmp_path, compiled_by
):
    def episode(length):
        watch.record("return", 10 / length.astype(float), when=length > 0)
        return count_down(length) if compiled_by is watch.jit else length

    sink, alerts = Listener(), watch.Alerts({"return": (None, 4.0)})
    with (
        watch.Journal.create(tmp_path / "a", {}) as journal,
        taking(journal, sinks=[sink], alerts=alerts),
    ):
        compiled_by(jax.vmap(episode))(jnp.array([0, 4, 5]))
        jax.effects_barrier()
    numbers = {k: v for e in sink.got for k, v in event_numbers(e).items()}
    assert [numbers[f"return/{end}"] for end in ("mean", "min", "max")] == [
        2.25,
        2.0,
        2.5,
    ]
    assert alerts.messages == []
    back = watch.read(tmp_path / "a").streams["return"]
    assert back["present"].tolist() == [[False, True, True]]
    assert back["return"][0, 1:].tolist() == [2.5, 2.0]


def test_a_scan_inside_a_while_loop_leaves_the_rounds_of_its_last_run(tmp_path):
    def fn(n):
        def add(x, _):
            watch.record("s", x)
            return x + 1, None

        def body(state):
            i, x = state
            return i - 1, jax.lax.scan(add, x, None, length=3)[0]

        return jax.lax.while_loop(lambda s: s[0] > 0, body, (n, jnp.float32(1)))[1]

    back = recorded(tmp_path, fn, jnp.int32(2), calls=2).streams["s"]
    assert back["s"].tolist() == [4.0, 5.0, 6.0] * 2


@pytest.mark.parametrize("axis", range(2))
def test_arrays_on_explicit_axes_are_reduced(tmp_path, axis):
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    spec = jax.sharding.PartitionSpec(*[None] * axis, "d")
    x = jnp.arange(8.0).reshape(2, 4)
    x = jax.device_put(x, jax.sharding.NamedSharding(mesh, spec))

    def fn(x):
        watch.histogram("h", {"x": x, "y": jnp.ones(4)}, bins=2)
        watch.norms("n", {"x": x})
        return x

    back = recorded(tmp_path, fn, x, calls=1)
    assert back.streams["h"]["counts"].tolist() == [[8, 4]]
    assert back["n/all"][0] == pytest.approx(np.sqrt(140))


def test_a_scan_on_several_devices_is_a_curve_for_each(tmp_path):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("d",))

    def shard(x):
        def step(h, _):
            watch.record("h", h[0])
            return h + 1, None

        return jax.lax.scan(step, x, None, length=3)[0]

    spec = jax.sharding.PartitionSpec("d")
    fn = jax.shard_map(shard, mesh=mesh, in_specs=spec, out_specs=spec)
    back = recorded(tmp_path, fn, jnp.array([0.0, 10.0]), calls=2).streams["h"]
    assert back["h/0"].tolist() == [0.0, 1.0, 2.0] * 2
    assert back["h/1"].tolist() == [10.0, 11.0, 12.0] * 2


@pytest.mark.parametrize(
    ("fn", "named"),
    [
        (lambda x: watch.record("n" * 101, x), 1),
        (lambda x: watch.record("a", {"b" * 99: x, "c": x}), 1),
        (
            lambda x: [watch.record(f"m{i}", x) for i in range(1001)],
            "m1000",
        ),
        (lambda x: watch.histogram("h", x, bins=0), "bins"),
        (lambda x: watch.image("i", x), "'i'"),
        (lambda x: watch.norms("g", {"a": 3}), "'g'"),
        (lambda x: watch.record("m", {"a/b": x, "a": {"b": x}}), "'a/b'"),
        (lambda x: watch.frame("system", x), "'system'"),
        (lambda x: watch.image("i", jnp.ones((2, 2, 1))), "(2, 2, 1)"),
    ],
)
def test_a_bad_record_is_refused_where_it_is_written(fn, named):
    watched = watch.jit(lambda x: fn(x) and x)
    with refuses(ValueError, named) as caught:
        watched(jnp.float32(1))
    assert any(
        entry.path == __file__ or "test_taking" in str(entry.path)
        for entry in caught.traceback
    )


def test_distributions_norms_and_images_are_reduced_in_the_program(tmp_path):
    x = jnp.array([0.0, 1.0, 1.0, 4.0, jnp.nan, jnp.inf])

    def fn(x):
        watch.histogram("h", {"a": x[:3], "b": x[3:]}, bins=4)
        watch.histogram("whole range", jnp.array([-3e38, 0.0, 1.0, 3e38]), bins=2)
        watch.norms("g", {"w": jnp.array([3.0, 4.0]), "b": jnp.float16(12.0)})
        watch.image("grey", jnp.array([[0.0, 0.5], [1.0, 2.0]]))
        watch.image("mask", x[:4].reshape(2, 2) > 0.5)
        return x

    back = recorded(tmp_path, fn, x, calls=1)
    h = back.streams["h"]
    assert h["counts"][0].tolist() == [1, 2, 0, 1]
    assert (h["low"][0], h["high"][0], h["not_finite"][0]) == (0.0, 4.0, 2)
    whole = back.streams["whole range"]
    assert (whole["counts"][0].tolist(), whole["not_finite"][0]) == ([1, 3], 0)
    assert [back[f"g/{n}"][0] for n in ("all", "w", "b")] == [13.0, 5.0, 12.0]
    assert back.streams["grey"]["grey"][0].tolist() == [[0, 128], [255, 255]]
    assert back.streams["mask"]["mask"][0].tolist() == [[0, 255], [255, 255]]


def test_leaves_of_one_name_have_norms_of_their_own(tmp_path):
    deep = "x" * 110
    tree = {
        "all": jnp.array([2.0]),
        "a/b": jnp.array([3.0]),
        "a": {"b": jnp.array([4.0])},
        "one": {deep: jnp.array([6.0])},
        "two": {deep: jnp.array([8.0])},
    }
    back = recorded(tmp_path, lambda x: watch.norms("g", x) or x, tree, calls=1)
    found = sorted(float(back[name][0]) for name in back.names)
    assert found == pytest.approx([2.0, 3.0, 4.0, 6.0, 8.0, np.sqrt(129)])
    assert back["g/all"][0] == pytest.approx(np.sqrt(129))


def test_numbers_of_every_type_are_kept(tmp_path):
    names = ["int2", "int4", "uint4", "float8_e4m3fn"]
    names += ["bool", "int8", "uint16", "int32", "float16", "bfloat16", "float32"]

    def fn(arrays):
        for name, x in arrays.items():
            watch.record(name, x[0])
            watch.frame(f"all {name}", x)
        return arrays

    arrays = {name: jnp.array([1, 0], name) for name in names}
    back = recorded(tmp_path, fn, arrays, calls=1)
    for name in names:
        assert back[name].tolist() == [1]
        assert back.streams[f"all {name}"][f"all {name}"][0].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("scale", "dtype"),
    [
        *((1e25, jnp.float32), (1e-25, jnp.bfloat16)),
        *((2.0**120, jnp.bfloat16), (1.0, jnp.float32)),
    ],
)
def test_norms_of_any_finite_size_are_finite_and_exact(tmp_path, scale, dtype):
    largest = float(jnp.finfo(jnp.float32).max)
    tree = {
        "a": jnp.array([[3.0], [4.0]]).astype(dtype) * scale,
        "b": jnp.zeros(3, dtype),
        "empty": jnp.zeros((0, 2), dtype),
        "whole": jnp.array([-128, 0], jnp.int8),
    }

    def fn(tree):
        watch.norms("g", tree)
        large = jnp.full(9, largest)
        watch.norms("most", {"large": large, "inf": large.at[0].set(jnp.inf)})
        watch.norms("one", large.at[0].set(jnp.nan))
        return tree

    back = recorded(tmp_path, fn, tree, calls=1)
    wide = np.asarray(tree["a"], np.float64)
    assert back["g/a"][0] == pytest.approx(np.linalg.norm(wide), rel=1e-6)
    assert (back["g/b"][0], back["g/empty"][0], back["g/whole"][0]) == (0.0, 0.0, 128.0)
    assert back["g/all"][0] == pytest.approx(
        np.hypot(np.linalg.norm(wide), 128.0), rel=1e-6
    )
    assert back["most/large"][0] == np.float32(largest)
    assert back["most/inf"][0] == back["most/all"][0] == np.inf
    assert np.isnan(back["one/all"][0])


@pytest.mark.parametrize(
    ("pixels", "shown", "clipped"),
    [
        ([[0.0, 127.4], [128.0, 255.0]], [[0, 127], [128, 255]], 0.0),
        ([[0.0, 0.5], [1.0, 1.25]], [[0, 128], [255, 255]], 0.25),
        ([[-2.0, 0.5], [1.0, 2.6]], [[0, 128], [255, 255]], 0.5),
        ([[0.0, jnp.nan], [0.2, 1.0]], [[0, 0], [51, 255]], 0.25),
        ([[-1, 0], [255, 300]], [[0, 0], [255, 255]], 0.5),
        ([[False, True], [True, False]], [[0, 255], [255, 0]], 0.0),
    ],
)
def test_images_of_either_range_are_shown_and_clipping_is_counted(
    tmp_path, pixels, shown, clipped
):
    def fn(x):
        watch.image("picture", x)
        return x

    back = recorded(tmp_path, fn, jnp.array(pixels), calls=1).streams["picture"]
    assert back["picture"][0].tolist() == shown
    assert back["clipped"][0] == clipped


def test_a_run_is_two_lines_and_leaves_a_folder(tmp_path, capfd):
    folder = tmp_path / "runs" / "first"
    with watch.run(
        folder, config={"lr": 0.1}, tags=["try"], level="full", bounds={"x": (None, 2)}
    ) as run:
        step = run.jit(lambda x: watch.record("x", x) or x + 1)
        x = jnp.zeros(())
        for i in range(5):
            x = step(x)
            run.record(i, {"half": i / 2})
        assert float(x) == 5
    back = watch.read(folder / "journal", strict=True)
    assert back["x"].tolist() == [0, 1, 2, 3, 4]
    assert back["half"].tolist() == [0, 0.5, 1, 1.5, 2]
    assert back.meta["config"] == {"lr": 0.1}
    assert "processors in use" in back.streams["system"].names
    assert json.loads((folder / "receipt.json").read_text())["spends"]
    assert "x is " in (folder / "alerts.txt").read_text()
    assert "x is " in capfd.readouterr().err
    assert run.exit_code == 3
    with refuses(OutputError, "journal"):
        watch.run(folder)
    with watch.run(folder, resume=True) as again:
        again.record(9, {"half": np.nan})
    assert again.exit_code == 3
    assert watch.read(folder / "journal").steps[-1] == 9


def test_an_alert_names_the_step_of_the_number(tmp_path):
    bounds = {"x": (-1.0, 5.0), "y": (0.0, None)}
    with watch.run(tmp_path / "run", level="full", bounds=bounds) as run:
        for step, x in enumerate([0.0, 7.0, 9.0, np.nan, -3.0, 1.0]):
            run.record(step, {"x": x, "y": x if x < 0 else 1.0})
    assert run.alerts.messages == [
        "x is not finite at step 3",
        "x is -3 < -1 at step 4",
        "x is 9 > 5 at step 2",
        "y is -3 < 0 at step 4",
    ]


def test_a_run_without_jax_starts_no_backend_of_it(tmp_path):
    # On a GPU it would take the memory of a program of torch.
    code = """
    import sys, numpy as np
    from frugax import watch
    from frugax.jaxprs import has_backend
    with watch.run(sys.argv[1], bounds={"loss": (0, 1)}) as run:
        run.record(0, {"loss": np.float32(0.5), "step": 3})
    assert not has_backend()
    """
    ended = python(textwrap.dedent(code), tmp_path / "run")
    assert ended.returncode == 0, ended.stderr
    assert watch.read(tmp_path / "run" / "journal")["loss"].tolist() == [0.5]


@pytest.mark.parametrize("checkpoint", [None, 1])
def test_programs_of_a_resumed_run_count_on_from_where_it_was_rewound_to(
    tmp_path, checkpoint
):
    for resumes in (False, True):
        with watch.run(tmp_path / "run", level="full", resume=True) as run:
            if resumes and checkpoint is not None:
                run.journal.rewind(checkpoint)
            train = run.jit(lambda x: watch.record("train", x) or x + 1)
            check = run.jit(lambda x: watch.record("check", x) or x + 1)
            last = run.journal.last_step
            first = 0 if last is None else last + 1
            for i in range(first, first + 5):
                train(jnp.float32(i))
                run.record(i, {"half": i / 2})
            check(jnp.float32(9))
    back = watch.read(tmp_path / "run" / "journal", strict=True)
    steps = [*range(10)] if checkpoint is None else [*range(7)]
    assert back.steps.tolist() == back["train"].tolist() == steps
    assert back["half"].tolist() == [i / 2 for i in steps]
    checks = [4, 9] if checkpoint is None else [6]
    assert back.steps_with("check").tolist() == checks


@pytest.mark.parametrize("collects", [False, True])
@pytest.mark.parametrize("level", ["standard", "full"])
def test_what_is_called_less_often_records_at_the_steps_of_training(
    journal, level, collects
):
    with taking(journal, level) as watcher:
        train = watch.jit(lambda x: watch.record("loss", x) or x + 1)
        discriminate = watch.jit(lambda x: watch.record("fake", x) or x + 1)
        check = watch.jit(lambda x: watch.record("val", x) or x + 1)
        check_batch = watch.jit(lambda x: watch.record("batch", x) or x + 1)
        for i in range(30):
            train(i)
            discriminate(i)
            if i % 10 == 9:
                check(i)
                for _ in range(3):
                    check_batch(i)
                watcher.record(i // 10, {"epoch": i // 10})
            if collects:
                watcher.collect()
    back = finished(watcher, journal)
    assert back.steps.tolist() == [*range(30)]
    assert back["loss"].tolist() == back["fake"].tolist() == [*range(30)]
    for name in "val", "epoch":
        assert back.steps_with(name).tolist() == [9, 19, 29]
    # A second number of the same step is in the stream of its name, and so is the rest.
    assert back.steps_with("batch").tolist() == [9]
    rest = back.streams["batch"]
    assert rest.steps.tolist() == [9, 10, 19, 20, 21, 29, 30, 31]
    assert rest["batch"].tolist() == [9, 9, 19, 19, 19, 29, 29, 29]


def test_an_evaluation_before_training_does_not_move_its_steps(journal):
    with taking(journal, "full") as watcher:
        train = watch.jit(lambda x: watch.record("loss", x) or x + 1)
        check = watch.jit(lambda x: watch.record("val", x) or x + 1)
        for i in range(20):
            if not i % 10:
                check(i), check(-i)
            train(i)
    back = finished(watcher, journal)
    assert watcher.losses.tally("scalar").kept == 24
    # The second call of the first evaluation was step 1 of a run without training.
    assert back["loss"].tolist() == [0, *range(2, 20)]
    assert back.steps_with("loss").tolist() == [*range(1, 20)]
    assert back.streams["loss"]["loss"].tolist() == [1]


def test_a_metric_that_cannot_be_read_leaves_a_run_closed_with_a_receipt(tmp_path):
    lost = jnp.ones(())
    run = watch.run(tmp_path / "run", level="full")
    with refuses(ValueError, "'a'", "deleted"), run:
        run.record(0, {"a": 1.0})
        run.record(1, {"a": lost})
        lost.delete()
    assert watch.read(run.folder / "journal", strict=True)["a"].tolist() == [1.0]
    (spend,) = json.loads((run.folder / "receipt.json").read_text())["spends"]
    assert "1 records are lost" in spend["problems"]


def test_a_run_that_is_left_open_is_closed_when_the_process_exits(tmp_path):
    code = """
import sys
from frugax import watch
def steps(run):
    with run:
        yield 0
def start(name):
    run = watch.run(sys.argv[1] + name)
    run.record(0, {"a": 1.0})
    return run
left, broken_off = start("/left"), start("/broken off")
for i in steps(broken_off): break
with start("/exit"): raise SystemExit(0)
"""
    command = [sys.executable, "-c", code, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not done.stderr
    folders = list(tmp_path.iterdir())
    assert len(folders) == 3
    for folder in folders:
        assert watch.read(folder / "journal", strict=True)["a"].tolist() == [1.0]
        assert json.loads((folder / "receipt.json").read_text())["stopped_because"]


def test_a_full_disk_ends_no_program(tmp_path, capsys):
    run = watch.run(tmp_path / "first", level="full")
    with full_disk(100), run:
        step = run.jit(lambda x: watch.record("x", x) or x + 1)
        x = jnp.zeros(())
        for i in range(5):
            x = step(x)
            run.record(i, {"half": i / 2})
    assert float(x) == 5
    assert run.exit_code == 3
    said = capsys.readouterr().err
    assert "this run is not whole: cannot write" in said
    assert "Traceback" not in said
