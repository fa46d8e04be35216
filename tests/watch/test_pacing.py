"""The cost of watching is measured in the run, and records thinned until it fits."""

import functools
import math
import random
import signal
import subprocess
import sys
import textwrap
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax import OverheadBudget, watch
from frugax.budget import Verdict
from frugax.watch.overhead import (
    Estimate,
    Experiment,
    Pace,
    combine,
    confidence_interval,
)
from refusals import refuses
from tiers import mostly_thorough


def run_units(experiment, *, added, pairs, noise=0.0, call_s=0.01, seed=0):
    """Let a loop pass whose watched calls take `added` longer; return its end."""
    rng = random.Random(seed)
    now = first = done = 0
    while done < pairs:
        unit = experiment.begin(first, now=now)
        each = call_s * (1 + added * unit.watched) * math.exp(rng.gauss(0, noise))
        if rng.random() < 0.05:
            each *= 1 + 3 * noise  # now and then something else holds it up
        now += each * unit.calls
        first = unit.last + 1
        done += experiment.add(unit, each * unit.calls)
    return now, first


@pytest.mark.parametrize("added", [0.0, 0.005, 0.05])
def test_the_experiment_measures_the_overhead_on_a_noisy_machine(added):
    experiment = Experiment(seed=1)
    run_units(experiment, added=added, pairs=400, noise=0.05)
    found = experiment.estimate
    assert found.low < added < found.high
    assert found.high - found.low < 0.02
    assert found.middle == pytest.approx(added, abs=0.006)


def test_the_interval_has_its_stated_coverage():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        # Heavy tails, as on a machine that others use.
        low, _, high = confidence_interval(0.02 + 0.05 * rng.standard_t(2, 20))
        hits += low <= 0.02 <= high
    assert 0.92 < hits / 400 < 0.98


def test_a_quarter_of_the_time_is_bare_and_little_once_the_verdict_is_clear():
    experiment = Experiment(seed=2)

    def bare_share(units):
        first = now = bare = calls = 0
        for _ in range(units):
            unit = experiment.begin(first, now=now)
            first, now = unit.last + 1, now + 0.01 * unit.calls
            calls += unit.calls
            bare += unit.calls * (not unit.watched)
        return bare / calls

    bare_share(40)  # until the units have their length
    assert bare_share(400) == pytest.approx(0.25, abs=0.01)
    experiment.is_clear = True
    assert bare_share(640) < 0.05


def test_a_call_is_timed_alone_where_the_loop_does_other_work():
    experiment = Experiment(seed=0)
    assert experiment.own_s is None
    now = first = 0
    for _ in range(400):
        unit = experiment.begin(first, now=now)
        # 0.2 ms a call, and 80 ms of something else before every 200th.
        others = unit.last // 200 - (unit.first - 1) // 200
        took = 0.2e-3 * unit.calls + 0.08 * others
        first, now = unit.last + 1, now + took
        experiment.add(unit, took)
    assert experiment.call_s == pytest.approx(0.6e-3, rel=0.1)
    assert experiment.own_s == pytest.approx(0.2e-3)


def test_with_few_pairs_it_cannot_tell_and_states_the_steps_needed():
    experiment = Experiment(seed=0)
    assert experiment.estimate.pairs == 0
    run_units(experiment, added=0.0, pairs=3)
    early = experiment.estimate
    assert (early.low, early.high) == (-1.0, math.inf)
    assert early.more_calls(0.01) == pytest.approx(3 * early.calls_per_pair)
    # Four times as many pairs halve the interval.
    wide = Estimate(-0.02, 0.0, 0.02, 10, 100.0)
    assert wide.more_calls(0.01) == pytest.approx(3000)
    assert Estimate(-0.001, 0.0, 0.001, 10, 100.0).more_calls(0.01) == 0
    assert Estimate(0.0, 0.01, 0.02, 10, 100.0).more_calls(0.01) == math.inf


def test_a_unit_with_a_compilation_is_not_counted():
    experiment = Experiment(seed=0)
    run_units(experiment, added=0.0, pairs=6)
    first, now, spoilt = 10_000, 100.0, 0
    while spoilt < 20:
        unit = experiment.begin(first, now=now)
        unit.spoilt = unit.pair is not None and not unit.watched
        spoilt += unit.spoilt
        experiment.add(unit, 60.0 if unit.spoilt else 0.01 * unit.calls)
        first, now = unit.last + 1, now + 0.01 * unit.calls
    assert experiment.estimate.pairs == 6


def test_functions_in_turns_add_up():
    a, b = Estimate(0.0, 0.01, 0.02, 9, 5.0), Estimate(0.005, 0.01, 0.015, 7, 9.0)
    both = combine([a, b], [1.0, 0.5])
    assert both.middle == pytest.approx(0.015)
    assert both.high - both.middle == pytest.approx(math.hypot(0.01, 0.0025))
    assert both.pairs == 7


