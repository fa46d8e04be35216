"""Faults of callbacks, sinks and disks do not change the program's result.

A few hundred faults are injected; `make thorough` injects 10,000.
"""

import contextlib
import re
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fault_injection import Faults, full_disk
from frugax import OverheadBudget, watch
from frugax.errors import OutputError
from frugax.watch.delivery import SinkWorker
from frugax.watch.probes import Probe
from frugax.watch.sinks import KINDS

from .watching import Given, finished

pytestmark = pytest.mark.slow

_HANG_S = 0.02


class FaultySink:
    """A sink that fails as `Faults` says, before or after it took the records."""

    name = "faulty"

    def __init__(self, seed):
        self.faults = Faults(seed, hang_s=_HANG_S)
        self.got = []

    def write(self, events):
        self.faults()
        self.got += [(e.kind, e.stream, e.step) for e in events]

    def close(self):
        self.faults()


def probe(name: str, kind: Any, example: Any):
    return Probe.of(name, kind, None, example)


@pytest.mark.parametrize("most", [20, pytest.param(10_000, marks=pytest.mark.thorough)])
def test_failing_sinks_do_not_affect_the_program_or_the_journal(tmp_path, most):
    probes = {
        "norm": probe("norm", "scalar", 1.0),
        "grid": probe("grid", "frame", 1.0),
        "end": probe("end", "summary", 1.0),
    }
    sinks = [FaultySink(seed) for seed in range(3)]
    # One of them is dropped if a write hangs; the others wait for it.
    workers = [
        SinkWorker(sink, hang_s=hang_s)
        for sink, hang_s in zip(sinks, (_HANG_S, 1e9, 1e9), strict=True)
    ]
    step = jax.jit(lambda x: (jnp.tanh(x @ x.T / 8) + jnp.roll(x, 1), jnp.sum(x)))
    x = start = jnp.linspace(-1, 1, 64, dtype=jnp.float32).reshape(8, 8)
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        watcher = watch.Watcher(
            journal, OverheadBudget("100%"), level="full", sinks=workers
        )
        n = 0
        while sum(sink.faults.count for sink in sinks) < most:
            x, total = step(x)
            given = {"norm": total, "grid": x, "end": total}
            watcher.ingest(n, Given(probes, given))
            n += 1
            if n % 10 == 0:  # so that writes are many, not few and long
                time.sleep(0.001)
        watcher.finish()
        with contextlib.suppress(Exception):
            watcher.close()
    for _ in range(n):
        start, _ = step(start)
    np.testing.assert_array_equal(x, start)
    back = watch.read(tmp_path / "a", strict=True)
    assert len(back) == len(back.streams["grid"]) == len(back.streams["end"]) == n
    for kind in KINDS:
        assert watcher.losses.tally(kind).lost == 0
    # Each sink's own ledger accounts for every record, after the late ones have ended.
    end = time.monotonic() + 10
    is_busy = lambda worker: any(t.waiting for t in worker.losses.tallies.values())
    while any(map(is_busy, workers)) and time.monotonic() < end:
        time.sleep(0.01)
    for worker, sink in zip(workers, sinks, strict=True):
        for kind, tally in worker.losses.tallies.items():
            assert tally.waiting == 0, (kind, tally)
        kept = worker.losses.tally("frame").kept
        assert kept == sum(got[0] == "frame" for got in sink.got)


def test_a_full_disk_never_raises_in_the_program_and_losses_are_reported(tmp_path):
    path = tmp_path / "a"
    probes = {
        "end": probe("end", "summary", np.zeros(8)),
        "grid": probe("grid", "frame", np.zeros(64)),
    }
    rng = np.random.default_rng(0)  # noise does not pack
    ends, grids = rng.random((400, 8)), rng.random((400, 64))
    journal = watch.Journal.create(path, {})
    watcher = watch.Watcher(
        journal, OverheadBudget("100%"), level="full", max_pending=50
    )
    with full_disk(100_000):
        for i in range(400):
            given = Given(probes, {"end": ends[i], "grid": grids[i]})
            watcher.ingest(i, given)
            assert watcher.pending <= 50
    assert "could not be written" in watcher.report().spends[0].source
    watcher.finish()
    journal.close()
    back = watch.read(path, strict=True).streams
    tallies = watcher.losses.tallies
    for tally, stream, values in (
        (tallies["summary"], "end", ends),
        (tallies["frame"], "grid", grids),
    ):
        assert tally.given == 400 == tally.kept + tally.lost
        assert tally.kept == len(back[stream]) > 0
        assert tally.dropped["queue full"] > 0
        for row in back[stream][stream]:  # and none of it is wrong
            assert (values == row).all(axis=1).any()


def test_summaries_of_callbacks_on_a_full_disk_do_not_fill_the_memory(tmp_path):
    journal = watch.Journal.create(tmp_path / "a", {})
    watcher = watch.Watcher(
        journal, OverheadBudget("1%"), level="minimal", max_pending=50
    )
    rng = np.random.default_rng(0)
    with full_disk(1000):
        for _ in range(300):
            watcher.ingest_callback("summary", "s", {"x": rng.random(64)})
            assert watcher.pending <= 51
    back = finished(watcher, journal).streams["s"]
    tally = watcher.losses.tally("summary")
    assert tally.given == 300 == tally.kept + tally.lost
    assert len(back) == tally.kept > 0


def test_a_report_counts_what_the_journal_itself_still_holds(tmp_path):
    path = tmp_path / "a"
    journal = watch.Journal.create(path, {})
    watcher = watch.Watcher(journal, OverheadBudget("100%"), level="full")
    rng = np.random.default_rng(0)
    with full_disk(10_000):
        for i in range(100):
            grid = {"grid": probe("grid", "frame", np.zeros(64))}
            watcher.ingest(i, Given(grid, {"grid": rng.random(64)}))
        with pytest.raises(OutputError):
            watcher.close()
        problems = watcher.report().spends[0].problems
        with pytest.raises(OutputError):
            journal.close()
    written = sum(map(len, watch.read(path).streams.values()))
    (stated,) = re.findall(r"(\d+) records are not in it", problems)
    assert int(stated) >= 100 - written > 0
    # Once both are closed, nothing waits any more: it is lost.
    tally = watcher.losses.tally("frame")
    assert (tally.kept, tally.lost) == (written, 100 - written)
    assert f"not written {100 - written}" in watcher.report().spends[0].problems
