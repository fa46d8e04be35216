"""Layers: shapes, gradients, settings, and numbers equal to torch.nn's."""

import dataclasses
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax.errors import ShapeError
from frugax.models import IOKey, JaxBackend, Layer, Model, compile, layers, weight_of
from frugax.models.graph import Repeat
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
    Relu,
    Relu6,
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
from frugax.models.layers._weightless import Weightless
from frugax.models.ops import OPS, REQUIRED

pytestmark = pytest.mark.slow


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng([seed, *shape]).normal(size=shape)
    return drawn.astype("float32")


def labels(*shape: int, below: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, below, size=shape).astype("int32")


@dataclasses.dataclass
class Row:
    """A layer, what goes in by port, and the shape that comes out."""

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


BLOCK = TransformerBlock(8, heads=2, dropout=0.1)
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
]


def run(
    layer: Layer,
    params: dict[str, Any] | None = None,
    *,
    seed: int = 0,
    inference: bool = False,
    scan_from: int | None = 8,
    **inputs: Any,
) -> dict[str, np.ndarray]:
    """Compile for these inputs and evaluate once."""
    shapes = {k: x.shape for k, x in inputs.items()}
    compiled = compile(
        layer, JaxBackend(), shapes=shapes, inference=inference, scan_from=scan_from
    )
    if params is None:
        params = compiled.randomize_params(0)
    data = {**inputs, **compiled.initial_state()}
    if "key" in compiled.data_keys:
        data["key"] = jax.random.key(seed)
    return compiled.evaluate(arrays(params), arrays(data))


def arrays(values: dict[str, Any]) -> dict[str, jax.Array]:
    return {
        k: jnp.asarray(v) if isinstance(v, np.ndarray) else v for k, v in values.items()
    }


def close(got: Any, wanted: Any, tolerance: float = 2e-5) -> None:
    """Equal but for what another order of float32 sums makes."""
    if hasattr(wanted, "detach"):
        wanted = wanted.detach().numpy()
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=tolerance, atol=tolerance)


# --- the table ------------------------------------------------------------------


def test_every_layer_has_a_row():
    assert {type(row.layer).__name__ for row in ROWS} == set(layers.__all__)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_layers_give_their_shape_and_gradients(row: Row):
    shapes = {k: x.shape for k, x in row.inputs.items()}
    floats = [k for k, x in row.inputs.items() if x.dtype.kind == "f"]
    compiled = compile(row.layer, JaxBackend(), shapes=shapes, trainable_keys=floats)
    weights = compiled.randomize_params(0)
    inputs = arrays(row.inputs) | compiled.initial_state()
    inputs["key"] = jax.random.key(0)
    params = {k: inputs[k] for k in floats} | weights
    params = {k: v for k, v in params.items() if k in compiled.param_keys}
    data = {k: v for k, v in inputs.items() if k in compiled.data_keys}
    name = compiled.output_keys[0]
    # Not all ones: of a softmax or a norm the sum never changes.
    pulled = {name: jnp.asarray(numbers(*row.output, seed=5))}
    outputs, gradients = compiled.evaluate(params, data, output_gradients=pulled)
    output = outputs[name]
    assert name == "output"
    assert output.shape == row.output == compiled.shapes[name]
    assert output.dtype == "float32"
    assert jnp.isfinite(output).all()
    assert set(gradients) == compiled.param_keys
    for key, gradient in gradients.items():
        assert jnp.isfinite(gradient).all(), key
        assert gradient.shape == params[key].shape
        if row.differentiable:
            # A bias of keys moves all scores of a query alike, and softmax not at all;
            # a batch norm takes away what is the same for all examples.
            assert jnp.any(gradient != 0) or key.endswith("key.bias"), key


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_batch_may_be_free(row: Row):
    shapes = {k: ("batch", *x.shape[1:]) for k, x in row.inputs.items()}
    compiled = compile(row.layer, JaxBackend(), shapes=shapes)
    found = compiled.shapes[compiled.output_keys[0]]
    if row.output:
        assert str(found[0]) == "batch"
    assert found[1:] == row.output[1:]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_settings_are_plain_values(row: Row):
    def plain(value: Any) -> Any:
        if isinstance(value, Layer):
            own = dataclasses.fields(value)
            return {f.name: plain(getattr(value, f.name)) for f in own}
        return list(map(plain, value)) if isinstance(value, tuple) else value

    described = plain(row.layer)
    assert json.loads(json.dumps(described)) == described
    assert dataclasses.replace(row.layer) == row.layer
    hash(row.layer)


