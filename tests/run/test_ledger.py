"""Stages are refused when their time is over, and the clock starts with the process."""

import contextlib
import dataclasses
import signal
import threading
import time

import numpy as np
import pytest

from frugax import SizeBudget, compress
from frugax.errors import BudgetExceededError, InfeasibleBudgetError
from frugax.run import Budgets, Observer, RunConfig, RunFolder, TrainConfig
from frugax.run._context import RunContext
from frugax.run._finish import _compress
from frugax.run._ledger import Ledger, Part, process_seconds
from refusals import refuses


def clocked(now, **options):
    """A ledger of 100 s with its own clock."""
    clock = lambda: now[0]
    elapsed_s = options.get("elapsed_s", 0.0)
    return Ledger(100.0, clock=clock, cpu_clock=lambda: now[0] + elapsed_s, **options)


def test_earlier_spending_counts_and_the_end_is_reserved():
    now = [0.0]
    ledger = clocked(now, elapsed_s=9.0)
    ledger.reserved[Part.COMPRESSING] = 20.0
    now[0] = 30.0
    assert ledger.total == 39.0
    assert ledger.spent == {"starting Python": 9.0}
    assert ledger.left_s == pytest.approx(100 - 39 - 20 - 1 - 2)


def test_a_stage_without_time_is_refused_and_names_a_limit_that_suffices():
    now = [0.0]
    ledger = Ledger(20.0, clock=lambda: now[0])
    ledger.check(stage="planning")
    now[0] = 19.0
    with refuses(InfeasibleBudgetError, "planning", "budgets.time") as e:
        ledger.check(stage="planning")
    assert e.value.needed > 20.0
    Ledger(20.0, elapsed_s=19.0, refuses=False).check(stage="a resumed run")
    Ledger(None, elapsed_s=1e9).check(stage="a run without a limit")


def test_a_stage_that_takes_too_long_is_interrupted():
    ledger = Ledger(1.3)

    def plan_for_ever():
        with ledger.deadline("planning"):
            while True:  # ends only because it is interrupted
                time.sleep(0.01)

    with pytest.raises(InfeasibleBudgetError):
        plan_for_ever()
    with Ledger(None).deadline("planning"):
        pass


def test_a_timer_that_rings_as_its_block_ends_is_not_left_on(monkeypatch):
    class Ringing(threading.Timer):
        def cancel(self):
            signal.raise_signal(signal.SIGALRM)
            super().cancel()

    monkeypatch.setattr(threading, "Timer", Ringing)
    with Ledger(60.0).deadline("planning"):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_the_age_of_the_process_counts_its_imports():
    assert process_seconds() >= 0.0


def test_a_stage_whose_least_time_is_known_is_refused_before_it_starts():
    now = [0.0]
    ledger = clocked(now)
    ledger.check(stage="planning memory", needs_s=90.0)
    now[0] = 10.0
    with pytest.raises(InfeasibleBudgetError):
        ledger.check(stage="planning memory", needs_s=90.0)


def test_a_stage_may_use_its_reserve():
    now = [0.0]
    ledger = clocked(now)
    ledger.reserved = {Part.COMPRESSING: 20.0, Part.EVALUATING: 5.0}
    now[0] = 80.0
    assert ledger.left_s < 0
    assert ledger.allowance_s(Part.COMPRESSING) == pytest.approx(100 - 80 - 5 - 1 - 2)


def test_more_is_held_back_for_the_end_where_other_programs_take_the_processor():
    now = [40.0]
    for share, held_s in ((1.0, 1.0), (4.0, 1.0), (0.2, 5.0), (0.01, 10.0)):
        ledger = Ledger(
            100.0,
            elapsed_s=40.0,
            clock=lambda: now[0],
            cpu_clock=lambda s=share: 40 * s,
        )
        assert ledger.reserve_s == pytest.approx(held_s + 2.0)


def test_a_compilation_that_ignores_signals_is_abandoned():
    """A library that swallows every interrupt imitates a long compilation."""
    ledger, left = Ledger(1.6, elapsed_s=0.3), threading.Event()
    said = []

    def leave(error):
        said.append(error)
        left.set()

    ledger.on_stuck = leave
    with contextlib.suppress(InfeasibleBudgetError), ledger.deadline("planning"):
        while not left.is_set():
            with contextlib.suppress(InfeasibleBudgetError):
                left.wait(5.0)
    assert "planning" in str(said[0])
    # A stage that ends in time is not left.
    ledger = Ledger(None)
    ledger.on_stuck = leave
    with ledger.deadline("planning"):
        pass
    assert len(said) == 1


def test_a_limit_beyond_the_range_of_timers_is_ignored():
    with Ledger(1e300).deadline("planning"), Ledger(1e12).stop_hanging():
        pass


def test_a_function_that_hangs_is_left_after_the_limit():
    now = [0.0]
    ledger = clocked(now)
    now[0] = 100 + 0.1 * 100 + 5
    named = "task"
    with refuses(BudgetExceededError, named), ledger.stop_hanging():
        time.sleep(10)


@pytest.mark.parametrize(("passed_s", "searches"), [(10.0, True), (60.0, False)])
def test_the_search_for_the_file_stops_at_its_time_limit(
    tmp_path, passed_s, searches, monkeypatch
):
    """Planning took 30 s, so another search would take 45 of the 100."""
    fresh, trained = ({"w": normal(scale)} for scale in (1.0, 2.0))
    size = SizeBudget(ratio=6)
    now, searched = [0.0], []
    ledger = clocked(now)
    now[0] = passed_s
    ledger.spent[Part.PLANNING_FILE] = 30.0
    ledger.reserved[Part.COMPRESSING] = 12.0
    config = RunConfig(
        name="a",
        task="a:b",
        train=TrainConfig(steps=1),
        budgets=dataclasses.replace(Budgets(), size=size),
    )
    save = compress.save

    def save_and_note(path, tree, budget, **options):
        searched.append(isinstance(budget, SizeBudget))
        return save(path, tree, budget, **options)

    monkeypatch.setattr(compress, "save", save_and_note)
    folder = RunFolder(tmp_path)
    context = RunContext(
        config=config, config_folder=tmp_path, ledger=ledger, observer=Observer()
    )
    report = _compress(context, folder, compress.plan(fresh, size), trained)
    assert searched == [searches]
    assert report.verdict == "kept"
    assert folder.model.stat().st_size <= trained["w"].nbytes / 6


def normal(scale):
    return scale * np.random.default_rng(0).normal(size=(64, 64)).astype("float32")
