"""What programs give is filed by class and level, and handed to sinks."""

import threading

import jax.numpy as jnp
import numpy as np
import pytest

from frugax import OverheadBudget, watch
from frugax.watch.probes import LastValues, MaskedValues

from .watching import Given, Listener, probe, taking


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
                watcher.ingest(i, probes, Given(values))
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
            some = MaskedValues(np.stack([h, h], 1), present)
            ring = LastValues(np.array([[4.0], [2.0], [3.0]]), np.uint32(4))
            given = {"h": h, "some": some, "ring": ring}
            watcher.ingest(i, probes, Given(given, axes))
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
            a = MaskedValues(np.float32(i), np.bool_(i % 2))
            b = LastValues(np.float32(i), np.uint32(i))
            watcher.ingest(i, probes, {"a": a, "b": b, "c": np.float32(i)})
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
            watcher.ingest(i, probes, {"n": x, "g": x, "e": x})
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
            assert idle is not None
            assert all(watcher.due(step + 1 + k) == 0 for k in range(idle))
            assert watcher.due(step + 1 + idle) > 0


def test_numbers_of_the_same_step_from_both_sides_are_one_record(tmp_path):
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        watcher = taking(journal)
        for i in range(10):
            watcher.ingest(i, {"norm": probe("norm")}, {"norm": jnp.float32(i)})
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
            watcher.ingest(0, probes, Given({"h": np.arange(10_000.0)}, axes))
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
    watcher.ingest_callback("summary", "s", {"x": np.ones(())})
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
    watcher.ingest(0, probes, given)
    watcher.close()
    assert done.wait(10.0)
    assert got == [0, 1, 2, 3, 4]


def test_a_record_that_the_journal_cannot_hold_is_counted_and_named(tmp_path):
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        watcher = taking(journal)
        probes = {"g": probe("g", "frame")}
        for i, size in enumerate([2, 3, 2]):  # a stream's frames have one shape
            watcher.ingest(i, probes, {"g": np.zeros(size)})
        watcher.finish()
        tally = watcher.losses.tally("frame")
        assert (tally.kept, dict(tally.dropped)) == (2, {"refused": 1})
        assert "Refused last: ValueError" in watcher.report().spends[0].source
    assert len(watch.read(tmp_path / "a", strict=True).streams["g"]) == 2


def test_a_program_that_failed_is_its_callers_affair(journal):
    watcher = taking(journal)
    watcher.ingest(0, {"x": probe("x", "frame")}, Gone())
    watcher.ingest(1, {"x": probe("x", "frame")}, {"x": np.zeros(2)})
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


def test_what_only_calls_back_loses_no_summary_though_nobody_collects(tmp_path):
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        watcher = taking(journal, "minimal", max_queue_bytes=200_000)
        threads = [
            threading.Thread(
                target=lambda: [
                    watcher.ingest_callback("summary", "s", {"x": np.ones(3)})
                    for _ in range(500)
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
            watcher.ingest(i, {"h": probe("h")}, given)
        watcher.finish()
    back = watch.read(tmp_path / "a", strict=True).streams["h"]
    assert back["h"].tolist() == [0, 1, 2, 3, 0, 1, 0, 1, 2]
    assert back.steps.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8]


def test_records_that_come_late_are_kept_and_cost_the_caller_none(tmp_path):
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        watcher = taking(journal)
        for i in (0, 2, 1, 3):
            watcher.ingest(i, {"t": probe("t")}, Given({"t": jnp.float32(i)}))
        watcher.collect()
        watcher.record(3, {"own": 1.0})  # the program is ahead: at 4
        watcher.record(4, {"own": 2.0})
        watcher.finish()
        assert watcher.losses.tally("scalar").kept == 6
    back = watch.read(tmp_path / "a", strict=True)
    assert back["t"].tolist() == [0, 2, 1, 3]
    assert back["own"].tolist() == [1.0, 2.0]


def test_what_waits_is_judged_by_the_level_at_which_it_was_taken(tmp_path):
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        watcher = watch.Watcher(journal, OverheadBudget(share=0.0), level="full")
        for i in range(20):
            if i == 10:
                watcher.level = "standard"
            watcher.ingest(i, {"t": probe("t")}, Given({"t": jnp.float32(i)}))
        watcher.finish()
    back = watch.read(tmp_path / "a", strict=True)
    assert back["t"].tolist() == [*range(11)]
