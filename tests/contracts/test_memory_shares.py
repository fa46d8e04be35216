"""A percentage of memory means the same wherever a memory budget is taken."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import pytest

import frugax as fx
from frugax import MemoryBudget, fit, remat, run, train
from frugax.budget import MemoryShare, from_plain, to_plain
from frugax.errors import ConfigError, InfeasibleBudgetError
from frugax.run import Budgets, RunConfig, TrainConfig
from frugax.targets import Target
from refusals import refuses

WEIGHTS, ROWS = [jnp.eye(32)] * 4, jnp.ones((256, 32))
MODEL = fx.models.MLP(input_size=8, hidden_sizes=[32] * 3, output_size=3)
HOW = {"backend": fx.JaxBackend(), "shapes": {"input": [64, 8]}}
CONFIG = RunConfig(name="shares", train=TrainConfig(steps=2), task="tiny_task:task")


def loss(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


@functools.cache
def plan_gradient(budget):
    return remat.plan(loss, budget, (WEIGHTS, ROWS), cache=False)


@functools.cache
def plan_at_first_call(budget):
    return remat.value_and_grad(loss, budget).planned_for(WEIGHTS, ROWS).plan


@functools.cache
def plan_train_step(budget):
    step = train.make_train_step(loss, optax.sgd(0.1), budget=budget)
    step.prepare(step.init(WEIGHTS), ROWS)
    return step.plan


@functools.cache
def plan_layout(budget):
    step = train.make_train_step(loss, optax.sgd(0.1))
    workload = fit.Workload.of(step, (step.init_shapes(WEIGHTS), ROWS))
    one = Target.of_devices(jax.devices()[:1])
    return fit.search(workload, one, budget, over=("layout",))


@functools.cache
def plan_for_target(budget):
    return fx.plan(loss, (WEIGHTS, ROWS), budget, target=Target.here()).remat


@functools.cache
def plan_jitted(budget):
    step = fx.jit(jax.value_and_grad(loss), memory=budget)
    step(WEIGHTS, ROWS)
    return step.plan


@functools.cache
def plan_in_block(budget):
    with fx.planned(memory=budget):
        step = jax.jit(jax.value_and_grad(loss))
    step(WEIGHTS, ROWS)
    return getattr(step, "plan")  # noqa: B009 - a PlannedFunction


@functools.cache
def plan_model(budget):
    return fx.models.plan(MODEL, budget, **HOW)


PLANNERS = {
    "remat.plan": plan_gradient,
    "remat.value_and_grad": plan_at_first_call,
    "make_train_step": plan_train_step,
    "fx.plan": plan_for_target,
    "fx.jit": plan_jitted,
    "fx.planned": plan_in_block,
    "models.plan": plan_model,
}
each_planner = pytest.mark.parametrize("plan", PLANNERS.values(), ids=PLANNERS)


@each_planner
def test_a_percentage_is_one_of_the_temporaries_without_a_plan(plan):
    found = plan(MemoryBudget("80%"))
    assert found.budget == MemoryBudget.share(0.8, kind="temp").of(
        found.unplanned_bytes
    )
    assert found.predicted <= found.budget.limit_bytes


@pytest.mark.parametrize("plan", [*PLANNERS.values(), plan_layout])
def test_a_share_of_a_device_counts_everything_that_a_program_holds(plan):
    own = Target.here().memory_bytes
    assert own is not None
    limit = plan(MemoryBudget("1% of device")).budget
    assert limit == MemoryBudget(limit_bytes=own // 100, kind="total")
    # The device that is named need not be the one that is compiled for.
    memory = Target("h100").memory_bytes
    assert memory is not None
    limit = plan(MemoryBudget("1% of h100")).budget
    assert limit == MemoryBudget(limit_bytes=memory // 100, kind="total")


@pytest.mark.parametrize("plan", [plan_gradient, plan_for_target, plan_layout])
def test_a_share_of_an_unknown_device_is_refused(plan):
    with refuses(ConfigError, "nothing"):
        plan(MemoryBudget("1% of nothing"))


@pytest.mark.parametrize("plan", [plan_for_target, plan_jitted, plan_in_block])
def test_a_percentage_as_text_means_the_same(plan):
    for text in ("80%", "1% of device"):
        assert plan(text).budget == plan(MemoryBudget(text)).budget


def test_a_share_of_what_a_layout_needs_is_one_of_its_first():
    whole = plan_layout(MemoryBudget("100%"))
    assert whole.budget == MemoryBudget(limit_bytes=whole.predicted)
    fields = {"needed": whole.predicted, "limit": whole.predicted // 2}
    with refuses(InfeasibleBudgetError, **fields):
        plan_layout(MemoryBudget("50%"))


@pytest.mark.parametrize("text", ["90%", "1% of device", "1% of h100", "1GiB"])
def test_a_config_states_the_same_budgets(text):
    budgets = from_plain(Budgets, {"memory": text})
    assert budgets.memory is not None
    assert budgets.memory == MemoryBudget(text)
    assert from_plain(Budgets, to_plain(budgets)) == budgets
    made = run.plan(CONFIG, budgets, config_folder=Path(__file__).parent)
    (spend,) = (s for s in made.spends if s.unit == "bytes")
    limit = Target.here().in_bytes(budgets.memory)
    if isinstance(limit, MemoryShare):
        limit = limit.of(made.unplanned_bytes)
    assert (spend.limit, made.memory_kind) == (limit.limit_bytes, limit.kind)
