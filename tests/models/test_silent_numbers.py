"""Calls that gave wrong numbers without an error, found by users of torch and flax."""

import numpy as np
import pytest

import frugax as ml
from frugax import models
from frugax.errors import ShapeError
from frugax.models import (
    GRU,
    L1,
    L2,
    LSTM,
    RNN,
    CrossEntropy,
    Glu,
    IOKey,
    Model,
    NegativeLogLikelihood,
    Relu,
    TransformerBlock,
    op,
)
from refusals import refuses

torch = pytest.importorskip("torch")
JAX, TORCH = ml.JaxBackend(), ml.TorchBackend()
both = pytest.mark.parametrize("backend", [JAX, TORCH], ids=["jax", "torch"])
X = np.arange(24, dtype="f4").reshape(2, 3, 4)


@both
@pytest.mark.parametrize("axis", [3, 4, -4, (0, 3)])
@pytest.mark.parametrize("name", ["sum", "mean", "max", "flip", "std", "logsumexp"])
def test_an_axis_that_is_not_there_is_refused(backend, name, axis):
    with refuses(ValueError, name):
        getattr(backend, name)(backend.array(X), axis=axis)


@both
def test_ops_that_cut_or_add_axes_refuse_a_wrong_one(backend):
    x, rows = backend.array(X), backend.array(np.array([0, 1]))
    for call in (
        lambda: backend.take(x, rows, axis=5),
        lambda: backend.split(x, 2, axis=5),
        lambda: backend.expand_dims(x, axis=4),
        lambda: backend.glu(x, axis=-4),
        lambda: ml.compile(Glu(axis=3), backend, shapes={"input": X.shape}),
    ):
        with refuses((ShapeError, ValueError)):
            call()
    with refuses(ValueError, "(1, -2)", "axis"):
        backend.prod(x, axis=(1, -2))
    with refuses(TypeError, "axis", "True"):
        backend.sum(x, axis=True)
    assert backend.expand_dims(x, axis=-4).shape == (1, 2, 3, 4)
    assert backend.stack([x, x], axis=3).shape == (2, 3, 4, 2)
    np.testing.assert_array_equal(
        np.asarray(backend.roll(x, (1, 2), axis=(0, 0))), np.roll(X, (1, 2), (0, 0))
    )


@both
def test_an_entry_that_is_not_there_is_refused_where_the_length_is_known(backend):
    for at in (6, -7):
        model = Model.create(output=IOKey("x")[:, at])
        with refuses(ShapeError, at):
            ml.compile(model, backend, shapes={"x": ["batch", 6, 8]})
    model = Model.create(output=IOKey("x")[..., -1, None, 0])
    assert ml.compile(model, backend, shapes={"x": (2, 6, 8)}).shapes["output"] == (
        2,
        1,
    )


@both
def test_a_position_must_be_an_integer_and_one_below_0_gives_nan(backend):
    block = TransformerBlock(8, heads=2, causal=True, rotary=True, cache_length=4)
    step = ml.compile(block, backend, shapes={"input": (1, 1, 8)})
    params, state = step.randomize_params(0), step.initial_state()
    data = {"input": backend.ones(1, 1, 8), **state}
    position = lambda n, dtype: {**data, "position": backend.array(np.array(n, dtype))}
    with refuses(ShapeError, "int32"):
        step.evaluate(params, position(1.5, "f4"))
    outputs = step.evaluate(params, position(-1, "i4"))
    assert np.isnan(np.asarray(outputs["output"])).all()
    outputs = step.evaluate(params, position(3, "i4"))
    assert np.isfinite(np.asarray(outputs["output"])).all()


@both
def test_a_mask_of_integers_is_refused(backend):
    x = backend.ones(1, 4, 2, 8)
    mask = np.tril(np.ones((4, 4), "i4"))
    with refuses(ValueError, 0):
        backend.attention(x, x, x, backend.array(mask))
    backend.attention(x, x, x, backend.array(mask != 0))


