"""Every key has one owner, however a model is wired."""

import numpy as np
import pytest

import frugax as ml
from frugax.models import (
    GRU,
    L2,
    Composite,
    IOKey,
    Linear,
    LSTMCell,
    Model,
    Tanh,
)
from refusals import refuses
from tiers import mostly_thorough

torch = pytest.importorskip("torch")

from models.random_wirings import ROWS, WIDTH, random_wiring  # noqa: E402


def _check_wiring(seed):
    wiring = random_wiring(seed)
    shapes = {"x": (ROWS, WIDTH)}
    rng = np.random.default_rng(seed)
    jax_model = ml.compile(
        wiring.model, ml.JaxBackend(dtype="float64"), shapes=shapes, jit=False
    )
    assert not jax_model.param_keys & jax_model.data_keys
    assert jax_model.data_keys == wiring.inputs
    assert jax_model.param_keys <= wiring.params
    params = {
        k: rng.normal(size=jax_model.shapes[k]) / 2
        for k in sorted(jax_model.param_keys)
    }
    data = {k: rng.normal(size=(ROWS, WIDTH)) for k in jax_model.data_keys}
    # The reference: torch's own functions and autograd, without frugax.
    leaves = {k: torch.tensor(v, requires_grad=True) for k, v in params.items()}
    arrays = {**leaves, **{k: torch.tensor(v) for k, v in data.items()}}
    wanted = {k: wiring.outputs[k](arrays) for k in jax_model.output_keys}
    cotangents = {k: rng.normal(size=tuple(v.shape)) for k, v in wanted.items()}
    loss = sum((v * torch.tensor(cotangents[k])).sum() for k, v in wanted.items())
    grads = torch.autograd.grad(
        loss, list(leaves.values()), allow_unused=True, materialize_grads=True
    )
    torch_model = ml.compile(
        wiring.model, ml.TorchBackend(dtype="float64"), shapes=shapes, jit=False
    )
    assert torch_model.param_keys == jax_model.param_keys
    for model in (jax_model, torch_model):
        outputs, gradients = model.evaluate(params, data, output_gradients=cotangents)
        assert set(gradients) == set(params)
        for key, value in wanted.items():
            np.testing.assert_allclose(outputs[key], value.detach(), 1e-9, 1e-9)
        for key, grad in zip(leaves, grads, strict=True):
            np.testing.assert_allclose(gradients[key], grad, 1e-8, 1e-9, err_msg=key)


@pytest.mark.parametrize(
    "seed", mostly_thorough(range(40), in_ci=lambda seed: seed < 10)
)
def test_a_random_wiring_equals_torch(seed):
    _check_wiring(seed)


@pytest.mark.thorough
@pytest.mark.parametrize("block", range(20))
def test_two_thousand_random_wirings_equal_torch(block):
    for seed in range(100 * block, 100 * block + 100):
        _check_wiring(seed)


def _ones(compiled, backend):
    return {k: backend.ones(compiled.shapes[k]) for k in compiled.param_keys}


@pytest.mark.parametrize("backend", [ml.JaxBackend(), ml.TorchBackend()])
@pytest.mark.parametrize("wrap", [str, IOKey])
def test_a_weight_wired_by_name_is_a_parameter_with_its_gradient(backend, wrap):
    model = Model()
    model |= Linear(4)(input="x", weight=wrap("w0"), bias="b0", output="y")
    compiled = ml.compile(model, backend, shapes={"x": (3, 5)})
    assert compiled.param_keys == {"w0", "b0"}
    assert compiled.data_keys == {"x"}
    _, gradients = compiled.evaluate(
        _ones(compiled, backend),
        {"x": backend.ones(3, 5)},
        output_gradients={"y": backend.ones(3, 4)},
    )
    assert (np.asarray(gradients["w0"]) == 3).all()
    assert (np.asarray(gradients["b0"]) == 3).all()


