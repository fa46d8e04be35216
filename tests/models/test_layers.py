"""Layers: shapes, gradients, settings, and numbers equal to torch.nn's."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax import models as m
from frugax.models import JaxBackend, Layer, compile, layers
from frugax.models.graph import Primitive
from tiers import mostly_thorough

from .layer_cases import BLOCK, arrays, labels, numbers

pytestmark = pytest.mark.slow


@dataclasses.dataclass
class Row:
    """A layer, its inputs by port, and the shape of its output."""

    layer: Layer
    inputs: dict[str, np.ndarray]
    output: tuple[int, ...]
    differentiable: bool = True

    def __str__(self) -> str:
        return type(self.layer).__name__


def on(layer: Layer, *shape: int, to: tuple[int, ...] | None = None) -> Row:
    return Row(layer, {"input": numbers(*shape)}, shape if to is None else to)


def loss(layer: Layer, *shape: int) -> Row:
    data = {"input": numbers(*shape), "target": numbers(*shape, seed=1)}
    return Row(layer, data, ())


def of_classes(layer: Layer, to: tuple[int, ...] = (), **how: bool) -> Row:
    data = {"input": numbers(5, 4), "target": labels(5, below=4)}
    return Row(layer, data, to, **how)


def of_yes_and_no(layer: Layer, **how: bool) -> Row:
    data = {"input": numbers(5, 4), "target": labels(5, 4, below=2).astype("float32")}
    return Row(layer, data, (), **how)


def step(layer: Layer, *states: str) -> Row:
    data = {"input": numbers(3, 4)} | {k: numbers(3, 5, seed=2) for k in states}
    return Row(layer, data, (3, 5))


SHARES = np.full((3, 4), 0.25, "float32")


ROWS = [
    on(m.Linear(3), 2, 5, 4, to=(2, 5, 3)),
    on(m.Linear(3, bias=False, input_size=4, init="he"), 2, 4, to=(2, 3)),
    on(m.MLP(4, [5, 6], 3, activation="gelu"), 2, 4, to=(2, 3)),
    on(
        m.Sequential([m.Linear(3), m.Tanh(), m.LSTM(5), m.Linear(2)]),
        2,
        6,
        4,
        to=(2, 6, 2),
    ),
    on(m.Residual(m.Linear(4)), 2, 4),
    on(m.Residual(m.Sequential([m.LayerNorm(), m.Linear(4)])), 2, 4),
    on(m.ResidualBlock(4, 7), 2, 4),
    on(m.ResidualMLP(width=6, depth=2, classes=3, hidden=9), 2, 4, to=(2, 3)),
    on(m.ConvNet([4, 6], classes=3), 2, 8, 8, 3, to=(2, 3)),
    on(m.Conv1D(6, kernel=3, stride=2, groups=2), 2, 9, 4, to=(2, 5, 6)),
    on(m.Conv1D(6, kernel=3, dilation=2, padding="valid"), 2, 9, 4, to=(2, 5, 6)),
    on(m.Conv2D(6, kernel=(3, 5), bias=False), 2, 8, 7, 3, to=(2, 8, 7, 6)),
    on(m.Conv2D(6, padding=[[1, 0], 2], init="glorot"), 2, 8, 7, 3, to=(2, 7, 9, 6)),
    on(m.ConvTranspose1D(6, kernel=4, stride=2, groups=2), 2, 5, 4, to=(2, 10, 6)),
    on(
        m.ConvTranspose2D(6, stride=(2, 3), padding="valid"),
        2,
        5,
        4,
        3,
        to=(2, 11, 12, 6),
    ),
    on(
        m.ConvTranspose2D(6, stride=2, padding=1, output_padding=1),
        2,
        5,
        4,
        3,
        to=(2, 10, 8, 6),
    ),
    on(m.MaxPool1D(2), 2, 6, 3, to=(2, 3, 3)),
    on(m.MaxPool2D(3, stride=2, padding="same"), 2, 6, 5, 3, to=(2, 3, 3, 3)),
    on(m.AvgPool1D(2), 2, 6, 3, to=(2, 3, 3)),
    on(m.AvgPool2D((2, 3), padding=1, count_padding=True), 2, 6, 7, 3, to=(2, 4, 3, 3)),
    on(m.GlobalAvgPool(), 2, 6, 5, 3, to=(2, 3)),
    on(m.GlobalMaxPool(keepdims=True), 2, 6, 5, 3, to=(2, 1, 1, 3)),
    on(m.Upsample((2, 3)), 2, 6, 5, 3, to=(2, 12, 15, 3)),
    on(m.Flatten(), 2, 3, 4, 5, to=(2, 60)),
    on(m.ConvBlock(4, norm="instance"), 2, 6, 6, 3, to=(2, 6, 6, 4)),
    on(m.UNetDown(4, norm="none"), 2, 6, 6, 3, to=(2, 3, 3, 4)),
    Row(
        m.UNetUp(4),
        {"input": numbers(2, 3, 3, 8), "skip": numbers(2, 6, 6, 4)},
        (2, 6, 6, 4),
    ),
    on(m.UNet([2, 3], classes=2, norm="batch"), 2, 4, 4, 3, to=(2, 4, 4, 2)),
    on(m.LayerNorm(), 2, 5, 4),
    on(m.LayerNorm(bias=False), 2, 4),
    on(m.RMSNorm(), 2, 5, 4),
    on(m.GroupNorm(2), 2, 5, 4),
    on(m.InstanceNorm(), 2, 5, 6, 4),
    on(m.BatchNorm(), 6, 5, 4),
    on(m.BatchNorm(affine=False), 6, 4),
    on(m.Dropout(0.3), 6, 40),
    Row(m.Embedding(7, 4), {"input": labels(2, 5, below=7)}, (2, 5, 4)),
    on(m.LearnedPositions(9, offset=2), 2, 5, 4),
    on(m.SinusoidalPositions(), 2, 5, 4),
    on(m.RotaryPositions(), 2, 5, 3, 4),
    on(
        m.MultiHeadAttention(8, heads=4, kv_heads=2, rotary=True), 2, 5, 6, to=(2, 5, 8)
    ),
    on(m.MultiHeadAttention(8, heads=2, causal=True, bias=False), 2, 5, 8),
    on(
        m.FeedForward(8, hidden=6, activation="silu", gated=True), 2, 5, 4, to=(2, 5, 8)
    ),
    on(m.SparseExperts(4, chosen=2, hidden=6), 2, 5, 8),
    on(BLOCK, 2, 5, 8),
    on(m.TransformerBlock(8, 2, norm="rms", norm_first=False, bias=False), 2, 5, 8),
    on(m.TransformerEncoder(BLOCK, depth=1), 2, 5, 8),
    Row(
        m.TransformerDecoder(BLOCK, depth=1),
        {"input": numbers(2, 5, 8), "memory": numbers(2, 3, 6)},
        (2, 5, 8),
    ),
    *(
        Row(layer, {"input": labels(2, 5, below=7)}, (2, 5, 7))
        for layer in (
            m.TransformerLM(7, BLOCK, 1, length=9, dropout=0.1),
            m.TransformerLM(7, BLOCK, 1, positions="sinusoidal", tied=False),
            m.TransformerLM(7, BLOCK, 1, positions="rotary"),
        )
    ),
    on(m.RNN(5, activation="relu", bias=False), 2, 6, 4, to=(2, 6, 5)),
    on(m.LSTM(5), 2, 6, 4, to=(2, 6, 5)),
    on(m.GRU(5, reverse=True), 2, 6, 4, to=(2, 6, 5)),
    on(m.Bidirectional(m.GRU(5)), 2, 6, 4, to=(2, 6, 10)),
    on(m.RecurrentStack(m.LSTM(5), bidirectional=True), 2, 6, 4, to=(2, 6, 10)),
    step(m.RNNCell(5), "state"),
    step(m.LSTMCell(5), "state", "cell_state"),
    step(m.GRUCell(5, bias=False), "state"),
    on(m.PRelu(), 2, 4),
    on(m.PRelu(shared=True), 2, 4),
    on(m.Glu(), 2, 4, to=(2, 2)),
    *(
        on(activation, 3, 4)
        for activation in (
            *(
                m.Relu(),
                m.Relu6(),
                m.LeakyRelu(0.2),
                m.Elu(0.5),
                m.Celu(2.0),
                m.Selu(),
                m.Silu(),
            ),
            *(
                m.Swish(2.0),
                m.Gelu(),
                m.Gelu(approximate=True),
                m.Mish(),
                m.Sigmoid(),
                m.Tanh(),
            ),
            *(
                m.LogSigmoid(),
                m.HardSigmoid(),
                m.HardSwish(),
                m.HardTanh(),
                m.Softplus(),
            ),
            *(m.Softsign(), m.Softmax(axis=0), m.LogSoftmax()),
        )
    ),
    loss(m.MSE(), 3, 4),
    loss(m.MAE(), 3, 4),
    loss(m.Huber(delta=0.5), 3, 4),
    loss(m.Hinge(reduction="sum"), 3, 4),
    loss(m.CosineDistance(), 3, 4),
    loss(m.R2(), 3, 4),
    Row(m.KLDivergence(), {"input": numbers(3, 4), "target": SHARES}, ()),
    of_classes(m.CrossEntropy(label_smoothing=0.1)),
    of_classes(m.CrossEntropy(reduction="none"), (5,)),
    of_classes(m.NegativeLogLikelihood(ignore_index=3)),
    of_classes(m.Perplexity()),
    of_classes(m.Accuracy(), differentiable=False),
    of_classes(m.TopKAccuracy(k=2), differentiable=False),
    of_yes_and_no(m.BinaryCrossEntropy()),
    of_yes_and_no(m.Precision(), differentiable=False),
    of_yes_and_no(m.Recall(), differentiable=False),
    of_yes_and_no(m.F1(), differentiable=False),
    Row(m.L1(0.1), {"input": numbers(3, 4)}, ()),
    Row(m.L2(0.1), {"input": numbers(3, 4)}, ()),
    on(m.Repeat(m.Linear(4), depth=2), 2, 4),
]


def test_every_layer_has_a_row():
    # Its state has a row for each of the batch, so that cannot be free: test_decoding.
    own = {"CachedAttention"}
    assert {type(row.layer).__name__ for row in ROWS} | own == set(layers.__all__)


FIRST = {type(row.layer): i for i, row in reversed([*enumerate(ROWS)])}


def is_in_ci(row: Row) -> bool:
    """The first of its class, unless it is one op without weights: see test_ops."""
    is_op = isinstance(row.layer, Primitive) and not row.layer.weight_names
    return ROWS[FIRST[type(row.layer)]] is row and not is_op


@pytest.mark.parametrize("row", mostly_thorough(ROWS, in_ci=is_in_ci), ids=str)
def test_layers_give_their_shape_and_gradients(row: Row):
    shapes = {k: x.shape for k, x in row.inputs.items()}
    floats = [k for k, x in row.inputs.items() if x.dtype.kind == "f"]
    compiled = compile(row.layer, JaxBackend(), shapes=shapes, trainable_keys=floats)
    inputs = arrays(row.inputs) | compiled.initial_state()
    inputs["key"] = jax.random.key(0)
    # Not `randomize_params`, which would compile as much again as what is tested.
    params = {
        k: inputs[k] if k in floats else jnp.asarray(numbers(*compiled.shapes[k]))
        for k in compiled.param_keys
    }
    data = {k: v for k, v in inputs.items() if k in compiled.data_keys}
    name = compiled.output_keys[0]
    # Not all ones: of a softmax or a norm the sum never changes.
    pulled = {name: jnp.asarray(numbers(*row.output, seed=5))}
    outputs, gradients = compiled.evaluate(params, data, output_gradients=pulled)
    output = outputs[name]
    assert name == "output"
    assert output.shape == row.output == compiled.shapes[name]
    assert output.dtype == "float32"
    assert np.isfinite(output).all()
    assert set(gradients) == compiled.param_keys
    for key, gradient in gradients.items():
        assert np.isfinite(gradient).all(), key
        assert gradient.shape == params[key].shape
        if row.differentiable:
            # A bias of keys moves all scores of a query alike, and softmax not at all;
            # a batch norm removes a term that is the same for all examples.
            assert np.any(np.asarray(gradient)) or key.endswith("key.bias"), key


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_batch_may_be_free(row: Row):
    shapes = {k: ("batch", *x.shape[1:]) for k, x in row.inputs.items()}
    compiled = compile(row.layer, JaxBackend(), shapes=shapes)
    found = compiled.shapes[compiled.output_keys[0]]
    if row.output:
        assert str(found[0]) == "batch"
    assert found[1:] == row.output[1:]


def test_use_bias_false_leaves_out_the_bias():
    for row in ROWS:
        if getattr(row.layer, "bias", True) is False:
            shapes = {k: x.shape for k, x in row.inputs.items()}
            keys = compile(row.layer, JaxBackend(), shapes=shapes).param_keys
            assert not [key for key in keys if "bias" in key], row
