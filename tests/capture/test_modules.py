"""`fx.jit` of functions of modules, mutable arrays and other objects."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import frugax as fx
from frugax.capture import (
    LostUpdateWarning,
    UnplannedWarning,
)
from planned_steps import ROWS, WEIGHTS, assert_planned, assert_same, loss
from refusals import warns


def test_nnx_state_is_updated_as_by_nnx_jit():
    class Net(nnx.Module):
        def __init__(self):
            rngs = nnx.Rngs(0)
            self.layers = nnx.List([nnx.Linear(64, 64, rngs=rngs) for _ in range(4)])
            self.norm, self.drop = (
                nnx.BatchNorm(64, rngs=rngs),
                nnx.Dropout(0.1, rngs=rngs),
            )

        def __call__(self, x):
            for layer in self.layers:
                x = self.drop(jnp.tanh(layer(x)))
            return self.norm(x)

    def make():
        net = Net()
        optimizer = nnx.Optimizer(net, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)

        @nnx.jit
        def step(net, optimizer, x):
            def mean_square(net):
                return jnp.mean((net(x) - x) ** 2)

            value, grads = nnx.value_and_grad(mean_square)(net)
            optimizer.update(net, grads)
            return value

        return net, optimizer, step

    net, optimizer, step = make()
    with fx.planned(memory="60%"):
        planned_net, planned_optimizer, planned_step = make()
    for _ in range(3):
        expected = step(net, optimizer, ROWS)
        found = planned_step(planned_net, planned_optimizer, ROWS)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    jitted: Any = planned_step
    assert jitted.jitted_fn.plan.gradients
    assert_same(
        jax.tree.map(jax.random.key_data, nnx.state(planned_net, nnx.RngKey)),
        jax.tree.map(jax.random.key_data, nnx.state(net, nnx.RngKey)),
    )
    kinds = (nnx.Param, nnx.BatchStat, nnx.RngCount)
    assert_same(nnx.state(planned_net, kinds), nnx.state(net, kinds))


@pytest.mark.parametrize("memory", [None, "100%"])
def test_changes_of_an_nnx_module_that_jax_jit_drops_are_named(memory):
    net = nnx.Linear(4, 4, rngs=nnx.Rngs(0))

    @fx.jit(memory=memory)
    def step(net, x):
        grads = nnx.grad(lambda net: jnp.mean(net(x) ** 2))(net)
        net.kernel[...] -= grads.kernel[...]

    with warns(LostUpdateWarning, "'net'", "step"):
        step(net, jnp.ones((2, 4)))

    @fx.jit(memory=memory)
    def evaluate(net, x, scale):
        scale["of"] = 2 * scale["of"]  # a dict of the call's own
        value, _ = jax.value_and_grad(lambda s: jnp.mean(net(x) * s))(scale["of"])
        return value

    evaluate(net, jnp.ones((2, 4)), {"of": jnp.float32(1)})  # warns of nothing

    def predict(net, kernel):
        net.kernel[...] = kernel  # a script's own jax.jit is to drop this
        return net(jnp.ones((2, 4)))

    with fx.planned(memory=memory):
        jitted = jax.jit(predict)
    jitted(net, jnp.zeros((4, 4)))  # warns of nothing


def test_a_mutable_array_is_updated_as_by_jax_jit():
    def step(w, x):
        value, grad = jax.value_and_grad(loss)(w[...], x)
        w[...] -= 0.1 * grad
        return value

    w, planned = jax.new_ref(WEIGHTS), jax.new_ref(WEIGHTS)
    ours = fx.jit(step, memory="70%")
    for _ in range(2):
        assert_same(ours(planned, ROWS), jax.jit(step)(w, ROWS))
    assert_same(planned[...], w[...])
    assert ours.plan.gradients
    assert ours.report().receipt.spends[0].measured == ours.plan.predicted


def test_equinox_modules_are_trained_as_by_filter_jit():
    def make():
        net = eqx.nn.MLP(64, 1, 64, 4, key=jax.random.key(0))

        @eqx.filter_value_and_grad
        def mean_square(net, x):
            return jnp.mean(jax.vmap(net)(x) ** 2)

        @eqx.filter_jit
        def step(net, x):
            value, grads = mean_square(net, x)
            return eqx.apply_updates(
                net, jax.tree.map(lambda g: -0.1 * g, grads)
            ), value

        return net, step

    net, step = make()
    with fx.planned(memory="60%"):
        planned_net, planned_step = make()
    for _ in range(3):
        (net, value), (planned_net, found) = (
            step(net, ROWS),
            planned_step(planned_net, ROWS),
        )
        np.testing.assert_allclose(found, value, rtol=1e-5)
    jitted: Any = planned_step
    assert jitted._cached.plan.gradients


@jax.tree_util.register_pytree_node_class
class Weights:
    """A net whose class accepts only arrays."""

    def __init__(self, w):
        self.w = jnp.asarray(w)

    def tree_flatten(self):
        return (self.w,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def test_a_class_that_accepts_only_arrays_is_planned():
    def step(net, x):
        grads = jax.grad(lambda net: loss(net.w, x))(net)
        return jax.tree.map(lambda p, g: p - 0.1 * g, net, grads)

    assert_planned(step, Weights(WEIGHTS), ROWS)


class _Rule:
    """Static data of a state, which is equal to itself only."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class _State:
    w: Any
    rule: Any = dataclasses.field(metadata={"static": True}, default_factory=_Rule)


def test_objects_that_a_function_makes_are_those_of_its_first_trace():
    def init(w):
        return _State(2 * w)

    shapes = jax.eval_shape(init, WEIGHTS)
    with warns(UnplannedWarning, "init", "no gradient"):
        state = fx.jit(init, memory="60%")(WEIGHTS)
    assert jax.tree.structure(state) == jax.tree.structure(shapes)
    anywhere = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    places = jax.tree.map(lambda _: anywhere, shapes)
    with warns(UnplannedWarning, "init", "no gradient"):
        fx.jit(init, memory="60%", out_shardings=places)(WEIGHTS)
