"""Whole steps of equinox and flax nnx are planned with their modules as shapes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import frugax as fx
from frugax import fit
from frugax.targets import Target
from tiers import mostly_thorough

ONE = Target.of_devices(jax.devices()[:1])
X = jax.ShapeDtypeStruct((256, 64), jnp.float32)
KEY = jax.random.key(0)
OPTIMIZER = optax.adamw(1e-3)


@pytest.fixture(autouse=True)
def promote_as_usual():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def eqx_loss(model, x):
    return jnp.mean(jax.vmap(model)(x) ** 2)


def trained(model):
    return eqx.filter(model, lambda x: eqx.is_array(x) or hasattr(x, "dtype"))


def eqx_step(model, state, x):
    value, grads = eqx.filter_value_and_grad(eqx_loss)(model, x)
    updates, state = OPTIMIZER.update(grads, state, trained(model))
    return eqx.apply_updates(model, updates), state, value


def mlp():
    return eqx.nn.MLP(64, 64, 64, 4, key=KEY)


def with_numbers():
    layers = [eqx.nn.Linear(64, 64, key=KEY) for _ in range(4)]
    dropout, act = eqx.nn.Dropout(0.0), eqx.nn.Lambda(jnp.tanh)
    return eqx.nn.Sequential([layers[0], eqx.nn.LayerNorm(64), dropout, act, *layers])


def eqx_case(build):
    model = eqx.filter_eval_shape(build)
    state = eqx.filter_eval_shape(lambda m: OPTIMIZER.init(trained(m)), model)
    return eqx_step, (model, state, X)


class Net(nnx.Module):
    def __init__(self, rngs):
        self.inside = nnx.Linear(64, 256, rngs=rngs)
        self.norm = nnx.BatchNorm(256, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.outside = nnx.Linear(256, 64, rngs=rngs)

    def __call__(self, x):
        return self.outside(self.dropout(nnx.relu(self.norm(self.inside(x)))))


def nnx_loss(model, x):
    return jnp.mean(model(x) ** 2)


def nnx_step(model, optimizer, x):
    value, grads = nnx.value_and_grad(nnx_loss)(model, x)
    optimizer.update(model, grads)
    return value


def nnx_objects():
    model = Net(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)


def nnx_case():
    return nnx_step, (*nnx.eval_shape(nnx_objects), X)


CASES = {
    "equinox": lambda: eqx_case(mlp),
    "numbers": lambda: eqx_case(with_numbers),
    "nnx": nnx_case,
}


@pytest.mark.parametrize(
    "case", mostly_thorough(CASES, in_ci=lambda case: case == "nnx")
)
@pytest.mark.parametrize(
    "donated", [pytest.param((), marks=pytest.mark.thorough), (0, 1)]
)
def test_a_whole_step_of_modules_is_planned(case, donated):
    step, args = CASES[case]()
    workload = fit.Workload.of(step, args, donate_argnums=donated)
    plain = fx.plan(workload, (), "1GiB", target=ONE).rows[0]
    assert plain.fits
    limit = fx.MemoryBudget(limit_bytes=int(0.97 * plain.predicted), kind="total")
    row = fx.plan(workload, (), limit, target=ONE).rows[0]
    assert row.remat is not None
    assert row.predicted < plain.predicted
    fit.apply(step, fit.FitPlan(rows=(row,)))  # its donation suits the step


@pytest.mark.parametrize(
    "case", mostly_thorough(CASES, in_ci=lambda case: case == "numbers")
)
def test_donated_modules_take_the_place_of_the_new_ones(case):
    step, args = CASES[case]()
    sizes = [
        fx.plan(fit.Workload.of(step, args, **how), (), target=ONE).predicted
        for how in ({}, {"donate_argnums": (0, 1)})
    ]
    weights = sum(x.size * 4 for x in jax.tree.leaves(args[0]) if hasattr(x, "size"))
    # Its weights and one moment at least; batch norms have other variables as well.
    assert sizes[0] - sizes[1] >= 1.9 * weights


def test_a_batch_of_modules_can_be_divided_and_sharded():
    step, args = eqx_case(with_numbers)
    workload = fit.Workload.of(step, args)
    assert workload.with_rows(128).rows == 128
    eight = Target.of_devices(jax.devices())
    plan = fit.search(workload, eight, "1GiB", over=("layout",))
    assert {row.layout for row in plan.rows} == {"data", "fully-sharded", "tensor"}


def test_the_plan_of_a_step_is_applied_to_real_modules():
    step, args = eqx_case(mlp)
    workload = fit.Workload.of(step, args)
    plain = fx.plan(workload, (), "1GiB", target=ONE).rows[0]
    limit = fx.MemoryBudget(limit_bytes=int(0.97 * plain.predicted), kind="total")
    plan = fx.plan(workload, (), limit, target=ONE)
    with fx.planned(memory=plan.budget):
        planned = eqx.filter_jit(step)
    model, x = mlp(), jax.random.normal(KEY, X.shape)
    state = OPTIMIZER.init(trained(model))
    new, _, value = planned(model, state, x)
    expected, _, of_all = eqx.filter_jit(step)(model, state, x)
    assert float(value) == pytest.approx(float(of_all), rel=1e-6)
    for a, b in zip(*map(jax.tree.leaves, (new, expected)), strict=True):
        if eqx.is_array(a):
            np.testing.assert_allclose(a, b, atol=1e-6)
