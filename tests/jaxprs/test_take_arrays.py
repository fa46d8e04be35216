"""`take_arrays`: a loss of modules as one of arrays."""

import inspect

import jax
import jax.numpy as jnp
import pytest

from frugax.jaxprs import take_arrays


def loss(model, x):
    return model["scale"] * model["act"](model["w"] * x)[model["count"]].sum()


MODEL = {"w": jnp.ones(3), "act": jnp.tanh, "count": jnp.arange(3), "scale": 2}


def test_arguments_that_jax_takes_stay_as_they_are():
    args = ({"w": jnp.ones(3), "rate": 0.5, "none": None}, {"labels": jnp.arange(3)}, 7)
    taken = take_arrays(loss, args)
    assert taken.loss is loss
    assert taken.args == args
    assert taken.key is None


def test_the_loss_of_arrays_is_the_same():
    taken = take_arrays(loss, (MODEL, 2.0), -2)
    assert taken.argnums == 0
    model, x, moved = taken.args
    assert model | {"w": None} == dict.fromkeys(MODEL)
    assert (x, [m.tolist() for m in moved]) == (2.0, [[0, 1, 2]])
    assert jax.jit(taken.loss)(*taken.args) == loss(MODEL, 2.0)
    assert inspect.signature(taken.loss) == inspect.signature(loss)


@pytest.mark.parametrize("other", [True, 1.0, jnp.tanh, {1}])
def test_other_leaves_have_another_key(other):
    key = lambda scale: take_arrays(loss, (MODEL | {"scale": scale}, 2.0)).key
    assert key(1) == key(1)
    assert key(1) != key(other)
    assert isinstance(hash(key(other)), int)