def test_the_pace_halves_the_records_while_they_cost_too_much():
    pace = Pace(0.01)
    assert not pace.judged(Estimate(-1.0, 0.05, 2.0, 3, 1.0))  # too few pairs
    assert pace.judged(Estimate(0.02, 0.05, 0.09, 12, 1.0))
    assert pace.factor == 2
    assert not pace.judged(Estimate(0.002, 0.008, 0.02, 12, 1.0))
    for second in range(20):
        pace.collected(0.05, float(second))  # a twentieth of a processor
    assert pace.factor > 64
    factor = pace.factor
    pace.judged(Estimate(-0.003, 0.001, 0.004, 30, 1.0))
    for second in range(20, 60):
        pace.collected(1e-6, float(second))
    assert pace.factor < factor  # it recovers when collecting is cheap again


class Clock:
    """Time that passes with each look."""

    now = 0.0

    def __call__(self):
        return self.now


class CostlyNumber:
    """A number that takes some time to look at while it is recorded."""

    dtype = np.dtype(float)

    def __init__(self, clock, seconds):
        self._clock, self._seconds = clock, seconds

    @property
    def shape(self):
        self._clock.now += self._seconds
        return ()

    def __array__(self, dtype=None, copy=None):
        return np.asarray(1.0)


def journal_steps(watcher, path):
    watcher.finish()
    return watch.read(path).steps.tolist()


def test_the_receipt_is_the_experiment_with_its_interval(tmp_path):
    """Calls that take longer while watched break the budget; the truth is given."""
    for added, verdict in ((0.0, Verdict.KEPT), (0.3, Verdict.BROKEN)):
        with watch.Journal.create(tmp_path / f"{added}", {}) as journal:
            # A real clock would add what `record` takes on a busy machine.
            watcher = watch.Watcher(journal, OverheadBudget("5%"), clock=Clock())
            schedule = watcher.schedule((0.0, 0.0))
            run_units(schedule.experiment, added=added, pairs=60, noise=0.01)
            watcher.record(0, {"x": 1.0})
            (spend,) = watcher.report().spends
            assert spend.measured == pytest.approx(added, abs=0.02)
            assert spend.verdict is verdict
            assert "60 pairs" in spend.source
            watcher.finish()


def test_a_run_that_records_every_step_reports_cannot_tell(tmp_path):
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        with watch.Watcher(journal, OverheadBudget("1%"), level="full") as watcher:

            @watch.jit
            def step(x):
                watch.record("x", x)
                return x + 1

            x = jnp.zeros(())
            for _ in range(50):
                x = step(x)
        (spend,) = watcher.report().spends
    assert spend.verdict is Verdict.CANNOT_TELL
    assert "Every step is recorded" in spend.source
    # Compiling has its own line: it is not in the share.
    assert "Compiling the programs to compare took" in spend.source
    assert watch.read(tmp_path / "a")["x"].tolist() == [*range(50)]


@pytest.mark.parametrize("option", ["max_pending", "max_frames_per_s"])
def test_a_slow_device_does_not_fill_the_memory(journal, option):
    none: dict[str, Any] = {option: 0}
    with refuses(ValueError, option):
        watch.Watcher(journal, OverheadBudget("1%"), **none)
    watcher = watch.Watcher(journal, OverheadBudget(share=0.0), max_pending=10)
    for i in range(100):
        watcher.record(i, {"loss": jnp.float32(i)})
        assert watcher.pending <= 10
    assert watcher.forced == 15  # at the 11th record, then at every sixth
    assert "15 collections were forced" in watcher.report().spends[0].source


def test_with_a_zero_budget_records_are_collected_at_the_end_only(journal):
    watcher = watch.Watcher(journal, OverheadBudget(share=0.0))
    for i in range(10):
        watcher.record(i, {"loss": float(i)})
    assert (watcher.written, watcher.latest) == (0, {})
    watcher.finish()
    assert (watcher.written, watcher.latest, watcher.latest_step) == (
        10,
        {"loss": 9.0},
        9,
    )


def test_snapshots_are_affordable_once_the_time_is_earned(journal):
    clock = Clock()
    watcher = watch.Watcher(journal, OverheadBudget("1%"), clock=clock)
    assert not watcher.can_afford(0.0)
    watcher.record(0, {"x": 1.0})
    clock.now += 10.0
    assert watcher.can_afford(0.09)
    assert not watcher.can_afford(0.11)
    with watcher.overhead():
        clock.now += 0.08
        with watcher.overhead():  # counted once, although it is inside
            clock.now += 0.01
    assert watcher.can_afford(0.0)
    assert not watcher.can_afford(0.05)


_KILLED = """
    import sys, time
    from pathlib import Path
    import jax, jax.numpy as jnp
    from frugax import OverheadBudget, watch

    seconds = float(sys.argv[2])
    journal = watch.Journal.create(sys.argv[1], {})
    with watch.Watcher(journal, OverheadBudget("1%"), level="full"):
        @watch.jit
        def step(x):
            watch.record("x", x)
            return x + 1
        x = step(jnp.zeros(()))
        print("first", flush=True)
        while True:
            time.sleep(seconds)
            x = step(x)
            x.block_until_ready()
            print(int(x) - 1, time.time(), flush=True)
"""


