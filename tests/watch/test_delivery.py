"""With every fault of a sink, memory keeps its cap and losses are reported."""

import threading
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fault_injection import at_once
from frugax.watch.delivery import SinkWorker, charge_bytes
from frugax.watch.sinks import KINDS, Event
from refusals import refuses


def event(kind: Any = "scalar", step=0, *, size=1, stream="s"):
    return Event(kind, stream, step, {"x": np.zeros(size, np.uint8)})


class Sink:
    """Keep all events; before that do as `acts` says, one act for each write."""

    def __init__(self, *acts, name="sink"):
        self.name = name
        self.acts = list(acts)
        self.got = []
        self.writes = []
        self.closed = 0

    def write(self, events):
        self.writes.append(len(events))
        if self.acts:
            act = self.acts.pop(0)
            if act is not None:
                act()
        self.got += events

    def close(self):
        self.closed += 1


def raises(error):
    def act():
        raise error

    return act


def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "never came true"
        time.sleep(0.002)


@pytest.fixture
def gate():
    """An event that hung sinks wait for; set at the end, so that no thread stays."""
    made = threading.Event()
    yield made
    made.set()


def test_all_events_arrive_in_order_and_are_counted():
    outlet = SinkWorker(sink := Sink(), max_bytes=10_000_000)
    for step in range(1000):
        outlet.put([event(step=step)])
    at_once(lambda: [outlet.put([event("summary", i)]) for i in range(300)])
    outlet.put([event("frame", size=10_000_001)])
    assert outlet.close()
    assert [e.step for e in sink.got if e.kind == "scalar"] == list(range(1000))
    outlet.put([event()])
    assert outlet.close()
    assert (len(sink.got), sink.closed, outlet.waiting_bytes) == (2200, 1, 0)
    assert str(outlet.losses) == (
        "0 of 1,200 summaries lost; 1 of 1,001 scalars lost (closed 1); "
        "1 of 1 frames lost (too large 1)"
    )


@pytest.mark.parametrize(
    "error", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), OSError(28, "full")]
)
def test_a_raising_sink_loses_scalars_and_frames_but_no_summaries(error):
    outlet = SinkWorker(sink := Sink(raises(error)))
    outlet.put([event("summary", 0), event("scalar", 1), event("frame", 2)])
    assert outlet.flush()
    outlet.put([event("frame", 3)])
    assert outlet.close()
    assert [e.step for e in sink.got] == [0, 3]
    tallies = outlet.losses.tallies
    assert tallies["summary"].lost == 0
    assert dict(tallies["scalar"].dropped) == {"sink failed": 1}
    assert dict(tallies["frame"].dropped) == {"sink failed": 1}
    assert type(error).__name__ in str(outlet.report())


def test_a_record_that_no_sink_can_take_does_not_cost_the_others_their_place():
    class Picky(Sink):
        def write(self, events):
            if any(e.step == 3 for e in events):
                raise ValueError("three")
            super().write(events)

    outlet = SinkWorker(sink := Picky())
    outlet.put([event("summary", step) for step in range(6)])
    assert outlet.close()
    assert [e.step for e in sink.got] == [0, 1, 2, 4, 5]
    assert dict(outlet.losses.tally("summary").dropped) == {"sink failed": 1}


def test_a_hung_sink_is_dropped_and_named(gate, capsys):
    def threads():
        return sum("stuck" in thread.name for thread in threading.enumerate())

    outlet = SinkWorker(sink := Sink(gate.wait, name="stuck"), hang_s=0.05)
    outlet.put([event("summary", 0)])
    until(lambda: sink.writes)
    outlet.put([event("summary", 1)])
    time.sleep(0.1)
    outlet.put([event("summary", 2)])
    report = outlet.report()
    assert (report.state, report.failures) == ("dropped", 0)
    tally = report.tallies["summary"]
    assert (dict(tally.dropped), tally.waiting) == ({"sink hung": 2}, 1)
    assert "stuck" in str(report)
    assert capsys.readouterr().err.count("'stuck'") == 1
    # The thread still has the first one, and there is no other thread.
    assert outlet.waiting_bytes == charge_bytes(event("summary"))
    assert threads() == 1
    assert not outlet.flush(5.0)
    assert not outlet.close(5.0)
    gate.set()  # and when the write ends after all, that is known too
    until(lambda: threads() == 0)
    tally = outlet.losses.tally("summary")
    assert (tally.kept, tally.lost, tally.waiting) == (1, 2, 0)
    assert outlet.waiting_bytes == 0
    assert [e.step for e in sink.got] == [0]


