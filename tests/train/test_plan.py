import pytest
from hypothesis import given, strategies as st

from frugax.budget import Plan, TimeBudget
from frugax.errors import InfeasibleBudgetError
from frugax.train import TrainPlan, plan

seconds = st.floats(1e-6, 1e6)


@given(seconds, seconds, st.floats(0, 1e6), st.floats(0, 1e6), st.integers(1, 10**9))
def test_no_more_steps_than_fit_and_no_fewer(limit, step_s, compile_s, other_s, steps):
    budget = TimeBudget(seconds=limit)
    costs = {"compile_seconds": compile_s, "other_seconds": other_s}
    if compile_s + other_s + step_s > limit:
        with pytest.raises(InfeasibleBudgetError) as e:
            plan(budget, step_seconds=step_s, steps=steps, **costs)
        assert e.value.needed > limit
        budget = TimeBudget(seconds=e.value.needed)
        limit = e.value.needed
    made = plan(budget, step_seconds=step_s, steps=steps, **costs)
    assert made.predicted <= limit
    one_more = compile_s + other_s + (made.steps + 1) * step_s
    assert made.steps == steps or one_more > limit
    assert 1 <= made.steps <= steps


def test_without_a_limit_of_seconds_every_step_fits():
    made = plan(TimeBudget(compiles=1), step_seconds=1e9, compile_seconds=0, steps=7)
    assert made.steps == 7


def test_a_plan_is_hashable_printable_and_survives_json():
    made = plan(TimeBudget("10s"), step_seconds=2, compile_seconds=3, steps=9)
    assert isinstance(made, Plan)
    assert TrainPlan.from_json(made.to_json()) == made
    assert len({made, TrainPlan.from_json(made.to_json())}) == 1
    assert "3 of 9" in str(made)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"step_seconds": 0.0}, "step_seconds"),
        ({"compile_seconds": -1.0}, "compile_seconds"),
        ({"other_seconds": float("inf")}, "other_seconds"),
        ({"steps": 0}, "steps"),
    ],
)
def test_a_number_out_of_its_range_is_named(wrong, named):
    right = {"step_seconds": 1.0, "compile_seconds": 0.0, "steps": 1}
    with pytest.raises(ValueError, match=named):
        plan(TimeBudget("1s"), **right | wrong)