@both
@pytest.mark.parametrize("layer", [CrossEntropy, NegativeLogLikelihood])
def test_labels_must_be_integers(backend, layer):
    loss = ml.compile(layer(), backend, shapes={"input": (2, 3), "target": (2,)})
    data = {"input": backend.ones(2, 3), "target": backend.array(np.zeros(2, "f4"))}
    with refuses(ShapeError, "int32"):
        loss.evaluate({}, data)


def test_settings_of_losses_are_checked_where_they_are_written():
    for layer in (CrossEntropy, NegativeLogLikelihood):
        with refuses(TypeError, "ignore_index"):
            layer(ignore_index="x")  # pyright: ignore[reportArgumentType]
        assert layer(ignore_index=-100).ignore_index == -100
    for layer in (L1, L2):
        with refuses(ValueError, -1):
            layer(-1)
        with refuses(ValueError, "'x'"):
            layer("x")  # pyright: ignore[reportArgumentType]


def test_the_row_of_padding_is_not_trained_as_in_torch():
    module = torch.nn.Embedding(5, 3, padding_idx=1)
    with torch.no_grad():
        module.weight[1] = 7.0
    tokens = torch.tensor([[0, 1, 1, 4]])
    imported = models.from_torch(module, (tokens,))
    (key,) = imported.shapes
    wanted = module(tokens)
    total = (wanted.detach() ** 2).sum().item()
    (wanted**2).sum().backward()
    for backend in (JAX, TORCH):
        compiled = ml.compile(imported.model, backend)
        params = {k: backend.array(v) for k, v in imported.params.items()}
        data = {key: backend.array(tokens.numpy().astype("i4"))}
        loss = lambda outputs, _: (outputs["output"] ** 2).sum()
        value, gradients = compiled.value_and_grad(params, data, loss)
        assert float(value.detach() if backend is TORCH else value) == pytest.approx(  # pyright: ignore[reportAttributeAccessIssue]
            total
        )
        np.testing.assert_allclose(
            np.asarray(gradients["weight"]), module.weight.grad.numpy(), atol=1e-5
        )


@both
@pytest.mark.parametrize("layer", [RNN(6), LSTM(6), GRU(6)], ids=["rnn", "lstm", "gru"])
@pytest.mark.parametrize("shape", [(1, 6), (4, 6), (3, 5), (1, 3, 6)])
def test_a_state_of_another_shape_is_refused(backend, layer, shape):
    model = Model.create(output=layer(IOKey("x"), state=IOKey("h"))[0])
    with refuses(ShapeError, "float32"):
        ml.compile(model, backend, shapes={"x": (3, 7, 5), "h": shape})


def test_a_wrong_argument_is_named_with_its_remedy():
    x = IOKey("x", shape=("batch", 4))
    with refuses(TypeError, "sum", "axis"):
        op("sum")(x, axis=1)
    with refuses(TypeError):
        x.reshape(x.shape[0], x.shape[1] / 2, 2)
    module = torch.nn.Linear(4, 2)
    with refuses(TypeError, "(x,)"):
        models.from_torch(module, torch.ones(1, 4))
    with refuses(TypeError, "torch.nn.Module"):
        models.from_torch(torch.nn.Linear, (torch.ones(1, 4),))
    imported = models.from_torch(module, (torch.ones(1, 4),))
    assert "2 arrays of 10 numbers" in repr(imported)
    assert len(repr(imported)) < 300


def test_gradients_and_keys_of_another_type_are_refused():
    # In torch: the tests check the types of JAX's signatures before the code does.
    layer = ml.compile(Relu(), TORCH, shapes={"input": (2, 3)})
    ones = TORCH.ones(2, 3)
    with refuses(TypeError, "output_gradients"):
        layer.evaluate({}, {"input": ones}, output_gradients=ones)
    for key in ("a", 1.5):
        with refuses(TypeError, key):
            layer.randomize_params(key)  # pyright: ignore[reportArgumentType]
