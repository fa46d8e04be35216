"""Stages are refused when their time is over, and the clock starts with the process."""

import time

import pytest

from frugax.errors import InfeasibleBudgetError
from frugax.run._ledger import Ledger, process_seconds


def test_what_was_spent_before_counts_and_the_end_is_reserved():
    now = [0.0]
    ledger = Ledger(100.0, elapsed_s=9.0, clock=lambda: now[0])
    ledger.reserved["compressing"] = 20.0
    now[0] = 30.0
    assert ledger.total == 39.0
    assert ledger.spent == {"starting Python": 9.0}
    assert ledger.left_s == pytest.approx(100 - 39 - 20 - 1 - 2)


def test_a_stage_without_time_is_refused_and_names_a_limit_that_suffices():
    now = [0.0]
    ledger = Ledger(20.0, clock=lambda: now[0])
    ledger.check(stage="planning")
    now[0] = 19.0
    with pytest.raises(InfeasibleBudgetError, match=r"budgets\.time.*planning") as e:
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


def test_the_age_of_the_process_counts_its_imports():
    assert process_seconds() >= 0.0
