"""The cost of watching is measured in the run, and records thinned until it fits."""

import dataclasses
import signal
import subprocess
import sys
import textwrap
import time
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax import OverheadBudget, watch
from frugax.budget import Verdict
from frugax.watch._overhead_account import OverheadAccount
from frugax.watch._program_variants import ProgramVariants
from frugax.watch._rate import Rate
from frugax.watch._series import Series
from refusals import refuses
from tiers import mostly_thorough

from .watching import Clock, finished, kept


def thinning(factor=1, gap_s=0.0):
    rate = Rate(0.01)
    rate.factor = factor
    return type("Gapped", (Series,), {"gap_s": gap_s})(rate)


def finish_calls(rate, *, call_s, seconds, first=0, now=0.0):
    """Let calls end one after the other, looked at every 0.4 s; return the last."""
    rate.begin(first, now)
    done, end = first, now + seconds
    while now < end:
        now += 0.4
        done = first + int((now - (end - seconds)) / call_s)
        rate.measure(done, now)
    return done, now


@pytest.mark.parametrize(
    ("call_s", "stride", "thinned"),
    [
        *((60e-6, 128, 4096), (1e-3, 8, 256), (2.6e-3, 2, 128), (4.9e-3, 2, 64)),
        *((5.1e-3, 1, 1), (0.04, 1, 1), (2, 1, 1)),
    ],
)
def test_steps_of_5_ms_are_all_kept_and_shorter_ones_evenly(call_s, stride, thinned):
    free, costly = thinning(), thinning(factor=4, gap_s=0.06)
    for rate, expected in ((free, stride), (costly, thinned)):
        finish_calls(rate, call_s=call_s, seconds=4.0)
        assert rate.stride == expected
        assert rate.call_s == pytest.approx(call_s, rel=0.02) or call_s == 2


def test_a_pause_changes_no_stride_and_longer_steps_do():
    rate = thinning()
    last, now = finish_calls(rate, call_s=1e-3, seconds=2.0)
    assert rate.stride == 8
    assert not rate.measure(last + 1, now + 60.0)  # an evaluation of a minute
    assert rate.stride == 8
    last, now = finish_calls(rate, call_s=0.04, seconds=4.0, first=last, now=now + 60.0)
    assert rate.stride == 1


class CostlyNumber(float):
    """A number that takes some time to look at while it is recorded."""

    _clock: Clock
    _seconds: float

    @classmethod
    def of(cls, clock, seconds):
        made = cls(1.0)
        made._clock, made._seconds = clock, seconds
        return made

    @property
    def shape(self):
        self._clock.now += self._seconds
        return ()


@pytest.mark.parametrize(
    ("level", "how", "calls", "seconds"),
    [
        *(("standard", how, 4001, 0.0) for how in ("jit", "donate", "record", "norms")),
        *(("standard", how, 40, 0.012) for how in ("jit", "record")),
        *(("verbose", how, 25, 0.0) for how in ("jit", "donate", "record", "norms")),
        *(("full", how, 4001, 0.0) for how in ("jit", "record")),
    ],
)
def test_the_last_call_is_kept_and_of_long_steps_each(
    journal, level, how, calls, seconds
):
    # Short steps for long enough that they are thinned; long ones for longer than that.
    with watch.Watcher(journal, OverheadBudget("1%"), level=level) as watcher:

        def count(x):
            if how != "record":
                watch.record("x", x[0])
            if how == "norms":
                watch.norms("n", [x] * 20)
            return x + 1

        donated = 0 if how == "donate" else ()
        step = jax.jit(count)
        if how != "record":
            step = watch.jit(count, donate_argnums=donated)
        x = jnp.zeros(3)
        for i in range(calls):
            if how == "record":
                watcher.record(i, {"x": i})
            x = step(x)
            if seconds:
                time.sleep(seconds)
        assert float(x[0]) == calls
        (spend,) = watcher.report().spends
    back = finished(watcher, journal)
    np.testing.assert_array_equal(back["x"], back.steps)
    assert back.steps[-1] == calls - 1
    if level == "full" or seconds or calls < 30:
        assert back.steps.tolist() == [*range(calls)]
    assert spend.measured is not None
    assert watcher.losses.tally("scalar").lost == 0