def test_layers_without_a_bias_have_none():
    for row in ROWS:
        if getattr(row.layer, "bias", True) is False:
            shapes = {k: x.shape for k, x in row.inputs.items()}
            keys = compile(row.layer, JaxBackend(), shapes=shapes).param_keys
            assert not [key for key in keys if "bias" in key], row


def test_one_op_layers_have_the_ops_attributes_and_defaults():
    for layer in (row.layer for row in ROWS if isinstance(row.layer, Weightless)):
        attributes = OPS[layer.op].attributes
        fields = {f.name: f for f in dataclasses.fields(layer) if f.name != "name"}
        # Dropout's own `inference` is what `compile` is told.
        assert set(attributes) - set(fields) <= {"inference"}, layer
        for name, field in fields.items():
            own = isinstance(layer, Flatten) and name == "start"  # the batch stays
            if attributes[name] is not REQUIRED and not own:
                assert field.default == attributes[name], (layer, name)


# --- bad settings ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Linear(0), r"Linear.dimension must be >= 1, got 0"),
        (lambda: MLP(4, [0], 2), r"must be >= 1, got 0"),
        (lambda: Sequential([]), r"Sequential.layers is empty"),
        (
            lambda: Conv2D(4, kernel=0),
            r"Conv2D.kernel must be a whole number >= 1 or 2",
        ),
        (lambda: Conv2D(4, kernel=(3, 3, 3)), r"Conv2D.kernel .* got \(3, 3, 3\)"),
        (lambda: Conv2D(4, stride=-1), r"Conv2D.stride"),
        (lambda: Conv2D(4, padding="full"), r'Conv2D.padding must be "same", "valid"'),
        (lambda: Conv2D(4, padding=-1), r"Conv2D.padding"),
        (lambda: Conv2D(4, padding=(1, -1)), r"Conv2D.padding"),
        (
            lambda: Conv2D(4, groups=3),
            r"groups=3 does not divide Conv2D.channels=4|groups",
        ),
        (lambda: ConvTranspose1D(4, output_padding=-1), r"output_padding must .* >= 0"),
        (lambda: MaxPool2D(0), r"MaxPool2D.window"),
        (lambda: Upsample(0), r"Upsample.scale"),
        (lambda: LayerNorm(epsilon=0.0), r"LayerNorm.epsilon must be > 0, got 0.0"),
        (lambda: GroupNorm(0), r"GroupNorm.groups must be >= 1"),
        (lambda: BatchNorm(momentum=1.5), r"BatchNorm.momentum must be in \[0, 1\]"),
        (lambda: Dropout(1.5), r"Dropout.rate must be in \[0, 1\], got 1.5"),
        (lambda: Dropout(-0.1), r"Dropout.rate must be in \[0, 1\]"),
        (lambda: Embedding(0, 4), r"Embedding.vocabulary must be >= 1"),
        (lambda: LearnedPositions(4, offset=-1), r"offset must be >= 0, got -1"),
        (
            lambda: MultiHeadAttention(64, heads=7),
            r"MultiHeadAttention.heads=7 does not divide dimension=64; .* 4, 8",
        ),
        (lambda: MultiHeadAttention(64, 8, kv_heads=3), r"kv_heads=3 does not divide"),
        (lambda: MultiHeadAttention(6, 2, rotary=True), r"even number of features"),
        (
            lambda: TransformerBlock(64, heads=7),
            r"heads=7 does not divide dimension=64",
        ),
        (lambda: TransformerBlock(64, 8, dropout=2.0), r"dropout must be in \[0, 1\]"),
        (lambda: TransformerEncoder(BLOCK, depth=-1), r"depth must be >= 0, got -1"),
        (lambda: TransformerLM(7, BLOCK, 2), r"TransformerLM.length must be given"),
        (lambda: RNN(0), r"RNN.hidden must be >= 1"),
        (lambda: ResidualMLP(4, -1, 2), r"ResidualMLP.depth must be >= 0, got -1"),
        (lambda: ConvNet([], 2), r"ConvNet.channels must be whole numbers >= 1"),
        (lambda: UNet([4, 0], 2), r"UNet.channels must be whole numbers >= 1"),
        (lambda: Celu(0.0), r"Celu.alpha must be > 0"),
        (lambda: Huber(delta=0.0), r"Huber.delta must be > 0"),
        (lambda: CrossEntropy(label_smoothing=2.0), r"label_smoothing must be in"),
        (lambda: TopKAccuracy(k=0), r"TopKAccuracy.k must be >= 1"),
    ],
)
def test_bad_settings_are_refused_where_they_are_written(make: Any, words: str):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_word_that_is_none_of_a_few_is_refused():
    # TypeError: in these tests the types of arguments are looked at before the layer.
    with pytest.raises((ValueError, TypeError), match="init"):
        Linear(3, init="xavier")  # pyright: ignore[reportArgumentType]
    layer = Linear(3)
    object.__setattr__(layer, "init", "xavier")
    words = "Linear.init must be one of 'he', 'glorot', got 'xavier'"
    with pytest.raises(ValueError, match=words):
        layer.__post_init__()


