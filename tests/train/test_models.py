"""Modules of equinox and flax, and models of frugax, in a training step."""

import subprocess
import sys

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from frugax import MemoryBudget, models, train
from frugax.errors import BudgetExceededError
from refusals import refuses

SGD = optax.sgd(0.1, momentum=0.9)


def batch(rows=8, key=1):
    x = jax.random.normal(jax.random.key(key), (rows, 3))
    return {"x": x, "y": jnp.tanh(x[:, :2] * 2)}


def error(predicted, b):
    return ((predicted - b["y"]) ** 2).mean()


class Lookup(eqx.Module):
    """Weights, a table of integers, a setting, a random key and a function."""

    mlp: eqx.nn.MLP
    order: jax.Array
    noise: jax.Array
    scale: float
    name: str

    def __init__(self):
        self.mlp = eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0))
        self.order = jnp.array([2, 0, 1])
        self.noise = jax.random.key(3)
        self.scale = 0.5
        self.name = "lookup"

    def __call__(self, x):
        assert self.name == "lookup"
        drawn = jax.random.normal(self.noise, ())
        return self.mlp(x[self.order]) * self.scale + 0.0 * drawn


def lookup_loss(model, b):
    return error(jax.vmap(model)(b["x"]), b)


def test_an_equinox_module_is_trained_whole_and_given_back():
    model = Lookup()
    step = train.make_train_step(lookup_loss, SGD)
    state = step.init(model)
    assert set(state.params) == {
        f"mlp.layers.{i}.{part}" for i in (0, 1) for part in ("weight", "bias")
    }
    # The same by hand, as equinox does it.
    arrays, static = eqx.partition(model, eqx.is_inexact_array)
    opt_state = SGD.init(arrays)

    @jax.jit
    def by_hand(arrays, opt_state, batch):
        loss = lambda a: lookup_loss(eqx.combine(a, static), batch)
        value, grads = jax.value_and_grad(loss)(arrays)
        updates, opt_state = SGD.update(grads, opt_state, arrays)
        return optax.apply_updates(arrays, updates), opt_state, value

    for i in range(3):
        state, metrics = step(state, batch(key=i))
        arrays, opt_state, loss = by_hand(arrays, opt_state, batch(key=i))
        np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    trained = state.model
    assert isinstance(trained, Lookup)
    assert (trained.scale, trained.name) == (0.5, "lookup")
    np.testing.assert_array_equal(trained.order, [2, 0, 1])
    assert trained.noise.dtype == model.noise.dtype
    for got, wanted in zip(
        jax.tree.leaves(eqx.filter(trained, eqx.is_inexact_array)),
        jax.tree.leaves(arrays),
        strict=True,
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-7)
    assert step.compiles == 1


def test_a_changed_module_recompiles_and_names_the_changed_part():
    step = train.make_train_step(lookup_loss, SGD, compile_budget=1)
    step(step.init(Lookup()), batch())
    other = eqx.tree_at(lambda m: m.scale, Lookup(), 0.25)
    with refuses(BudgetExceededError, "5 -> 0"):
        step(step.init(other), batch())
    # Modules with the same settings share the program.
    step(step.init(Lookup()), batch())
    assert step.compiles == 1


def test_unhashable_parts_of_a_module_are_refused_by_name():
    model = eqx.tree_at(lambda m: m.name, Lookup(), {1, 2})
    step = train.make_train_step(lookup_loss, SGD)
    step(step.init(eqx.tree_at(lambda m: m.name, Lookup(), "lookup")), batch())

    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

    with refuses(TypeError, "['name']", "Unhashable"):
        step.init(eqx.tree_at(lambda m: m.name, model, Unhashable()))


def test_functions_in_plain_trees_are_kept_and_integers_are_refused():
    model = {"w": jnp.ones((3, 2)), "act": jnp.tanh, "b": 0.0}
    step = train.make_train_step(
        lambda m, b: error(m["act"](b["x"] @ m["w"] + m["b"]), b), SGD
    )
    state, _ = step(step.init(model), batch())
    assert set(state.params) == {"w", "b"}
    assert state.model["act"] is jnp.tanh
    assert float(state.model["b"]) != 0.0  # a number in a dict is a weight
    with refuses(TypeError, "int32"):
        step(step.init(model | {"w": jnp.ones((3, 2), int)}), batch())


