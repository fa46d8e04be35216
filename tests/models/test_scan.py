"""Equal blocks in a row as one loop: the same numbers, gradients and weights."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import frugax as ml
from frugax.models import (
    BatchNorm,
    Composite,
    Dropout,
    IOKey,
    Linear,
    Model,
    Relu,
    Sequential,
    op,
    weight_of,
)
from frugax.models.graph import LAYERS, LoopNode, OpNode
from refusals import refuses

BACKEND = ml.JaxBackend()
X = np.linspace(-1, 1, 12, dtype="float32").reshape(3, 4)


@dataclasses.dataclass(frozen=True)
class Block(Composite):
    width: int = 4

    def build(self, input, shift=None):
        hidden = op("tanh")(Linear(self.width, name="up")(input))
        made = input + Linear(self.width, bias=False, name="down")(hidden)
        return made if shift is None else made + shift


LAYERS.pop("Block")


def chain(count, block: Callable[[], Any] = Block, *, names=True, **wires):
    y = IOKey("x", shape=("batch", 4))
    for i in range(count):
        y = dataclasses.replace(block(), name=f"block_{i}" if names else None)(
            y, **wires
        )
    return Model.create(y=y)


def compiled(model, scan_from: int | None = 3, **how):
    return ml.compile(model, BACKEND, scan_from=scan_from, **how)


def loops(model):
    return [node for node in model.graph.nodes if isinstance(node, LoopNode)]


def both(model, **how):
    """Looped and not, with the same parameters."""
    looped, plain = compiled(model, **how), compiled(model, None, **how)
    params = looped.randomize_params(0)
    return looped, plain, params, looped.unstack_params(params)


def close(a, b):
    assert set(a) == set(b)
    for key in a:
        np.testing.assert_allclose(a[key], b[key], rtol=2e-5, atol=2e-6, err_msg=key)


def test_values_and_gradients_equal_those_of_unrolled_blocks():
    looped, plain, params, flat = both(chain(5))
    assert [len(node.names) for node in loops(looped)] == [5]
    assert not loops(plain)
    assert set(flat) == set(plain.param_keys)
    data, seed = {"x": jnp.asarray(X)}, {"y": jnp.asarray(X * 2)}
    outputs, grads = looped.evaluate(params, data, seed)
    want, want_grads = plain.evaluate(flat, data, seed)
    close(outputs, want)
    close(looped.unstack_params(grads), want_grads)


def test_weights_are_stacked_and_each_block_has_its_own_numbers():
    looped, _, params, flat = both(chain(5))
    assert {k: v.shape for k, v in params.items()} == {
        "block_*.up.weight": (5, 4, 4),
        "block_*.up.bias": (5, 4),
        "block_*.down.weight": (5, 4, 4),
    }
    assert looped.shapes["block_*.up.weight"] == (5, 4, 4)
    ups = [np.asarray(flat[f"block_{i}.up.weight"]) for i in range(5)]
    assert len({up.tobytes() for up in ups}) == 5
    assert 0.1 < np.std(ups[0]) / np.std(ups[4]) < 10
    assert np.std(ups) == pytest.approx((2 / 8) ** 0.5, rel=0.3)  # Glorot's, of a block


@pytest.mark.parametrize("to", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_flat_and_stacked_are_inverse(to):
    looped, _, params, _ = both(chain(3))
    params = {k: to(v) for k, v in params.items()}
    flat = looped.unstack_params(params)
    assert all(type(v) is type(to(X)) for v in flat.values())
    back = looped.stack_params(flat)
    assert set(back) == set(params)
    for key, value in params.items():
        assert type(back[key]) is type(value)
        np.testing.assert_array_equal(back[key], value)
    del flat["block_1.up.bias"]
    with refuses(ValueError, "block_1.up.bias"):
        looped.stack_params(flat)


def test_weights_of_single_blocks_are_refused_with_the_call_that_stacks_them():
    looped, _, _, flat = both(chain(3))
    with refuses(ValueError, "stack_params", "(params)"):
        looped.evaluate(flat, {"x": X})


def test_loops_in_loops():
    @dataclasses.dataclass(frozen=True)
    class Outer(Composite):
        def build(self, input):
            for i in range(3):
                input = Block(name=f"inner_{i}")(input)
            return op("tanh")(input)

    looped, plain, params, flat = both(chain(4, Outer))
    assert params["block_*.inner_*.up.bias"].shape == (4, 3, 4)
    assert set(flat) == set(plain.param_keys)
    close(looped.stack_params(flat), params)
    np.testing.assert_array_equal(
        flat["block_2.inner_1.up.weight"], params["block_*.inner_*.up.weight"][2, 1]
    )
    data = {"x": jnp.asarray(X)}
    close(looped.evaluate(params, data), plain.evaluate(flat, data))
    LAYERS.pop("Outer")


def test_a_first_block_of_another_shape_stays_out_of_the_loop():
    block = lambda: Sequential([Linear(5), Relu()])
    looped, plain, params, flat = both(chain(5, block))
    assert params["block_0.linear_0.weight"].shape == (5, 4)
    assert params["block_1-block_4*.linear_0.weight"].shape == (4, 5, 5)
    assert set(flat) == set(plain.param_keys)
    data = {"x": jnp.asarray(X)}
    close(looped.evaluate(params, data), plain.evaluate(flat, data))


def test_blocks_of_changing_shape_are_not_a_loop():
    half = Sequential([op("getitem", index=(("slice", None, None, 2),)), Relu()])
    y = IOKey("x", shape=(64, 2))
    for _ in range(5):
        y = half(y)
    looped = compiled(Model.create(y=y))
    assert not loops(looped)
    assert looped.shapes["y"] == (2, 2)


def test_inputs_shared_by_all_blocks_enter_the_loop():
    shift = op("tanh")(IOKey("shift", shape=(4,)))
    looped, plain, params, flat = both(chain(4, shift=shift))
    assert len(loops(looped)) == 1
    data = {"x": jnp.asarray(X), "shift": jnp.arange(4.0)}
    close(looped.evaluate(params, data), plain.evaluate(flat, data))
    for constant in (0.5, np.arange(4, dtype="float32")):
        looped, plain, params, flat = both(chain(4, shift=constant))
        assert len(loops(looped)) == 1
        data = {"x": jnp.asarray(X)}
        close(looped.evaluate(params, data), plain.evaluate(flat, data))


def test_a_number_shared_by_blocks_keeps_a_narrow_dtype():
    half = ml.JaxBackend(dtype=ml.bfloat16)
    made = ml.compile(chain(3, shift=0.5), half, scan_from=3)
    assert made.graph.specs[made.graph.outputs["y"]].dtype == ml.bfloat16
    assert loops(made)


def named_between():
    y = IOKey("x", shape=("batch", 4))
    for i in range(4):
        y = Block()(y)
        y = y.named("half") if i == 1 else y
    return Model.create(y=y)


def read_twice():
    y = first = IOKey("x", shape=("batch", 4))
    for i in range(4):
        y = Block()(y)
        first = y if i == 1 else first
    return Model.create(y=y + first)


def with_state():
    block = Sequential([Linear(4), BatchNorm()])
    y = IOKey("x", shape=("batch", 4))
    for _ in range(4):
        y = block(y)
    return Model.create(y=y)


def other_settings():
    y = IOKey("x", shape=("batch", 4))
    for i in range(4):
        y = Sequential([Linear(4, bias=i % 2 == 0), Relu()])(y)
    return Model.create(y=y)


@pytest.mark.parametrize(
    "make", [named_between, read_twice, with_state, other_settings]
)
def test_unequal_blocks_are_not_a_loop(make):
    assert not loops(compiled(make()))


def test_a_block_whose_weight_is_shared_stays_out():
    y, made = IOKey("x", shape=("batch", 4)), []
    for i in range(9):
        y = Block(name=f"block_{i}")(y)
        made.append(y)
    head = Linear(4, bias=False)(y, weight=weight_of(made[4], "down.weight"))
    looped, plain, params, flat = both(Model.create(y=head))
    assert [len(node.names) for node in loops(looped)] == [4, 4]
    assert {"block_4.down.weight", "block_0-block_3*.up.bias"} <= set(params)
    assert set(flat) == set(plain.param_keys)
    data = {"x": jnp.asarray(X)}
    close(looped.evaluate(params, data), plain.evaluate(flat, data))


def test_models_are_blocks_too():
    y = IOKey("x", shape=("batch", 4))
    for _ in range(3):
        y = Model(Linear(4, name="a"), Relu())(y)
    looped = compiled(Model.create(y=y))
    assert [len(node.names) for node in loops(looped)] == [3]
    assert looped.weights["model_*.a.weight"].shape == (3, 4, 4)


# --- random numbers -----------------------------------------------------------------


def test_each_block_of_each_loop_draws_its_own_numbers():
    ones = IOKey("x", shape=(200,))

    def masks(count):
        y, seen = ones, []
        for i in range(count):
            block = Sequential([Dropout(0.5), Relu()], name=f"{'ab'[i // 3]}_{i}")
            y = block(y)
            seen.append(y)
            y = y * 1.0 if i == 2 else y  # two loops of three
        return Model.create(y=y, half=seen[2])

    looped = compiled(masks(6))
    assert [len(node.names) for node in loops(looped)] == [3, 3]
    data = {"x": jnp.ones(200), "key": jax.random.key(0)}
    made = looped.evaluate({}, data)
    # Kept by three independent draws, then by six: an eighth, then a 64th.
    assert 10 <= int((made["half"] > 0).sum()) <= 45
    assert int((made["y"] > 0).sum()) <= 12
    again = looped.evaluate({}, data)
    np.testing.assert_array_equal(made["y"], again["y"])
    other = looped.evaluate({}, data | {"key": jax.random.key(1)})
    assert (made["half"] != other["half"]).any()


def test_inference_needs_no_key():
    block = lambda: Sequential([Linear(4), Dropout(0.5)])
    looped = compiled(chain(4, block), inference=True)
    assert looped.data_keys == {"x"}
    assert len(loops(looped)) == 1


# --- how many blocks cost -----------------------------------------------------------


def test_a_looped_program_does_not_grow_with_its_blocks():
    def size(blocks):
        made = compiled(chain(blocks))
        params = made.randomize_params(0)
        return len(jax.make_jaxpr(made.pure)(params, {"x": X}).jaxpr.eqns), len(
            [n for n in made.graph.walk() if isinstance(n, OpNode)]
        )

    assert size(4) == size(40)
