"""Plans from given seconds, plans from a measured step, and training within them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, strategies as st

from frugax import train
from frugax.budget import Plan, TimeBudget, Verdict
from frugax.errors import BudgetExceededError, InfeasibleBudgetError
from frugax.train import TrainPlan, steps_within
from refusals import refuses

seconds = st.floats(1e-6, 1e6)


@given(seconds, seconds, st.floats(0, 1e6), st.floats(0, 1e6), st.integers(1, 10**9))
def test_no_more_steps_than_fit_and_no_fewer(limit, step_s, compile_s, other_s, steps):
    budget = TimeBudget(seconds=limit)
    costs = {"compile_seconds": compile_s, "other_seconds": other_s}
    if compile_s + other_s + step_s > limit:
        with pytest.raises(InfeasibleBudgetError) as e:
            steps_within(budget, step_seconds=step_s, steps=steps, **costs)
        assert e.value.needed > limit
        budget = TimeBudget(seconds=e.value.needed)
        limit = e.value.needed
    made = steps_within(budget, step_seconds=step_s, steps=steps, **costs)
    assert made.predicted <= limit
    one_more = compile_s + other_s + (made.steps + 1) * step_s
    assert made.steps == steps or one_more > limit
    assert 1 <= made.steps <= steps


def test_without_a_limit_of_seconds_every_step_fits():
    made = steps_within(
        TimeBudget(compiles=1), step_seconds=1e9, compile_seconds=0, steps=7
    )
    assert made.steps == 7


def test_a_plan_is_hashable_printable_and_survives_json():
    made = steps_within(TimeBudget("10s"), step_seconds=2, compile_seconds=3, steps=9)
    assert isinstance(made, Plan)
    assert TrainPlan.from_json(made.to_json()) == made
    assert len({made, TrainPlan.from_json(made.to_json())}) == 1
    assert "3 of 9" in str(made)


# --- plans from a measured step -------------------------------------------------


class SlowStep:
    """A clock, and a training step that takes this long on it."""

    def __init__(self, monkeypatch, *, step_s=0.5, warm_up_s=0.25, compile_s=3.0):
        self.now = 0.0
        self.step = train.make_train_step(
            lambda w, x: ((w - x) ** 2).sum(), optax.sgd(0.25)
        )
        self.state = self.step.init(jnp.zeros(2))
        run, prepare = train.TrainStep.__call__, self.step.prepare
        self.calls = 0

        def slow_prepare(state, batch):
            if not self.step.compiles:
                self.now += compile_s
            prepare(state, batch)

        def slow_call(step, state, batch):
            self.calls += 1
            self.now += step_s
            if self.calls == 1:
                self.now += warm_up_s
            return run(step, state, batch)

        monkeypatch.setattr(self.step, "prepare", slow_prepare)
        monkeypatch.setattr(train.TrainStep, "__call__", slow_call)

    def clock(self):
        return self.now

    def plan(self, budget, *, steps=100, other_seconds=0.0):
        return train.plan(
            self.step,
            budget,
            state=self.state,
            batch=jnp.ones(2),
            clock=self.clock,
            steps=steps,
            other_seconds=other_seconds,
        )


def test_a_plan_measures_the_compile_and_the_median_step(monkeypatch):
    slow = SlowStep(monkeypatch)
    plan = slow.plan(TimeBudget("10s"), other_seconds=2.0)
    assert (plan.compile_seconds, plan.step_seconds) == (3.0, 0.5)
    assert (plan.steps, plan.wanted_steps, plan.predicted) == (10, 100, 10.0)
    assert slow.calls == 6  # one to warm up
    assert slow.step.compiles == 1
    # The state was not consumed, and planning did not train it.
    np.testing.assert_array_equal(slow.state.params, np.zeros(2))
    assert int(slow.state.step) == 0


def test_slow_steps_are_timed_only_as_long_as_the_budget_lasts(monkeypatch):
    slow = SlowStep(monkeypatch, step_s=4.0, warm_up_s=0.0, compile_s=0.5)
    assert slow.plan(TimeBudget("5s")).steps == 1
    assert slow.calls == 2


def test_at_needed_a_measured_plan_succeeds(monkeypatch):
    with pytest.raises(InfeasibleBudgetError) as e:
        SlowStep(monkeypatch).plan(TimeBudget("1s"))
    assert e.value.needed == 3.5
    plan = SlowStep(monkeypatch).plan(TimeBudget(seconds=e.value.needed))
    assert (plan.steps, plan.predicted) == (1, 3.5)


def test_applying_a_plan_takes_its_steps_and_holds_its_seconds(monkeypatch):
    slow = SlowStep(monkeypatch)
    plan = slow.plan(TimeBudget(seconds=8.0, compiles=1))
    result = train.apply(
        slow.step, plan, state=slow.state, batches=[jnp.ones(2)], clock=slow.clock
    )
    assert (result.steps, result.stopped_because) == (10, "steps")
    assert result.plan is plan
    np.testing.assert_allclose(result.state.params, 1 - 0.5**10)
    time, compiles = result.receipt.spends
    # The step is compiled already, so neither number holds the compile.
    assert (time.limit, time.predicted, time.measured) == (8.0, 5.0, 5.0)
    assert (time.verdict, compiles.measured) == (Verdict.KEPT, 1)
    more = train.apply(
        slow.step, plan, state=result.state, batches=[jnp.ones(2)], clock=slow.clock
    )
    assert int(more.state.step) == 20


def test_a_plan_from_a_file_is_applied_to_a_step_that_compiles(monkeypatch):
    plan = TrainPlan.from_json(SlowStep(monkeypatch).plan(TimeBudget("8s")).to_json())
    slow = SlowStep(monkeypatch, warm_up_s=0.0)
    result = train.apply(
        slow.step, plan, state=slow.state, batches=[jnp.ones(2)], clock=slow.clock
    )
    (time,) = result.receipt.spends
    assert (time.predicted, time.measured) == (8.0, 8.0)


def test_a_plan_keeps_the_compiles_of_its_budget(monkeypatch):
    slow = SlowStep(monkeypatch)
    slow.step.prepare(slow.state, jnp.ones(()))
    with refuses(BudgetExceededError, 1):
        slow.plan(TimeBudget(compiles=1))


def test_a_plan_of_a_step_with_a_layout_leaves_its_state_in_place():
    layout = train.distributed.Layout.over((4,), "fully-sharded")
    step = train.make_train_step(
        lambda w, x: ((x @ w) ** 2).mean(), optax.adam(0.1), layout=layout
    )
    state, batch = step.init(jnp.ones((256, 256))), jnp.ones((8, 256))
    plan = train.plan(step, TimeBudget("1h"), state=state, batch=batch, steps=2)
    assert plan.steps == 2
    assert not any(x.is_deleted() for x in jax.tree.leaves(state))
    train.distributed.audit(state, planned=layout.state_sharding(state)).assert_sound()
    assert train.apply(step, plan, state=state, batches=[batch]).steps == 2
