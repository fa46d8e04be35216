"""A search finds layout and micro-batches of a training step, on other devices too."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from frugax import MemoryBudget, fit, train
from frugax.budget import Verdict
from frugax.errors import InfeasibleBudgetError
from frugax.targets import Target

RNG = np.random.default_rng(0)
WEIGHTS = {
    "a": RNG.normal(size=(64, 512)).astype(np.float32) / 8,
    "b": RNG.normal(size=(512, 64)).astype(np.float32) / 20,
}
BUDGET = MemoryBudget("1.5MiB", kind="total")


def loss(params, batch):
    out = batch["x"]
    for _ in range(3):
        out = jnp.tanh(out @ params["a"]) @ params["b"]
    return ((out - batch["y"]) ** 2).mean()


def batch_of(index):
    x = np.random.default_rng(index).normal(size=(256, 64)).astype(np.float32)
    return {"x": x, "y": np.sin(x)}


STEP = train.make_train_step(loss, optax.adam(1e-2))
WORKLOAD = fit.Workload.of(STEP, (STEP.init_shapes(WEIGHTS), batch_of(0)))


def search(count, budget=BUDGET, micro_batches=(1, 2)):
    target = Target.of_devices(jax.devices()[:count])
    return fit.search(
        WORKLOAD, target, budget, over=("layout", "batch"), micro_batches=micro_batches
    )


@pytest.mark.thorough
def test_a_run_resumes_on_fewer_devices_in_the_same_memory(tmp_path):
    whole = train.fit(STEP, STEP.init(WEIGHTS), batch_of, steps=20).loss
    checkpoints = train.Checkpoints(tmp_path)

    before = search(8).chosen
    assert before is not None
    assert (before.layout, before.micro_batches) == ("tensor", 1)
    step = fit.apply(WORKLOAD, fit.FitPlan(rows=(before,)))
    train.fit(step, step.init(WEIGHTS), batch_of, steps=10, checkpoints=checkpoints)

    left = jax.devices()[:2]
    plan = search(2)
    assert plan.chosen is not None
    assert (plan.chosen.layout, plan.chosen.micro_batches) == ("tensor", 2)
    assert not any(row.fits for row in plan.rows if row.micro_batches == 1)
    assert type(plan).from_json(plan.to_json()) == plan
    step = fit.apply(STEP, plan, devices=left)
    assert step.report().spends == ()  # nothing is measured before it is compiled
    state, _ = checkpoints.restore(step.init(WEIGHTS))
    assert step.layout is not None
    planned = step.layout.state_sharding(state)
    train.distributed.audit(state, planned=planned).assert_sound()
    result = train.fit(step, state, batch_of, steps=20)
    assert result.steps == 10
    assert result.loss == pytest.approx(whole, abs=1e-6)
    (spend,) = step.report().spends
    assert spend.name == "total memory of one step on each device"
    assert spend.measured == spend.predicted == plan.predicted <= spend.limit
    assert (spend.limit, spend.verdict) == (BUDGET.limit_bytes, Verdict.KEPT)


def test_a_batch_larger_than_planned_is_refused_before_it_runs():
    step = fit.apply(WORKLOAD, search(8, micro_batches=(1,)))
    larger = {k: np.concatenate([v] * 64) for k, v in batch_of(0).items()}
    with pytest.raises(InfeasibleBudgetError):
        step.prepare(step.init(WEIGHTS), larger)


def test_a_layout_is_found_at_the_limit_that_is_needed():
    with pytest.raises(InfeasibleBudgetError) as caught:
        search(2, MemoryBudget("10KiB", kind="total"), (1,))
    needed = MemoryBudget(limit_bytes=int(caught.value.needed), kind="total")
    assert search(2, needed, (1,)).predicted == caught.value.needed


def test_the_gradient_of_a_search_without_remat_is_applied():
    weights, x = jnp.eye(64) / 10, jnp.ones((256, 64))
    plain = lambda w, x: (jnp.tanh(jnp.tanh(x @ w) @ w) ** 2).mean()
    workload = fit.Workload.of(plain, (weights, x))
    one = Target.of_devices(jax.devices()[:1])
    budget = MemoryBudget("1MiB")
    plan = fit.search(workload, one, budget, over=("layout",))
    assert plan.remat is not None
    assert plan.remat.budget == budget
    _, gradient = fit.apply(plain, plan)(weights, x)
    np.testing.assert_allclose(
        gradient, jax.jit(jax.grad(plain))(weights, x), rtol=1e-5
    )