@pytest.mark.parametrize(
    "seconds", mostly_thorough([0.005, 0.4], in_ci=lambda s: s == 0.005)
)
def test_rows_are_in_the_file_soon_and_kill_9_loses_a_second_at_most(tmp_path, seconds):
    path = tmp_path / "journal"
    code = textwrap.dedent(_KILLED)
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path), str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "first\n"
        began = time.monotonic()
        # The machine may be busy: at most 64 records may wait.
        while not len(watch.read(path)):
            assert time.monotonic() - began < 20
            time.sleep(0.05)
        time.sleep(2.0)
        run.send_signal(signal.SIGKILL)
        made = [line.split() for line in run.stdout.read().splitlines()]
    back = watch.read(path)
    assert not back.closed
    assert any("not closed" in lost.reason for lost in back.lost)
    assert back.steps[0] == 0
    # All but those of the last moments; 3 s instead of 1, as the machine may be busy.
    last = float(made[-1][1])
    old = [int(step) for step, made_at in made if float(made_at) < last - 3.0]
    assert set(old) <= set(back.steps.tolist())


def test_a_slow_metric_is_not_waited_for(journal):
    """Unfinished records stay on the device, and delay no caller."""
    watcher = watch.Watcher(journal, OverheadBudget("50%"))
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 100, lambda _, y: jnp.tanh(y @ x), x))
    x = jnp.eye(200)
    began = time.perf_counter()
    for i in range(20):
        x = slow(x)
        watcher.record(i, {"x": x[0, 0]})
    assert watcher.recorded == 20
    watcher.finish()
    assert watcher.written == 20
    assert time.perf_counter() > began


def test_numbers_recorded_by_hand_are_thinned_by_the_price_of_recording(tmp_path):
    """A record takes a tenth of a step: the rate falls until all take 0.5%."""
    clock = Clock()
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        watcher = watch.Watcher(
            journal, OverheadBudget("1%"), clock=clock, asynchronous=False
        )
        costly = CostlyNumber(clock, seconds=1.0)
        for step in range(4000):
            clock.now += 10.0
            watcher.record(step, {"x": costly})
        late = [s for s in journal_steps(watcher, tmp_path / "a") if s >= 3000]
        (spend,) = watcher.report().spends
    assert watcher.stride == 32
    assert len(late) == pytest.approx(1000 / watcher.stride, abs=2)
    assert late[-1] == 3999  # the newest is always kept
    assert "Thinned to every" in spend.source
    assert watcher.losses.tally("scalar").waiting == 0
    assert watcher.losses.tally("scalar").given == 4000


def test_records_are_thinned_at_once_where_they_cost_far_too_much():
    pace = Pace(0.01)
    assert not pace.collected(1.0, now=0.0)  # the first collection says little
    assert not pace.collected(0.005, now=0.1)
    assert pace.collected(0.015, now=0.5)  # 4% of the time, and 0.5% may go there
    assert pace.factor == 8
    pace.collected(1.0, now=0.6)
    assert pace.collected(0.5, now=1.0)
    assert pace.factor == 8 * 16  # in one leap no more


@pytest.mark.parametrize(
    ("call_s", "extra_work", "factor"),
    [
        (80e-6, 0, 128),
        (250e-6, 0, 32),
        (1.5e-3, 0, 4),
        (10e-3, 0, 1),
        (1.5e-3, 0.05, 8),
    ],
)
def test_short_calls_are_thinned_before_they_are_compared(call_s, extra_work, factor):
    variants = watch.jit(lambda x: watch.record("x", x.sum()) or x).variants()
    variants.trace((jnp.ones(3),), {})
    variants._extra_work = extra_work
    cost_s = functools.partial(variants.recording_s, call_s=call_s)
    pace = Pace(0.01)
    assert pace.foresee(call_s, 10, cost_s) is (factor > 1)
    assert pace.factor == factor
    assert not pace.foresee(call_s, 10, cost_s)  # nothing new
    for second in range(20):  # collecting costs nothing, which says little
        pace.collected(1e-6, now=2.5 * second)
    assert pace.factor == factor


def test_a_watcher_at_level_full_keeps_every_number(tmp_path):
    with watch.Journal.create(tmp_path / "a", {}) as journal:
        watcher = watch.Watcher(journal, OverheadBudget("1%"), level="full")
        watcher.pace.factor = 8
        for step in range(20):
            watcher.record(step, {"x": 1.0})
        assert journal_steps(watcher, tmp_path / "a") == [*range(20)]


def test_a_short_run_that_records_by_hand_is_decided_by_the_time_that_was_counted(
    tmp_path,
):
    """No pair of stretches is complete, and nothing but the calls costs anything."""
    for seconds, verdict in ((0.0, Verdict.KEPT), (0.5, Verdict.BROKEN)):
        clock = Clock()
        with watch.Journal.create(tmp_path / f"{seconds}", {}) as journal:
            watcher = watch.Watcher(journal, OverheadBudget("1%"), clock=clock)
            for step in range(100):
                clock.now += 10.0
                watcher.record(step, {"x": CostlyNumber(clock, seconds)})
            (spend,) = watcher.report().spends
            watcher.finish()
        assert spend.verdict is verdict
        assert "calls of the watcher took" in spend.source
