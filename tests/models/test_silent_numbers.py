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
            layer(ignore_index="x")
        assert layer(ignore_index=-100).ignore_index == -100
    for layer in (L1, L2):
        with refuses(ValueError, -1):
            layer(-1)
        with refuses(TypeError, "'x'"):
            layer("x")  # pyrefly: ignore[bad-argument-type]


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
        assert float(value.detach() if backend is TORCH else value) == pytest.approx(  # pyrefly: ignore[missing-attribute]
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
            layer.randomize_params(key)


# --- draws, masks and statistics ----------------------------------------------------


def half(backend, dtype):
    return type(backend)(dtype=dtype)


@both
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_draws_of_16_bits_are_spread_as_those_of_32(backend, dtype):
    b = half(backend, dtype)
    wide = lambda x: b.to_numpy(b.cast(x, "float32"))
    uniform, normal = wide(b.rand(20_000)), wide(b.randn(20_000))
    assert len(np.unique(uniform)) > 700
    assert 0 <= uniform.min() < uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.01
    assert abs(normal).max() > 3.3  # 3.9 or more in 999 of 1,000 such samples
    assert wide(b.rand(20_000, dtype=dtype)).max() < 1


@both
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_each_of_many_classes_is_drawn(backend, dtype):
    b = half(backend, dtype)
    shares = b.ones(1000) / 1000
    drawn = b.to_numpy(b.multinomial(shares, 20_000, replacement=True))
    assert len(np.unique(drawn)) == 1000
    assert abs(drawn.mean() - 499.5) < 10


@both
def test_multinomial_draws_without_replacement_as_torchs(backend):
    shares = backend.array(np.array([[0.0, 1, 2, 7], [4, 0, 1, 1]], "f4"))
    drawn = backend.to_numpy(backend.multinomial(shares, 3))
    assert [sorted(row) for row in drawn.tolist()] == [[1, 2, 3], [0, 2, 3]]
    many = backend.array(np.tile(np.array([1, 2, 7], "f4"), (20_000, 1)))
    first = backend.to_numpy(backend.multinomial(many, 2))[:, 0]
    np.testing.assert_allclose(np.bincount(first) / 20_000, [0.1, 0.2, 0.7], atol=0.02)
    with refuses(ValueError, 5):
        backend.multinomial(shares, 5)


@both
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_running_totals_of_16_bits_do_not_stop(backend, dtype):
    b = half(backend, dtype)
    total = b.to_numpy(b.cast(b.cumsum(b.ones(1000) / 10), "float32"))
    exact = np.cumsum(b.to_numpy(b.cast(b.ones(1000) / 10, "float32")))
    np.testing.assert_allclose(total, exact, 0.005)
    factors = b.to_numpy(b.cast(b.cumprod(b.ones(200) * 1.0078125), "float32"))
    np.testing.assert_allclose(factors, np.cumprod(np.full(200, 1.0078125)), 0.01)


@both
def test_a_mask_of_three_axes_is_of_the_batch(backend):
    generator = np.random.default_rng(0)
    q, k, v = (generator.normal(size=(2, 3, 2, 4)).astype("f4") for _ in range(3))
    mask = generator.random((2, 3, 3)) < 0.6
    run = lambda m: backend.to_numpy(
        backend.attention(*map(backend.array, (q, k, v)), backend.array(m))
    )
    np.testing.assert_array_equal(run(mask), run(mask[:, None]))
    with refuses(ValueError, (3, 3, 3), 2):
        run(np.ones((3, 3, 3), bool))


@both
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (models.BatchNorm(), (1, 4)),
        (models.BatchNorm(), (1, 1, 1, 4)),
        (models.InstanceNorm(), (3, 1, 4)),
        (models.GroupNorm(4), (3, 1, 4)),
    ],
)
def test_statistics_of_one_value_are_refused(backend, layer, shape):
    with refuses(ShapeError, shape):
        ml.compile(layer, backend, shapes={"input": shape})


@both
@pytest.mark.parametrize("name", ["weight", "pos_weight"])
def test_a_number_weighs_a_loss_as_an_array_does(backend, name):
    x, y = IOKey("x", shape=(3, 2)), IOKey("y", shape=(3, 2))
    loss = op("binary_cross_entropy")
    model = Model.create(
        number=loss(x, y, **{name: 2.5}),
        array=loss(x, y, **{name: np.full(2, 2.5, "f4")}),
    )
    data = {"x": X[0, :, :2], "y": (X[0, :, :2] > 4).astype("f4")}
    got = ml.compile(model, backend).evaluate({}, data)
    assert float(got["number"]) == pytest.approx(float(got["array"]), rel=1e-6)


@both
def test_a_number_is_no_loss_target_and_no_class_weights(backend):
    x = IOKey("x", shape=(3, 2))
    for layer, wires in (("mse", {"target": 0.0}), ("hinge", {"labels": 1.0})):
        with refuses(ShapeError, (3, 2)):
            ml.compile(Model.create(y=op(layer)(x, **wires)), backend)
    labels = IOKey("labels", shape=(3,), dtype="int32")
    with refuses(ShapeError, 2):
        loss = op("cross_entropy")(x, labels, weight=2.0)
        ml.compile(Model.create(y=loss), backend)


@both
def test_a_seed_is_a_key(backend):
    model = Model.create(y=op("dropout", rate=0.5)(IOKey("x", shape=(4, 50))))
    compiled = ml.compile(model, backend)
    run = lambda key: np.asarray(
        compiled.evaluate({}, {"x": np.ones((4, 50), "f4"), "key": key})["y"]
    )
    assert (run(3) == run(np.int32(3))).all()
    assert (run(3) != run(4)).any()


def test_flatten_merges_up_to_its_end_as_torchs():
    x = np.zeros((2, 3, 4, 5), "f4")
    for bounds in ((), (1, 2), (0, 1), (2,), (1, -2), (-2, -1), (0, -1)):
        compiled = ml.compile(models.Flatten(*bounds), JAX, shapes={"input": x.shape})
        got = compiled.evaluate({}, {"input": x})["output"]
        assert got.shape == torch.nn.Flatten(*bounds)(torch.tensor(x)).shape