def test_a_tree_of_weights_keeps_its_structure():
    params = {"w": jnp.ones((3, 2))}
    state = train.init_state(params, SGD)
    assert state.rest is None
    assert state.carried is None
    assert state.model is state.params


@pytest.mark.parametrize("accum", [1, 2])
def test_complex_weights_go_downhill(accum):
    wanted = jnp.complex64(1 + 2j)
    loss = lambda w, b: (b["x"] * jnp.abs(w - wanted) ** 2).mean()
    step = train.make_train_step(loss, optax.sgd(0.1), accum=accum)
    state = step.init(jnp.zeros((), jnp.complex64))
    for _ in range(40):
        state, metrics = step(state, {"x": jnp.ones(4)})
    assert float(metrics["loss"]) < 1e-6
    np.testing.assert_allclose(state.params, wanted, atol=1e-3)


def test_linen_variables_are_a_tree_of_weights():
    net = nn.Sequential([nn.Dense(4), nn.tanh, nn.Dense(2)])
    params = net.init(jax.random.key(0), jnp.ones((1, 3)))["params"]
    step = train.make_train_step(
        lambda p, b: error(net.apply({"params": p}, b["x"]), b), SGD
    )
    state = step.init(params)
    losses = []
    for _ in range(20):
        state, metrics = step(state, batch())
        losses.append(float(metrics["loss"]))
    assert losses[-1] < 0.5 * losses[0]
    assert jax.tree.structure(state.model) == jax.tree.structure(params)


class NormedLinen(nn.Module):
    @nn.compact
    def __call__(self, x):
        h = nn.BatchNorm(use_running_average=False, momentum=0.5)(nn.Dense(4)(x))
        return nn.Dense(2)(nn.tanh(h))


NET = NormedLinen()


def linen_loss(params, b, stats):
    message, changed = NET.apply(
        {"params": params, "batch_stats": stats}, b["x"], mutable=["batch_stats"]
    )
    return error(message, b), {}, changed["batch_stats"]