@pytest.mark.parametrize(
    ("layer", "shape", "words"),
    [
        (Linear(3, input_size=4), (2, 5), "last axis must have length 4"),
        (Linear(3), (), "at least one axis"),
        (Conv2D(3), (2, 5, 4), r"needs \(batch, height, width, channels\)"),
        (Conv1D(4, groups=2), (2, 5, 3), "groups=2 must divide its 3 channels"),
        (GroupNorm(3), (2, 5, 4), "groups=3 must divide its 4 channels"),
        (InstanceNorm(), (2, 4), r"\(batch, \*space, channels\)"),
        (LSTM(3), (2, 4), r"needs \(batch, time, features\)"),
        (LearnedPositions(3), (4,), r"\(..., time, features\)"),
        (Residual(Linear(3)), (2, 4), "must be the same or 1"),
        (Linear(3), ("batch", "features"), "features, which is free"),
    ],
)
def test_inputs_that_do_not_suit_name_the_layer(layer: Layer, shape: Any, words: str):
    with pytest.raises(ShapeError, match=words):
        compile(layer, JaxBackend(), shapes={"input": shape})


# --- as torch.nn has it ---------------------------------------------------------


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def own(module: Any) -> dict[str, np.ndarray]:
    """A torch module's weights by name."""
    return {k: v.detach().numpy() for k, v in module.state_dict().items()}


def test_linear_as_torch(torch: Any):
    theirs = torch.nn.Linear(4, 3)
    x = numbers(2, 5, 4)
    close(run(Linear(3), own(theirs), input=x)["output"], theirs(torch.tensor(x)))


@pytest.mark.parametrize(
    ("axes", "settings"),
    [
        (1, {"kernel": 4, "stride": 3, "padding": 2}),
        (1, {"kernel": 3, "dilation": 2, "groups": 2, "padding": 0}),
        (2, {"kernel": 3, "padding": 1}),
        (2, {"kernel": (3, 2), "stride": (2, 1), "padding": (0, 1), "groups": 2}),
    ],
)
@pytest.mark.parametrize("transposed", [False, True], ids=["conv", "transposed"])
def test_convolutions_as_torch(
    torch: Any, axes: int, settings: Any, *, transposed: bool
):
    name = f"Conv{'Transpose' if transposed else ''}{axes}"
    theirs_settings = {k: v for k, v in settings.items() if k != "kernel"}
    make = getattr(torch.nn, f"{name}d")
    theirs = make(4, 6, settings["kernel"], **theirs_settings)
    x = numbers(2, *(9, 8)[:axes], 4)
    weights = own(theirs)
    # (out, in, *window) or transposed (in, out, *window): the window to the front.
    order = (*range(2, axes + 2), 1, 0)
    weights["weight"] = weights["weight"].transpose(order)
    got = run(getattr(layers, f"{name}D")(6, **settings), weights, input=x)["output"]
    channels_first = torch.tensor(np.moveaxis(x, -1, 1))
    close(np.moveaxis(np.asarray(got), -1, 1), theirs(channels_first))