@pytest.mark.parametrize("size", [3, 100_000])
@pytest.mark.parametrize("kind", [dict, np.array])
def test_the_last_record_is_of_its_call_though_its_arguments_change(
    journal, kind, size
):
    # Short steps, of which most run bare: the last is recorded when the run ends.
    with watch.Watcher(journal, OverheadBudget("1%")) as watcher:

        @watch.jit
        def count(given):
            x = given["x"] if isinstance(given, dict) else given
            watch.record("x", x[0])
            watch.norms("n", [x[:3]] * 20)
            return x + 1

        given: Any = np.zeros(size, np.float32)
        if kind is dict:
            given = {"x": jnp.zeros(size)}
        for step in range(4001):
            x = count(given)
            if kind is dict:
                given["x"] = x
            else:  # JAX may read the array itself until the call has ended
                x.block_until_ready()
                given[:] = step + 1
            if step == 3000:
                time.sleep(0.6)
    back = finished(watcher, journal)
    np.testing.assert_array_equal(back["x"], back.steps)
    assert back.steps[-1] == 4000


def test_thinning_is_even_from_the_first_row_and_said(journal):
    """A clock on which each step takes 1 ms, however busy the machine is."""
    clock = Clock()
    watcher = watch.Watcher(journal, OverheadBudget("1%"), clock=clock)
    for step in range(0, 3000, 3):  # steps of the caller are not calls
        clock.now += 1e-3
        watcher.record(step, {"x": 1.0})
        if step == 1500:
            watcher.recorder.tick()
    back = finished(watcher, journal)
    (spend,) = watcher.report().spends
    assert set(np.diff(back.steps[:-1])) == {3 * 8}
    assert back.steps[-1] == 2997
    assert " 8th " in spend.source
    assert back.streams["watch"]["stride"][-1] == 8
    tally = watcher.losses.tally("scalar")
    assert (tally.given, tally.waiting) == (1000, 0)


def test_a_busy_machine_is_not_the_cost_of_watching(journal):
    """A record takes 1 ms of the clock, but the thread has the processor for none."""
    watcher = watch.Watcher(journal, OverheadBudget("1%"))
    account = watcher._account
    account.call_clock = lambda: 0.0  # the processor time of the thread
    account._held_up_s = Clock()  # all that passes in a block is a wait for a processor
    for step in range(20):
        time.sleep(0.001)
        watcher.record(step, {"x": 1.0})
    assert account.record_s == 0.0
    with watcher.overhead():
        account._held_up_s.now += 100.0
    assert account._inside_s == 0.0
    assert watcher.can_afford(0.0)


def test_a_slow_device_does_not_fill_the_memory(journal):
    with refuses(ValueError, "max_pending"):
        watch.Watcher(journal, OverheadBudget("1%"), max_pending=0)
    watcher = watch.Watcher(journal, OverheadBudget(share=0.0), max_pending=10)
    for i in range(100):
        watcher.record(i, {"loss": jnp.float32(i)})
        assert watcher.pending <= 10
    # At the 11th record, then at every sixth.
    assert "15 collections were forced" in watcher.report().spends[0].source


def test_with_a_zero_budget_records_are_collected_at_the_end_only(journal):
    watcher = watch.Watcher(journal, OverheadBudget(share=0.0))
    for i in range(10):
        watcher.record(i, {"loss": float(i)})
    assert (kept(watcher), watcher.latest) == (0, {})
    watcher.finish()
    assert (kept(watcher), watcher.latest) == (10, {"loss": 9.0})


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


@pytest.mark.parametrize(("step_s", "thinned"), [(1e-3, True), (10.0, False)])
def test_a_record_that_costs_a_tenth_of_a_step_thins_short_steps(
    journal, step_s, thinned
):
    clock = Clock()
    watcher = watch.Watcher(journal, OverheadBudget("1%"), clock=clock)
    watcher.recorder.has_started = True  # no thread: collected below
    costly = CostlyNumber.of(clock, seconds=step_s / 10)
    for step in range(40_000 if thinned else 400):
        clock.now += step_s
        watcher.record(step, {"x": costly})
        if not step % max(int(0.5 / step_s), 1):
            watcher.recorder._last_tick = 0.0
            watcher.recorder.tick()
    steps = finished(watcher, journal).steps.tolist()
    (spend,) = watcher.report().spends
    assert steps[-1] in (39_999, 399)
    if thinned:
        assert watcher.record_every >= 32
        assert spend.measured is not None
        assert spend.measured < 0.01
    else:
        assert steps == [*range(400)]
        assert spend.verdict is Verdict.BROKEN


