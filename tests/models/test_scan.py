"""The blocks of a `Repeat` as one loop: the same numbers, gradients and weights."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import frugax as ml
from frugax.errors import ShapeError
from frugax.models import (
    BatchNorm,
    Composite,
    Dropout,
    IOKey,
    Linear,
    Model,
    Relu,
    Repeat,
    ResidualMLP,
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


def chain(count, block: Callable[[], Any] = Block, **wires):
    repeated = Repeat(block(), count, name="block")
    return Model.create(y=repeated(IOKey("x", shape=("batch", 4)), **wires))


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
            return op("tanh")(Repeat(Block(), 3, name="inner")(input))

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


def test_blocks_that_change_their_shape_are_refused_as_a_loop():
    block = lambda: Sequential([Linear(5), Relu()])
    with refuses(ShapeError, "block_*", "scan_from=None"):
        compiled(chain(5, block))
    plain = compiled(chain(5, block), None)
    assert plain.shapes["block_0.linear_0.weight"] == (5, 4)
    assert plain.shapes["block_4.linear_0.weight"] == (5, 5)


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


def test_blocks_with_state_are_not_a_loop():
    made = compiled(chain(4, lambda: Sequential([Linear(4), BatchNorm()])))
    assert not loops(made)
    assert "block_3.batch_norm_0.running_mean" in made.data_keys


def test_few_blocks_are_not_a_loop():
    assert not loops(compiled(chain(2)))
    for count in (7, 8):
        assert bool(loops(ml.compile(chain(count), BACKEND))) == (count == 8)


def test_blocks_of_one_name_are_refused():
    x = IOKey("x", shape=("batch", 4))
    y = Repeat(Linear(4), 2, name="a")(Linear(4, name="a_1")(x))
    with refuses(ValueError, "a_1"):
        compiled(Model.create(y=y))


def test_a_number_as_the_first_input_is_not_a_loop():
    made = compiled(Model.create(y=Repeat(Model(op("exp")), 3)(0.5)))
    want = np.exp(np.exp(np.exp(0.5)))
    np.testing.assert_allclose(made.evaluate({}, {})["y"], want, rtol=1e-6)


@pytest.mark.parametrize(
    ("block", "depth", "error"),
    [(Linear, 3, TypeError), (Relu(), 0, ValueError), (Relu(), 2.0, TypeError)],
)
def test_settings_of_repeat_are_checked(block, depth, error):
    with pytest.raises(error):
        Repeat(block, depth)


def test_a_shared_weight_of_a_loop_is_refused_with_the_remedy():
    made = ResidualMLP(4, depth=9, classes=4)(IOKey("x", shape=("batch", 4)))
    tied = Linear(4, bias=False)(made, weight=weight_of(made, "block_4.up.weight"))
    model = Model.create(y=tied)
    with refuses(ValueError, "block_4.up.weight", "scan_from=None"):
        compiled(model)
    assert "residual_mlp_0.block_4.up.weight" in compiled(model, None).param_keys


def test_models_are_blocks_too():
    block = Model(Linear(4, name="a"), Relu())
    y = Repeat(block, 3)(IOKey("x", shape=("batch", 4)))
    looped = compiled(Model.create(y=y))
    assert [len(node.names) for node in loops(looped)] == [3]
    assert looped.weights["repeat_0_*.a.weight"].shape == (3, 4, 4)


# --- random numbers -----------------------------------------------------------------


def test_each_block_of_each_loop_draws_its_own_numbers():
    ones = IOKey("x", shape=(200,))

    def masks(count):
        block = Sequential([Dropout(0.5), Relu()])
        half = Repeat(block, count // 2)(ones)
        return Model.create(y=Repeat(block, count // 2)(half), half=half)

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