@pytest.mark.parametrize("accum", [1, 2])
def test_running_averages_of_linen_are_carried(accum):
    variables = NET.init(jax.random.key(0), jnp.ones((2, 3)))
    step = train.make_train_step(linen_loss, SGD, accum=accum)
    state = step.init(variables["params"], carried=variables["batch_stats"])
    given, params, stats = batch(), variables["params"], variables["batch_stats"]
    for part in (np.arange(first, 8, accum) for first in range(accum)):
        some = {k: v[part] for k, v in given.items()}
        _, _, stats = jax.jit(linen_loss)(params, some, stats)
    state, _ = step(state, given)
    for got, wanted in zip(
        jax.tree.leaves(state.carried), jax.tree.leaves(stats), strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    step(state, given)
    assert step.compiles == 1


def test_a_loss_must_return_its_carried_arrays_unchanged_in_type():
    step = train.make_train_step(lambda p, b, c: error(b["x"] @ p, b), SGD)
    with refuses(TypeError, "return"):
        step(step.init(jnp.ones((3, 2)), carried=jnp.zeros(2)), batch())
    step = train.make_train_step(
        lambda p, b, c: (error(b["x"] @ p, b), {}, c.astype(jnp.bfloat16)), SGD
    )
    with refuses(TypeError, "carried", "float32[2]"):
        step(step.init(jnp.ones((3, 2)), carried=jnp.zeros(2)), batch())


class NormedNnx(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(3, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, momentum=0.5, rngs=rngs)
        self.drop = nnx.Dropout(0.25, rngs=rngs)
        self.last = nnx.Linear(4, 2, rngs=rngs)
        self.act = nnx.tanh

    def __call__(self, x):
        return self.last(self.drop(self.act(self.norm(self.first(x)))))


def nnx_loss(model, b):
    return error(model(b["x"]), b)


def test_an_nnx_module_trains_the_same_as_in_nnx():
    theirs = NormedNnx(nnx.Rngs(0))
    step = train.make_train_step(nnx_loss, SGD)
    state = step.init(NormedNnx(nnx.Rngs(0)))
    optimizer = nnx.Optimizer(theirs, SGD, wrt=nnx.Param)
    plain = nnx.jit(nnx.value_and_grad(nnx_loss))
    for i in range(3):
        loss, grads = plain(theirs, batch(key=i))
        optimizer.update(theirs, grads)
        state, metrics = step(state, batch(key=i))
        # Dropout draws the same numbers only if its counter is carried.
        np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    ours = state.model
    assert isinstance(ours, NormedNnx)
    assert set(state.params) >= {"first.kernel", "norm.scale"}
    np.testing.assert_allclose(
        ours.norm.mean[...], theirs.norm.mean[...], rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(
        ours.last.kernel[...], theirs.last.kernel[...], rtol=1e-5, atol=1e-6
    )
    assert ours.drop.rngs is not None
    assert int(ours.drop.rngs.count[...]) == 3
    assert step.compiles == 1
    with refuses(TypeError, "carried"):
        step.init(NormedNnx(nnx.Rngs(0)), carried=jnp.zeros(1))


def test_a_frugax_model_is_trained_through_its_loss_function():
    net = models.compile(
        models.MLP(hidden_sizes=(4,), output_size=2),
        models.JaxBackend(),
        shapes={"input": (8, 3)},
    )
    loss = net.loss_function(lambda outputs, inputs: error(outputs["output"], inputs))
    step = train.make_train_step(loss, SGD)
    given = {"input": batch()["x"], "y": batch()["y"]}
    params = net.randomize_params(0)
    value, _ = net.value_and_grad(
        params, given, lambda outputs, inputs: error(outputs["output"], inputs)
    )
    state, metrics = step(step.init(params), given)
    np.testing.assert_allclose(metrics["loss"], value, rtol=1e-5)
    for _ in range(20):
        state, metrics = step(state, given)
    assert metrics["loss"] < 0.7 * value
    assert set(net.evaluate(state.model, {"input": given["input"]})) == {"output"}


def test_running_averages_of_a_frugax_model_are_carried():
    model = models.Model()
    model |= models.Linear(4)(input="input", output="hidden")
    model |= models.BatchNorm()(input="hidden", output="output")
    net = models.compile(model, models.JaxBackend(), shapes={"input": (8, 3)})
    before = net.initial_state()

    def loss(params, b, carried):
        out = net.pure(params, {"input": b["x"], **carried})
        return (out["output"] ** 4).mean(), {}, {k: out[k] for k in carried}

    step = train.make_train_step(loss, SGD)
    state, _ = step(step.init(net.randomize_params(0), carried=before), batch())
    assert set(state.carried) == set(before)
    assert len(before) == 2
    for key, value in before.items():
        assert not np.array_equal(state.carried[key], value)


def test_a_share_is_one_of_what_each_shape_needs_without_a_plan():
    step = train.make_train_step(lookup_loss, SGD, budget=MemoryBudget("100%"))
    state = step.init(Lookup())
    for rows in (batch(), jax.tree.map(lambda x: jnp.concatenate([x, x]), batch())):
        state, _ = step(state, rows)
        (spend,) = step.report().spends
        assert spend.limit == step.unplanned_bytes
        assert spend.verdict == "kept"


def test_a_module_is_laid_out_on_devices():
    layout = train.distributed.Layout.over((4, 2), "data")
    step = train.make_train_step(lookup_loss, SGD, layout=layout)
    state, metrics = step(step.init(Lookup()), batch())
    plain = train.make_train_step(lookup_loss, SGD)
    _, wanted = plain(plain.init(Lookup()), batch())
    np.testing.assert_allclose(metrics["loss"], wanted["loss"], rtol=1e-6)
    assert isinstance(state.model, Lookup)


@pytest.mark.slow
def test_flax_is_not_imported_by_us():
    code = (
        "import sys, jax.numpy as jnp, optax\nfrom frugax import train\n"
        "train.init_state({'w': jnp.ones(2)}, optax.sgd(0.1))\n"
        "assert not {'flax', 'equinox'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