def test_records_are_thinned_at_once_where_they_cost_far_too_much():
    pace = Rate(0.01)
    assert not pace.collected(1.0, now=0.0)  # the first collection says little
    assert not pace.collected(0.005, now=0.1)
    assert pace.collected(0.015, now=0.5)  # 4% of the time, and 0.5% may go there
    assert pace.factor == 8
    pace.collected(1.0, now=0.6)
    assert pace.collected(0.5, now=1.0)
    assert pace.factor == 8 * 16  # in one leap no more
    for second in range(20, 60):
        pace.collected(1e-6, float(second))
    assert pace.factor < 8 * 16  # it recovers when collecting is cheap again


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Fixed:
    """Arguments that nobody can change, as a module of equinox."""

    weights: jax.Array


@pytest.mark.parametrize(
    ("call_s", "extra_work", "stride"),
    [
        (80e-6, 0, 1024),
        (250e-6, 0, 256),
        (1.5e-3, 0, 64),
        (3e-3, 0, 2),
        (4e-3, 0.05, 16),
    ],
)
def test_costly_recording_of_short_calls_runs_bare_in_between(
    journal, call_s, extra_work, stride
):
    watcher = watch.Watcher(journal, OverheadBudget("1%"))
    variants = watch.jit(lambda x: watch.record("x", x.sum()) or x).variants()
    variants.trace((jnp.ones(3),), {})
    variants._extra_work = extra_work
    schedule = watcher.schedule((0.0, 0.0), variants)
    schedule.call_s = call_s
    schedule.rest(0, (Fixed(jnp.ones(3)), (jnp.ones(3), 2.0, None)), {"key": 1})
    assert schedule._freeze_s == 0.0  # to hold these takes no time
    finish_calls(schedule, call_s=call_s, seconds=1.0)
    assert schedule.stride == stride
    assert schedule.switches is (stride > 2)
    watcher.level = "full"
    assert (schedule.stride, schedule.switches) == (1, False)


def test_the_last_call_is_kept_though_the_stride_grows_after_it(journal):
    watcher = watch.Watcher(journal, OverheadBudget("1%"))
    watcher.recorder.has_started = True  # no thread: taken below
    variants = watch.jit(lambda x: watch.record("x", x.sum()) or x).variants()
    variants.trace((jnp.ones(3),), {})
    schedule = watcher.schedule((0.0, 0.0), variants)
    _, records = variants.recording(jnp.ones(3))
    for step in range(6):
        schedule.keep(step, records, watcher.rate.wanted_kinds)
    schedule.keep_last()
    schedule.found = 64
    watcher.recorder.collect()
    assert finished(watcher, journal).steps.tolist() == [0, 5]


@pytest.mark.parametrize(
    ("seconds", "verdict"), [(0.0, Verdict.KEPT), (0.5, Verdict.BROKEN)]
)
def test_a_run_that_records_by_hand_is_judged_by_the_time_counted(seconds, verdict):
    """Nothing but the calls costs anything."""
    clock = Clock()
    watcher = watch.Watcher(None, OverheadBudget("1%"), clock=clock)
    for step in range(100):
        clock.now += 10.0
        watcher.record(step, {"x": CostlyNumber.of(clock, seconds)})
    (spend,) = watcher.report().spends
    assert spend.verdict is verdict
    assert "calls of the watcher took" in spend.source


def test_watching_takes_at_most_the_whole_time():
    account = OverheadAccount(clock := Clock(2.0))
    account.touch(1.0)
    account.touch(2.0)
    schedule: Any = types.SimpleNamespace(recording_s=80.0, gate_s=(0, 0), calls=1)
    note, share, noise = account.describe([schedule], 0.0)
    assert (share, noise) == (0.5, 0.5)
    assert "at most 100% more" in note
    with account.count_block():  # the end of a run may take longer than the run
        clock.now += 4.0
    _, share, noise = account.describe([], sinks_s=9.0)
    assert (share, noise) == pytest.approx((0.9, 0.1))  # from 0.8 to 1


def test_records_of_many_small_arrays_take_time_to_start():
    def step(arrays):
        watch.norms("norm", arrays)
        return arrays

    variants = ProgramVariants(step, {})
    variants.compile(([jnp.ones(8)] * 16,), {})
    assert variants.recording_s(call_s=0.0) > 16e-6


def test_records_in_a_loop_take_time_to_start_in_each_turn():
    def step(h, rows):
        def cell(h, row):
            h = jnp.tanh(h + row)
            watch.norms("state", {"h": h})
            return h, h.sum()

        return jax.lax.scan(cell, h, rows)

    variants = ProgramVariants(step, {})
    variants.compile((jnp.ones(8), jnp.ones((1000, 8))), {})
    assert variants.recording_s(call_s=0.0) > 1000 * 0.2e-6
