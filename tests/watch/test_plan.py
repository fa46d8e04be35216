"""The plan collects as often as the budget allows, and no oftener."""

import dataclasses

import pytest
from hypothesis import assume, given, settings, strategies as st

from frugax import InfeasibleBudgetError, OverheadBudget, watch

seconds = st.floats(1e-6, 10.0)


def plan(share, **given):
    return watch.plan(OverheadBudget(share=share), **given)


@settings(deadline=None)
@given(st.floats(0, 1), seconds, seconds, st.integers(1, 10**9), st.floats(0, 1e-3))
def test_within_the_budget_and_one_step_more_often_is_not(
    share, step, drain, n, record
):
    try:
        made = plan(
            share,
            step_seconds=step,
            drain_seconds=drain,
            steps=n,
            record_seconds=record,
        )
    except InfeasibleBudgetError:
        # One drain, at the end, is the least there is.
        assume((drain + n * record) / (n * step) <= share)
        raise
    assert made.predicted <= share
    assert 1 <= made.every <= n
    if made.every > 1:
        assert dataclasses.replace(made, every=made.every - 1).predicted > share
    assert watch.WatchPlan.from_json(made.to_json()) == made
    assert len({made, watch.WatchPlan.from_json(made.to_json())}) == 1


@settings(deadline=None)
@given(seconds, seconds, st.integers(1, 10**6))
def test_planning_succeeds_at_what_is_needed_and_not_below(step, drain, n):
    given = {"step_seconds": step, "drain_seconds": drain, "steps": n}
    with pytest.raises(InfeasibleBudgetError) as caught:
        plan(0.0, **given)
    needed = caught.value.needed
    assume(1e-9 < needed <= 1)
    made = plan(needed, **given)
    assert made.drains == 1
    assert made.predicted == needed
    with pytest.raises(InfeasibleBudgetError, match="run more steps"):
        plan(needed * (1 - 1e-9), **given)


def test_the_table_shows_what_is_paid_for():
    made = plan(0.01, step_seconds=0.01, drain_seconds=0.0003, steps=10_000)
    assert made.every == 4
    assert made.drains == 2500
    assert "every 4 steps" in str(made)
    assert "limit 1%" in str(made)


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0},
        {"step_seconds": 0.0},
        {"drain_seconds": float("nan")},
        {"record_seconds": -1.0},
    ],
)
def test_a_number_out_of_its_range_is_named(wrong):
    right = {"step_seconds": 1.0, "drain_seconds": 1.0, "steps": 10}
    with pytest.raises(ValueError, match=next(iter(wrong))):
        plan(0.5, **(right | wrong))