def test_a_named_weight_can_go_in_with_the_data():
    model = Model()
    model |= Linear(4)(input="x", weight="w0", output="y")
    compiled = ml.compile(
        model, ml.JaxBackend(), shapes={"x": (3, 5)}, data_keys=["w0"]
    )
    assert compiled.param_keys == {"linear_0.bias"}
    assert compiled.data_keys == {"x", "w0"}


def test_a_declared_shape_of_a_named_weight_is_enforced():
    model = Model()
    model |= Linear(4)(input="x", weight=IOKey("w0", shape=(4, 6)), output="y")
    with refuses(ml.errors.ShapeError, "(4, 5)", "(4, 6)"):
        ml.compile(model, ml.JaxBackend(), shapes={"x": (3, 5)})
    model = Model()
    model |= Linear(4)(input="x", weight="w0", output="y")
    with refuses(ml.errors.ShapeError, "(9, 5)"):
        ml.compile(model, ml.JaxBackend(), shapes={"x": (3, 5), "w0": (9, 5)})
    ml.compile(model, ml.JaxBackend(), shapes={"x": (3, 5), "w0": (4, 5)})


class SharedByAll(Composite):
    """A block that reads a weight of the whole model by its name."""

    def build(self, input):
        return Tanh()(Linear(3)(input, weight=IOKey("shared")))


def test_blocks_that_share_a_named_weight_are_not_stacked():
    model = Model(*[SharedByAll() for _ in range(9)])
    compiled = ml.compile(model, ml.JaxBackend(), shapes={"input": (2, 3)})
    assert compiled.shapes["shared"] == (3, 3)
    assert "shared" in compiled.param_keys
    assert len(compiled.param_keys) == 10


def test_a_penalty_may_read_a_named_weight_before_its_layer():
    model = Model()
    model |= L2(0.5)(input="w0", output="penalty")
    model |= Linear(4)(input="x", weight="w0", output="y")
    compiled = ml.compile(model, ml.JaxBackend(), shapes={"x": (3, 5)})
    assert compiled.shapes["w0"] == (4, 5)


@pytest.mark.parametrize(
    "name", ["rnn", "gru", "lstm", "rnn_cell", "gru_cell", "lstm_cell"]
)
def test_inputs_and_outputs_of_recurrent_ops_have_other_names(name):
    found = ml.models.ops.OPS[name]
    assert not set(found.inputs) & set(found.outputs)


def test_an_op_with_one_name_for_an_input_and_an_output_is_refused():
    with refuses(ValueError, "state"):
        ml.models.ops.op_from_function(
            "bad", lambda xp, state: state, outputs=("state",)
        )


def test_wiring_by_a_name_with_two_meanings_is_refused():
    inner = Model.create(x=IOKey("x") * 2)
    with refuses(ValueError, "x"):
        inner(x=IOKey("a"))


def test_a_layer_wired_by_names_is_a_connection_too():
    hidden = Linear(4)(input="x", output="h")
    model = Model()
    model |= hidden
    model |= (hidden + 1.0).named("z")
    compiled = ml.compile(model, ml.JaxBackend(), shapes={"x": (3, 5)})
    assert compiled.output_keys == ("z",)
    assert compiled.param_keys == {"linear_0.weight", "linear_0.bias"}


def test_a_call_that_is_added_twice_is_two_layers():
    call = Linear(4)()
    model = Model()
    model += call
    model += call
    compiled = ml.compile(model, ml.JaxBackend(), shapes={"input": (3, 5)})
    assert compiled.shapes["linear_0.weight"] == (4, 5)
    assert compiled.shapes["linear_1.weight"] == (4, 4)


def test_layers_of_several_outputs_are_added_by_any_of_them():
    model = Model()
    model |= GRU(4)(input="x", output="all", last_state="last")
    model |= LSTMCell(4)(input="z", state="last", cell_state="c", output="h")
    shapes = {"x": (2, 3, 5), "z": (2, 6), "c": (2, 4)}
    compiled = ml.compile(model, ml.JaxBackend(), shapes=shapes)
    assert compiled.data_keys == {"x", "z", "c"}
    assert set(compiled.output_keys) >= {"all", "h"}