def test_a_hung_sink_never_holds_more_than_its_cap(gate):
    size, cap = 1 << 16, 1 << 20
    outlet = SinkWorker(Sink(gate.wait), max_bytes=cap, hang_s=1e9)
    outlet.put([event("frame", -1, size=size)])  # the thread and all else is made
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for step in range(300):
            outlet.put([event("frame", step, size=size)])
            outlet.put([event("summary", step)])
            assert outlet.waiting_bytes <= cap
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown <= 1.01 * cap
    tallies = outlet.losses.tallies
    assert "queue full" not in tallies["summary"].dropped
    assert tallies["frame"].dropped["queue full"] > 250
    for tally in tallies.values():
        assert tally.given == tally.kept + tally.lost + tally.waiting


@pytest.mark.thorough
def test_many_small_records_take_no_more_than_they_are_counted_as(gate):
    # Never given up, however slow the machine is.
    outlet = SinkWorker(sink := Sink(gate.wait), max_bytes=4 << 20, hang_s=1e9)
    outlet.put([event(step=-1)])
    until(lambda: sink.writes)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for step in range(1000, 9_000):
            values = {f"{name}{step}": np.array(step, np.float32) for name in "ab"}
            outlet.put([Event("summary", f"stream{step}", step, values)])
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert outlet.losses.tally("summary").dropped["queue full"] > 1000
    assert grown <= 1.01 * (4 << 20)


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit()])
def test_a_close_that_raises_or_hangs_is_reported(gate, error):
    sink = Sink()
    sink.close = raises(error)
    outlet = SinkWorker(sink)
    outlet.put([event()])
    assert not outlet.close()
    assert outlet.report().failures == 1
    hanging = Sink()
    hanging.close = gate.wait
    outlet = SinkWorker(hanging, hang_s=0.05)
    assert not outlet.close(5.0)
    assert outlet.report().state == "dropped"


def test_an_error_whose_text_raises_is_counted_like_any_other():
    class Evil(Exception):
        def __str__(self):
            raise SystemExit

    outlet = SinkWorker(Sink(raises(Evil())))
    outlet.put([event("frame")])
    outlet.flush()
    assert outlet.report().last_error == "Evil"
    assert outlet.close()


@pytest.mark.parametrize("given", [{"max_bytes": 0}, {"hang_s": 0.0}])
def test_numbers_out_of_range_are_refused_by_name(given):
    with refuses(ValueError, *given):
        SinkWorker(Sink(), **given)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 4000)), max_size=60))
def test_the_queue_keeps_to_its_cap_and_drops_the_least_important(given):
    gate = threading.Event()
    outlet = SinkWorker(sink := Sink(gate.wait), max_bytes=10_000, hang_s=1e9)
    outlet.put([event("summary", -1)])
    until(lambda: sink.writes)
    waiting = []
    for step, (kind, size) in enumerate(given):
        outlet.put([event(kind, step, size=size)])
        assert outlet.waiting_bytes <= 10_000
        waiting.append((KINDS.index(kind), step, size))
        charges = lambda: sum(charge_bytes(event(size=n)) for *_, n in waiting)
        while charges() > 10_000 - charge_bytes(event()):
            least = max(rank for rank, *_ in waiting)
            waiting.remove(next(one for one in waiting if one[0] == least))
    gate.set()
    assert outlet.close()
    assert [e.step for e in sink.got] == [-1, *(step for _, step, _ in waiting)]
    tallies = outlet.losses.tallies.values()
    assert sum(t.given for t in tallies) == len(given) + 1
    assert sum(t.lost for t in tallies) == len(given) - len(waiting)