@pytest.mark.parametrize("shape", [(6, 4), (3, 5, 4), (3, 5, 6, 4)])
def test_batch_norm_and_its_state_as_torch(torch: Any, shape: tuple[int, ...]):
    make = torch.nn.BatchNorm2d if len(shape) == 4 else torch.nn.BatchNorm1d
    theirs = make(4, momentum=0.2, eps=1e-3)
    layer = BatchNorm(momentum=0.2, epsilon=1e-3)
    training = compile(layer, JaxBackend(), shapes={"input": shape})
    inferring = compile(layer, JaxBackend(), shapes={"input": shape}, inference=True)
    params = arrays({"weight": numbers(4), "bias": numbers(4, seed=1)})
    theirs.weight.data = torch.tensor(numbers(4))
    theirs.bias.data = torch.tensor(numbers(4, seed=1))
    first = lambda x: torch.tensor(np.moveaxis(x, -1, 1))
    state = training.initial_state()
    assert set(state) == {"running_mean", "running_var"}
    x = numbers(*shape)
    for i in range(3):
        x = 2 + 3 * numbers(*shape, seed=i)
        outputs = training.evaluate(params, {"input": jnp.asarray(x), **state})
        close(np.moveaxis(np.asarray(outputs["output"]), -1, 1), theirs(first(x)))
        state = {key: outputs[key] for key in state}
        for key, value in state.items():
            close(value, getattr(theirs, key))
    outputs = inferring.evaluate(params, {"input": jnp.asarray(x), **state})
    assert set(outputs) == {"output"}
    theirs.eval()
    close(np.moveaxis(np.asarray(outputs["output"]), -1, 1), theirs(first(x)))


def test_norms_as_torch(torch: Any):
    x = 2 + 3 * numbers(2, 5, 6, 4)
    params = {"weight": numbers(4), "bias": numbers(4, seed=1)}
    F = torch.nn.functional
    w, b = (torch.tensor(params[k]) for k in ("weight", "bias"))
    last = torch.tensor(x)
    first = torch.tensor(np.moveaxis(x, -1, 1))
    back = lambda y: np.moveaxis(y.numpy(), 1, -1)
    for layer, theirs in (
        (LayerNorm(1e-3), F.layer_norm(last, (4,), w, b, 1e-3)),
        (GroupNorm(2, 1e-3), back(F.group_norm(first, 2, w, b, 1e-3))),
        (InstanceNorm(1e-3), back(F.instance_norm(first, None, None, w, b, eps=1e-3))),
    ):
        close(run(layer, params, input=x)["output"], theirs)
    weight = {"weight": params["weight"]}
    theirs = F.rms_norm(last, (4,), w, 1e-3)
    close(run(RMSNorm(1e-3), weight, input=x)["output"], theirs)


def test_embedding_as_torch(torch: Any):
    theirs = torch.nn.Embedding(7, 4)
    x = labels(2, 5, below=7)
    got = run(Embedding(7, 4), own(theirs), input=x)["output"]
    close(got, theirs(torch.tensor(x)))


def attention_weights(module: Any, path: str = "") -> dict[str, np.ndarray]:
    weights = own(module)
    found = {}
    for kind in ("weight", "bias"):
        parts = np.split(weights[f"in_proj_{kind}"], 3)
        names = ("query", "key", "value")
        found |= {f"{n}.{kind}": p for n, p in zip(names, parts, strict=True)}
        found[f"output.{kind}"] = weights[f"out_proj.{kind}"]
    return {path + k: v for k, v in found.items()}


