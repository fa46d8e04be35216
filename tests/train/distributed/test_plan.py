"""Layouts and micro-batches for the memory of each device, on other devices too."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from frugax import MemoryBudget, train
from frugax.errors import InfeasibleBudgetError
from frugax.train import distributed
from refusals import refuses

RNG = np.random.default_rng(0)
WEIGHTS = {
    "a": RNG.normal(size=(64, 512)).astype(np.float32) / 8,
    "b": RNG.normal(size=(512, 64)).astype(np.float32) / 20,
}
OPTIMIZER = optax.adam(1e-2)


def loss(params, batch):
    out = batch["x"]
    for _ in range(3):
        out = jnp.tanh(out @ params["a"]) @ params["b"]
    return ((out - batch["y"]) ** 2).mean()


def batch_of(index):
    x = np.random.default_rng(index).normal(size=(256, 64)).astype(np.float32)
    return {"x": x, "y": np.sin(x)}


def make(layout, accum):
    return train.make_train_step(loss, OPTIMIZER, layout=layout, accum=accum)


def planned(size, count, shape=None):
    return distributed.plan(
        make,
        MemoryBudget(size, kind="total")
        if isinstance(size, str)
        else MemoryBudget(limit_bytes=size, kind="total"),
        params=WEIGHTS,
        batch=batch_of(0),
        shape=shape,
        accums=(1, 2, 4),
        devices=jax.devices()[:count],
    )


def test_a_run_resumes_on_fewer_devices_in_the_same_memory(tmp_path):
    whole = train.fit(
        (step := make(None, 1)), step.init(WEIGHTS), batch_of, steps=20
    ).loss
    checkpoints = train.Checkpoints(tmp_path)

    before = planned("1.5MiB", 8)
    assert (before.kind, before.accum) == ("fully-sharded", 1)
    step = distributed.apply(make, before)
    train.fit(step, step.init(WEIGHTS), batch_of, steps=10, checkpoints=checkpoints)

    after = planned("1.5MiB", 2)
    assert after.shape == (2, 1)
    assert (after.kind, after.accum) == ("fully-sharded", 2)
    layout = after.layout(devices=jax.devices()[:2])
    step = distributed.apply(make, after, devices=jax.devices()[:2])
    state, _ = checkpoints.restore(step.init(WEIGHTS))
    distributed.audit(state, planned=layout.state_sharding(state)).assert_sound()
    result = train.fit(step, state, batch_of, steps=20)
    assert result.steps == 10
    assert step.program.total_bytes == after.predicted <= after.budget.limit_bytes
    assert result.loss == pytest.approx(whole, abs=1e-6)


def test_micro_batches_come_after_all_layouts():
    plan = planned("1.5MiB", 2)
    assert [(t.kind, t.accum) for t in plan.tried] == [
        ("data", 1),
        ("fully-sharded", 1),
        ("data", 2),
        ("fully-sharded", 2),
    ]
    assert all(t.nbytes > plan.budget.limit_bytes for t in plan.tried[:-1])
    assert "micro-batches" in str(plan).splitlines()[0]
    assert type(plan).from_json(plan.to_json()) == plan


def test_an_infeasible_budget_reports_the_smallest_need():
    with refuses(InfeasibleBudgetError, "devices") as e:
        planned("10KiB", 2)
    assert planned(int(e.value.needed), 2).predicted == e.value.needed
    with pytest.raises(InfeasibleBudgetError):
        planned(int(e.value.needed) - 1, 2)
    with refuses(ValueError, "accums", "(1,)"):
        distributed.plan(
            make, MemoryBudget("1MiB"), params=WEIGHTS, batch=batch_of(0), accums=()
        )
