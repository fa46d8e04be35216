"""Layers: shapes, gradients, settings, and numbers equal to torch.nn's."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax.models import JaxBackend, Layer, compile, layers
from frugax.models.graph import Primitive
from frugax.models.layers import (
    F1,
    GRU,
    L1,
    L2,
    LSTM,
    MAE,
    MLP,
    MSE,
    R2,
    RNN,
    Accuracy,
    AvgPool1D,
    AvgPool2D,
    BatchNorm,
    Bidirectional,
    BinaryCrossEntropy,
    Celu,
    Conv1D,
    Conv2D,
    ConvBlock,
    ConvNet,
    ConvTranspose1D,
    ConvTranspose2D,
    CosineDistance,
    CrossEntropy,
    Dropout,
    Elu,
    Embedding,
    FeedForward,
    Flatten,
    Gelu,
    GlobalAvgPool,
    GlobalMaxPool,
    Glu,
    GroupNorm,
    GRUCell,
    HardSigmoid,
    HardSwish,
    HardTanh,
    Hinge,
    Huber,
    InstanceNorm,
    KLDivergence,
    LayerNorm,
    LeakyRelu,
    LearnedPositions,
    Linear,
    LogSigmoid,
    LogSoftmax,
    LSTMCell,
    MaxPool1D,
    MaxPool2D,
    Mish,
    MultiHeadAttention,
    NegativeLogLikelihood,
    Perplexity,
    Precision,
    PRelu,
    Recall,
    RecurrentStack,
    Relu,
    Relu6,
    Repeat,
    Residual,
    ResidualBlock,
    ResidualMLP,
    RMSNorm,
    RNNCell,
    RotaryPositions,
    Selu,
    Sequential,
    Sigmoid,
    Silu,
    SinusoidalPositions,
    Softmax,
    Softplus,
    Softsign,
    SparseExperts,
    Swish,
    Tanh,
    TopKAccuracy,
    TransformerBlock,
    TransformerDecoder,
    TransformerEncoder,
    TransformerLM,
    UNet,
    UNetDown,
    UNetUp,
    Upsample,
)
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
    on(Linear(3), 2, 5, 4, to=(2, 5, 3)),
    on(Linear(3, bias=False, input_size=4, init="he"), 2, 4, to=(2, 3)),
    on(MLP(4, [5, 6], 3, activation="gelu"), 2, 4, to=(2, 3)),
    on(Sequential([Linear(3), Tanh(), LSTM(5), Linear(2)]), 2, 6, 4, to=(2, 6, 2)),
    on(Residual(Linear(4)), 2, 4),
    on(Residual(Sequential([LayerNorm(), Linear(4)])), 2, 4),
    on(ResidualBlock(4, 7), 2, 4),
    on(ResidualMLP(width=6, depth=2, classes=3, hidden=9), 2, 4, to=(2, 3)),
    on(ConvNet([4, 6], classes=3), 2, 8, 8, 3, to=(2, 3)),
    on(Conv1D(6, kernel=3, stride=2, groups=2), 2, 9, 4, to=(2, 5, 6)),
    on(Conv1D(6, kernel=3, dilation=2, padding="valid"), 2, 9, 4, to=(2, 5, 6)),
    on(Conv2D(6, kernel=(3, 5), bias=False), 2, 8, 7, 3, to=(2, 8, 7, 6)),
    on(Conv2D(6, padding=[[1, 0], 2], init="glorot"), 2, 8, 7, 3, to=(2, 7, 9, 6)),
    on(ConvTranspose1D(6, kernel=4, stride=2, groups=2), 2, 5, 4, to=(2, 10, 6)),
    on(
        ConvTranspose2D(6, stride=(2, 3), padding="valid"),
        2,
        5,
        4,
        3,
        to=(2, 11, 12, 6),
    ),
    on(
        ConvTranspose2D(6, stride=2, padding=1, output_padding=1),
        2,
        5,
        4,
        3,
        to=(2, 10, 8, 6),
    ),
    on(MaxPool1D(2), 2, 6, 3, to=(2, 3, 3)),
    on(MaxPool2D(3, stride=2, padding="same"), 2, 6, 5, 3, to=(2, 3, 3, 3)),
    on(AvgPool1D(2), 2, 6, 3, to=(2, 3, 3)),
    on(AvgPool2D((2, 3), padding=1, count_padding=True), 2, 6, 7, 3, to=(2, 4, 3, 3)),
    on(GlobalAvgPool(), 2, 6, 5, 3, to=(2, 3)),
    on(GlobalMaxPool(keepdims=True), 2, 6, 5, 3, to=(2, 1, 1, 3)),
    on(Upsample((2, 3)), 2, 6, 5, 3, to=(2, 12, 15, 3)),
    on(Flatten(), 2, 3, 4, 5, to=(2, 60)),
    on(ConvBlock(4, norm="instance"), 2, 6, 6, 3, to=(2, 6, 6, 4)),
    on(UNetDown(4, norm="none"), 2, 6, 6, 3, to=(2, 3, 3, 4)),
    Row(
        UNetUp(4),
        {"input": numbers(2, 3, 3, 8), "skip": numbers(2, 6, 6, 4)},
        (2, 6, 6, 4),
    ),
    on(UNet([2, 3], classes=2, norm="batch"), 2, 4, 4, 3, to=(2, 4, 4, 2)),
    on(LayerNorm(), 2, 5, 4),
    on(LayerNorm(bias=False), 2, 4),
    on(RMSNorm(), 2, 5, 4),
    on(GroupNorm(2), 2, 5, 4),
    on(InstanceNorm(), 2, 5, 6, 4),
    on(BatchNorm(), 6, 5, 4),
    on(BatchNorm(affine=False), 6, 4),
    on(Dropout(0.3), 6, 40),
    Row(Embedding(7, 4), {"input": labels(2, 5, below=7)}, (2, 5, 4)),
    on(LearnedPositions(9, offset=2), 2, 5, 4),
    on(SinusoidalPositions(), 2, 5, 4),
    on(RotaryPositions(), 2, 5, 3, 4),
    on(MultiHeadAttention(8, heads=4, kv_heads=2, rotary=True), 2, 5, 6, to=(2, 5, 8)),
    on(MultiHeadAttention(8, heads=2, causal=True, bias=False), 2, 5, 8),
    on(FeedForward(8, hidden=6, activation="silu", gated=True), 2, 5, 4, to=(2, 5, 8)),
    on(SparseExperts(4, chosen=2, hidden=6), 2, 5, 8),
    on(BLOCK, 2, 5, 8),
    on(TransformerBlock(8, 2, norm="rms", norm_first=False, bias=False), 2, 5, 8),
    on(TransformerEncoder(BLOCK, depth=1), 2, 5, 8),
    Row(
        TransformerDecoder(BLOCK, depth=1),
        {"input": numbers(2, 5, 8), "memory": numbers(2, 3, 6)},
        (2, 5, 8),
    ),
    *(
        Row(layer, {"input": labels(2, 5, below=7)}, (2, 5, 7))
        for layer in (
            TransformerLM(7, BLOCK, 1, length=9, dropout=0.1),
            TransformerLM(7, BLOCK, 1, positions="sinusoidal", tied=False),
            TransformerLM(7, BLOCK, 1, positions="rotary"),
        )
    ),
    on(RNN(5, activation="relu", bias=False), 2, 6, 4, to=(2, 6, 5)),
    on(LSTM(5), 2, 6, 4, to=(2, 6, 5)),
    on(GRU(5, reverse=True), 2, 6, 4, to=(2, 6, 5)),
    on(Bidirectional(GRU(5)), 2, 6, 4, to=(2, 6, 10)),
    on(RecurrentStack(LSTM(5), bidirectional=True), 2, 6, 4, to=(2, 6, 10)),
    step(RNNCell(5), "state"),
    step(LSTMCell(5), "state", "cell_state"),
    step(GRUCell(5, bias=False), "state"),
    on(PRelu(), 2, 4),
    on(PRelu(shared=True), 2, 4),
    on(Glu(), 2, 4, to=(2, 2)),
    *(
        on(activation, 3, 4)
        for activation in (
            *(Relu(), Relu6(), LeakyRelu(0.2), Elu(0.5), Celu(2.0), Selu(), Silu()),
            *(Swish(2.0), Gelu(), Gelu(approximate=True), Mish(), Sigmoid(), Tanh()),
            *(LogSigmoid(), HardSigmoid(), HardSwish(), HardTanh(), Softplus()),
            *(Softsign(), Softmax(axis=0), LogSoftmax()),
        )
    ),
    loss(MSE(), 3, 4),
    loss(MAE(), 3, 4),
    loss(Huber(delta=0.5), 3, 4),
    loss(Hinge(reduction="sum"), 3, 4),
    loss(CosineDistance(), 3, 4),
    loss(R2(), 3, 4),
    Row(KLDivergence(), {"input": numbers(3, 4), "target": SHARES}, ()),
    of_classes(CrossEntropy(label_smoothing=0.1)),
    of_classes(CrossEntropy(reduction="none"), (5,)),
    of_classes(NegativeLogLikelihood(ignore_index=3)),
    of_classes(Perplexity()),
    of_classes(Accuracy(), differentiable=False),
    of_classes(TopKAccuracy(k=2), differentiable=False),
    of_yes_and_no(BinaryCrossEntropy()),
    of_yes_and_no(Precision(), differentiable=False),
    of_yes_and_no(Recall(), differentiable=False),
    of_yes_and_no(F1(), differentiable=False),
    Row(L1(0.1), {"input": numbers(3, 4)}, ()),
    Row(L2(0.1), {"input": numbers(3, 4)}, ()),
    on(Repeat(Linear(4), depth=2), 2, 4),
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