def test_attention_as_torch(torch: Any):
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    torch.nn.init.normal_(theirs.in_proj_bias)  # torch starts it at 0
    params = attention_weights(theirs)
    x, memory = numbers(2, 5, 8), numbers(2, 3, 8, seed=1)
    look = numbers(5, 3) > -0.5
    look[:, 0] = True
    q, kv = torch.tensor(x), torch.tensor(memory)
    layer = MultiHeadAttention(8, heads=2)
    close(run(layer, params, input=x)["output"], theirs(q, q, q)[0])
    ahead = torch.ones(5, 5).triu(1).bool()
    causal = run(MultiHeadAttention(8, 2, causal=True), params, input=x)["output"]
    close(causal, theirs(q, q, q, attn_mask=ahead)[0])
    wires = {"keys": IOKey("memory"), "mask": IOKey("look", dtype="bool")}
    model = Model.create(
        output=dataclasses.replace(layer, name="a")(IOKey("x"), **wires)
    )
    params = {f"a.{k}": v for k, v in params.items()}
    got = run(model, params, x=x, memory=memory, look=look)["output"]
    close(got, theirs(q, kv, kv, attn_mask=~torch.tensor(look))[0])


def test_fewer_heads_of_keys_are_shared_by_neighbours():
    x = numbers(2, 5, 8)
    few = MultiHeadAttention(8, heads=4, kv_heads=2)
    shapes = {"input": x.shape}
    params = compile(few, JaxBackend(), shapes=shapes).randomize_params(0)
    many = dict(params)
    for key in ("key.weight", "key.bias", "value.weight", "value.bias"):
        rows = params[key].reshape(2, 2, *params[key].shape[1:])
        many[key] = jnp.repeat(rows, 2, axis=0).reshape(8, *params[key].shape[1:])
    wanted = run(MultiHeadAttention(8, heads=4), many, input=x)["output"]
    close(run(few, params, input=x)["output"], wanted)


@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer_blocks_as_torch(torch: Any, *, norm_first: bool):
    theirs = torch.nn.TransformerDecoderLayer(
        8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=norm_first
    )
    for p in theirs.parameters():  # norms start at 1 and 0, which would hide mix-ups
        torch.nn.init.normal_(p, std=0.5)
    w = own(theirs)
    params = attention_weights(theirs.self_attn, "attention.")
    params |= attention_weights(theirs.multihead_attn, "memory_attention.")
    for ours, name in {
        "attention_norm": "norm1",
        "memory_attention_norm": "norm2",
        "mlp_norm": "norm3",
        "mlp.up": "linear1",
        "mlp.down": "linear2",
    }.items():
        params |= {f"{ours}.{k}": w[f"{name}.{k}"] for k in ("weight", "bias")}
    layer = TransformerBlock(
        8, 2, hidden=16, norm_first=norm_first, causal=True, name="b"
    )
    model = Model.create(output=layer(IOKey("x"), memory=IOKey("memory")))
    x, memory = numbers(2, 5, 8), numbers(2, 3, 8, seed=1)
    ahead = torch.ones(5, 5).triu(1).bool()
    wanted = theirs(torch.tensor(x), torch.tensor(memory), tgt_mask=ahead)
    params = {f"b.{k}": v for k, v in params.items()}
    close(run(model, params, x=x, memory=memory)["output"], wanted, 1e-4)


def recurrent_weights(module: Any, end: str = "_l0", *, gru: bool) -> dict[str, Any]:
    w = own(module)
    first, second = w[f"bias_ih{end}"], w[f"bias_hh{end}"]
    biases = {"bias": first, "hidden_bias": second} if gru else {"bias": first + second}
    return {
        "weight": w[f"weight_ih{end}"],
        "hidden_weight": w[f"weight_hh{end}"],
        **biases,
    }


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_recurrent_layers_as_torch(torch: Any, kind: str):
    x, h, c = numbers(3, 6, 4), numbers(3, 5, seed=1), numbers(3, 5, seed=2)
    theirs = getattr(torch.nn, kind)(4, 5, batch_first=True)
    starts: dict[str, Any] = (
        {"state": h, "cell_state": c} if kind == "LSTM" else {"state": h}
    )
    given = [torch.tensor(s)[None] for s in starts.values()]
    wanted, last = theirs(torch.tensor(x), tuple(given) if len(given) > 1 else given[0])
    lasts = last if isinstance(last, tuple) else (last,)
    layer = getattr(layers, kind)(5, name="r")
    results = layer(IOKey("x"), **{k: IOKey(k) for k in starts})
    names = ("output", "last", "last_cell")[: len(results)]
    model = Model.create(**dict(zip(names, results, strict=True)))
    weights = recurrent_weights(theirs, gru=kind == "GRU")
    params = {f"r.{k}": v for k, v in weights.items()}
    got = run(model, params, x=x, **starts)
    for name, value in zip(names, (wanted, *(s[0] for s in lasts)), strict=True):
        close(got[name], value)
    cell = getattr(layers, f"{kind}Cell")(5)
    once = run(cell, weights, input=x[:, 0], **starts)["output"]
    close(once, wanted[:, 0])


def test_both_directions_as_torch(torch: Any):
    theirs = torch.nn.LSTM(4, 5, batch_first=True, bidirectional=True)
    x = numbers(3, 6, 4)
    forward = recurrent_weights(theirs, gru=False)
    backward = recurrent_weights(theirs, "_l0_reverse", gru=False)
    params = {f"forward.{k}": v for k, v in forward.items()}
    params |= {f"backward.{k}": v for k, v in backward.items()}
    close(
        run(Bidirectional(LSTM(5)), params, input=x)["output"],
        theirs(torch.tensor(x))[0],
    )


# --- randomness -----------------------------------------------------------------


def test_dropout_keeps_its_share_and_the_mean():
    x = np.ones((100, 100), "float32")
    output = np.asarray(run(Dropout(0.3), input=x)["output"])
    assert set(np.unique(output)) == {0.0, np.float32(1 / 0.7)}
    # Four standard errors of a share of 10,000 draws.
    assert abs((output == 0).mean() - 0.3) < 4 * (0.3 * 0.7 / 1e4) ** 0.5


def test_the_same_key_gives_the_same_numbers():
    x = numbers(6, 40)
    one, again, other = (run(Dropout(), input=x, seed=s)["output"] for s in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


def test_inference_leaves_dropout_out():
    x = numbers(6, 8)
    model = Sequential([Linear(8), Dropout(0.9)])
    compiled = compile(model, JaxBackend(), shapes={"input": x.shape}, inference=True)
    assert compiled.data_keys == {"input"}
    params = compiled.randomize_params(0)
    got = compiled.evaluate(params, {"input": jnp.asarray(x)})["output"]
    bare = Sequential([Linear(8)])
    np.testing.assert_array_equal(got, run(bare, params, input=x)["output"])


def test_each_place_draws_its_own_numbers():
    x = IOKey("x")
    model = Model.create(one=Dropout()(x), other=Dropout()(x))
    got = run(model, x=np.ones((6, 40), "float32"))
    assert (got["one"] != got["other"]).any()


@pytest.mark.parametrize("scan_from", [None, 4])
def test_each_block_of_a_loop_draws_its_own_numbers(scan_from: int | None):
    # x + dropout(x) doubles with what it keeps: the product of all blocks' draws. If
    # all four drew the same, it would be 1 or 3^4 everywhere.
    model = Model()
    for _ in range(4):
        model += Residual(Sequential([Dropout(0.5)]))
    x = np.ones((6, 40), "float32")
    output = np.asarray(run(model, input=x, scan_from=scan_from)["output"])
    assert set(np.unique(output)) == {1.0, 3.0, 9.0, 27.0, 81.0}


def test_two_loops_draw_different_numbers():
    x = IOKey("x")
    found = []
    for _ in range(2):
        y = x
        for _ in range(4):
            y = Residual(Sequential([Dropout(0.5)]))(y)
        found.append(y)
    model = Model.create(one=found[0], other=found[1])
    got = run(model, scan_from=4, x=np.ones((6, 40), "float32"))
    assert (got["one"] != got["other"]).any()


# --- blocks in a row ------------------------------------------------------------


STACKS = [
    ResidualMLP(width=6, depth=2, classes=3),
    TransformerLM(
        7, TransformerBlock(8, 2, norm="rms", gated=True), 2, positions="rotary"
    ),
    TransformerEncoder(TransformerBlock(8, 2), depth=2),
    TransformerDecoder(TransformerBlock(8, 2), depth=2),
]


def stack_inputs(layer: Layer) -> dict[str, np.ndarray]:
    if isinstance(layer, TransformerLM):
        return {"input": labels(2, 5, below=7)}
    inputs = {"input": numbers(2, 5, 8)}
    if isinstance(layer, TransformerDecoder):
        inputs["memory"] = numbers(2, 3, 8, seed=1)
    return inputs


@pytest.mark.parametrize("layer", STACKS, ids=lambda layer: type(layer).__name__)
def test_eight_blocks_are_one_loop_and_seven_are_not(layer: Any):
    shapes = {k: x.shape for k, x in stack_inputs(layer).items()}
    for depth, loops in ((7, 0), (8, 1)):
        deep = dataclasses.replace(layer, depth=depth)
        graph = compile(deep, JaxBackend(), shapes=shapes).graph
        assert sum(isinstance(node, Repeat) for node in graph.nodes) == loops


# An encoder's loop is that of a decoder without the memory.
@pytest.mark.parametrize(
    "layer", [STACKS[0], STACKS[1], STACKS[3]], ids=lambda layer: type(layer).__name__
)
def test_a_loop_gives_the_numbers_of_its_blocks(layer: Any):
    inputs = stack_inputs(layer)
    shapes = {k: x.shape for k, x in inputs.items()}
    loop = compile(layer, JaxBackend(), shapes=shapes, scan_from=2)
    row = compile(layer, JaxBackend(), shapes=shapes, scan_from=None)
    params = loop.randomize_params(0)
    stacked = [k for k in params if k.startswith("block_*.")]
    apart = {k: v for k, v in params.items() if k not in stacked}
    for key in stacked:
        for i in range(2):
            apart[key.replace("*", str(i))] = params[key][i]
    assert set(apart) == row.param_keys
    total = lambda outputs: jnp.sum(outputs["output"] ** 2)
    data = arrays(inputs)
    one, gradients = loop.value_and_grad(params, data, total)
    other, gradients_apart = row.value_and_grad(apart, data, total)
    close(one, other, 1e-4)
    for key in stacked:
        each = [gradients_apart[key.replace("*", str(i))] for i in range(2)]
        np.testing.assert_allclose(gradients[key], np.stack(each), rtol=2e-3, atol=2e-4)


# --- whole networks -------------------------------------------------------------


def test_networks_are_the_layers_they_say():
    by_hand = {
        ConvNet([4, 6], 3): [
            *(Conv2D(4), Relu(), Conv2D(6, stride=2), Relu()),
            *(GlobalAvgPool(), Linear(3)),
        ],
        ResidualMLP(5, 1, 3, hidden=7): [
            Linear(5, name="first"),
            Residual(
                Sequential(
                    [
                        LayerNorm(name="norm"),
                        Linear(7, name="up"),
                        Gelu(),
                        Linear(5, name="down"),
                    ],
                    name="inside",
                ),
                name="block_0",
            ),
            LayerNorm(name="norm"),
            Linear(3, name="last"),
        ],
    }
    for net, parts in by_hand.items():
        x = numbers(2, 6, 6, 5)
        compiled = compile(net, JaxBackend(), shapes={"input": x.shape})
        params = {
            key: jnp.asarray(numbers(*compiled.shapes[key], seed=i))
            for i, key in enumerate(sorted(compiled.param_keys))
        }
        renamed = {
            k.replace("block_0.", "block_0.inside."): v for k, v in params.items()
        }
        wanted = run(Sequential(parts), renamed, input=x)["output"]
        close(run(net, params, input=x)["output"], wanted)


def test_a_unet_hands_each_size_across():
    # Without its lower levels a pixel would see no further than its convolutions: two
    # by two of 3 x 3 reach 4 pixels, and with one level below it is all 8.
    net = UNet([2, 3], classes=1, norm="none")
    x = numbers(1, 12, 12, 1)
    compiled = compile(net, JaxBackend(), shapes={"input": x.shape})
    params = {k: jnp.ones_like(v) for k, v in compiled.randomize_params(0).items()}
    other = x.copy()
    other[0, 0, 0] += 1
    one, two = (
        np.asarray(run(net, params, input=abs(v))["output"]) for v in (x, other)
    )
    rows = np.flatnonzero((one != two).any(axis=(0, 2, 3)))
    assert rows.max() > 4
    cut = params | {"up_0.up.weight": 0 * params["up_0.up.weight"]}
    one, two = (np.asarray(run(net, cut, input=abs(v))["output"]) for v in (x, other))
    rows = np.flatnonzero((one != two).any(axis=(0, 2, 3)))
    assert rows.max() == 4


# --- weights that are shared ----------------------------------------------------


def test_the_last_layer_of_a_language_model_reads_the_vectors_of_tokens():
    block = TransformerBlock(8, 2)
    tied = TransformerLM(7, block, 1, length=5)
    untied = dataclasses.replace(tied, tied=False)
    x = labels(2, 5, below=7)
    shapes = {"input": x.shape}
    one, two = (compile(m, JaxBackend(), shapes=shapes) for m in (tied, untied))
    assert two.param_keys - one.param_keys == {"head.weight"}
    params = one.randomize_params(0)
    apart = {**params, "head.weight": params["tokens.weight"]}
    total = lambda outputs: jnp.sum(outputs["output"] ** 2)
    value, gradients = one.value_and_grad(params, arrays({"input": x}), total)
    same, both = two.value_and_grad(apart, arrays({"input": x}), total)
    close(value, same)
    close(gradients["tokens.weight"], both["tokens.weight"] + both["head.weight"], 1e-4)


def test_penalties_of_weights():
    output = Linear(2, name="l")(IOKey("x", shape=("batch", 3)))
    weight = weight_of(output)
    model = Model.create(l1=L1(0.1)(weight), l2=L2(0.5)(weight), output=output)
    w = numbers(2, 3)
    got = run(model, {"l.weight": w, "l.bias": numbers(2)}, x=numbers(4, 3))
    close(got["l1"], 0.1 * np.abs(w).sum())
    close(got["l2"], 0.5 * (w**2).sum())


def test_a_dotted_name_reaches_a_weight_inside():
    output = MLP(3, [4], 2, name="m")(IOKey("x", shape=("batch", 3)))
    model = Model.create(l2=L2(1.0)(weight_of(output, "linear_0.weight")), out=output)
    compiled = compile(model, JaxBackend())
    params = compiled.randomize_params(0)
    got = compiled.evaluate(params, {"x": jnp.ones((5, 3))})["l2"]
    close(got, np.sum(np.asarray(params["m.linear_0.weight"]) ** 2))


def test_a_weight_of_another_model_cannot_be_shared():
    elsewhere = Linear(3)(IOKey("x", shape=("batch", 4)))
    used = Linear(3)(IOKey("y", shape=("batch", 4)), weight=weight_of(elsewhere))
    with pytest.raises(ValueError, match="not part of the same model"):
        compile(Model.create(output=used), JaxBackend())


def test_a_shared_weight_must_suit_both():
    first = Linear(3)(IOKey("x", shape=("batch", 4)))
    second = Linear(5)(IOKey("y", shape=("batch", 4)), weight=weight_of(first))
    with pytest.raises(ShapeError, match=r"\(5, 4\)"):
        compile(Model.create(output=first, other=second), JaxBackend())


def test_ports_may_be_wired_in_any_order():
    target = IOKey("t", shape=(5,), dtype="int32")
    loss = CrossEntropy()(target=target, input=IOKey("x", shape=(5, 4)))
    x, t = numbers(5, 4), labels(5, below=4)
    got = run(Model.create(loss=loss), x=x, t=t)["loss"]
    log = x - np.log(np.exp(x).sum(-1, keepdims=True))
    close(got, -log[np.arange(5), t].mean())


def test_names_of_inner_layers_are_kept_apart():
    one, other = Residual(Linear(4, name="a")), Residual(Linear(4, name="b"))
    shapes = {"input": (2, 4)}
    keys = [compile(m, JaxBackend(), shapes=shapes).param_keys for m in (one, other)]
    assert keys == [{"a.weight", "a.bias"}, {"b.weight", "b.bias"}]
