"""Settings that make no sense are refused where they are written."""

from typing import Any

import pytest

from frugax.errors import ShapeError
from frugax.models import JaxBackend, Layer, compile
from frugax.models.layers import (
    LSTM,
    MLP,
    RNN,
    BatchNorm,
    Celu,
    Conv1D,
    Conv2D,
    ConvNet,
    ConvTranspose1D,
    CrossEntropy,
    Dropout,
    Embedding,
    GroupNorm,
    Huber,
    InstanceNorm,
    LayerNorm,
    LearnedPositions,
    Linear,
    MaxPool2D,
    MultiHeadAttention,
    Residual,
    ResidualMLP,
    Sequential,
    TopKAccuracy,
    TransformerBlock,
    TransformerEncoder,
    TransformerLM,
    UNet,
    Upsample,
)
from refusals import refuses

from .layer_cases import BLOCK

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Linear(0), 0),
        (lambda: MLP(4, [0], 2), 0),
        (lambda: Sequential([]), "Sequential.layers"),
        (
            lambda: Conv2D(4, kernel=0),
            "kernel",
        ),
        (lambda: Conv2D(4, kernel=(3, 3, 3)), "(3, 3, 3)"),
        (lambda: Conv2D(4, stride=-1), "stride"),
        (lambda: Conv2D(4, padding="full"), "padding"),
        (lambda: Conv2D(4, padding=-1), "padding"),
        (lambda: Conv2D(4, padding=(1, -1)), "padding"),
        (
            lambda: Conv2D(4, groups=3),
            "groups",
        ),
        (lambda: ConvTranspose1D(4, output_padding=-1), "output_padding"),
        (lambda: MaxPool2D(0), 0),
        (lambda: Upsample(0), 0),
        (lambda: LayerNorm(epsilon=0.0), "epsilon"),
        (lambda: GroupNorm(0), 0),
        (lambda: BatchNorm(momentum=1.5), "momentum"),
        (lambda: Dropout(1.5), 1.5),
        (lambda: Dropout(-0.1), -0.1),
        (lambda: Embedding(0, 4), 0),
        (lambda: LearnedPositions(4, offset=-1), "offset"),
        (
            lambda: MultiHeadAttention(64, heads=7),
            "heads",
        ),
        (lambda: MultiHeadAttention(64, 8, kv_heads=3), "kv_heads"),
        (lambda: MultiHeadAttention(6, 2, rotary=True), 6),
        (
            lambda: TransformerBlock(64, heads=7),
            "heads",
        ),
        (lambda: TransformerBlock(64, 8, dropout=2.0), "dropout"),
        (lambda: TransformerEncoder(BLOCK, depth=-1), "depth"),
        (lambda: TransformerLM(7, BLOCK, 2), "TransformerLM.length"),
        (lambda: RNN(0), 0),
        (lambda: ResidualMLP(4, -1, 2), -1),
        (lambda: ConvNet([], 2), "ConvNet.channels"),
        (lambda: UNet([4, 0], 2), "UNet.channels"),
        (lambda: Celu(0.0), 0.0),
        (lambda: Huber(delta=0.0), "delta"),
        (lambda: CrossEntropy(label_smoothing=2.0), "label_smoothing"),
        (lambda: TopKAccuracy(k=0), "k"),
    ],
)
def test_bad_settings_are_refused_where_they_are_written(make: Any, named):
    with refuses(ValueError, named):
        make()


def test_an_unknown_choice_is_refused():
    # TypeError: in these tests the types of arguments are looked at before the layer.
    with refuses(ValueError, "init"):
        Linear(3, init="xavier")  # pyrefly: ignore[bad-argument-type]
    layer = Linear(3)
    object.__setattr__(layer, "init", "xavier")
    named = "Linear.init"
    with refuses(ValueError, named):
        layer.__post_init__()


@pytest.mark.parametrize(
    ("layer", "shape", "named"),
    [
        (Linear(3, input_size=4), (2, 5), "input"),
        (Linear(3), (), "input"),
        (Conv2D(3), (2, 5, 4), "(batch, height, width, channels)"),
        (Conv1D(4, groups=2), (2, 5, 3), "groups"),
        (GroupNorm(3), (2, 5, 4), 3),
        (InstanceNorm(), (2, 4), "input"),
        (LSTM(3), (2, 4), "(batch, time, features)"),
        (LearnedPositions(3), (4,), "(..., time, features)"),
        (Residual(Linear(3)), (2, 4), 1),
        (MaxPool2D(9), (2, 8, 8, 3), "[2, 8, 8, 3]"),
        (Linear(3), ("batch", "features"), "features"),
    ],
)
def test_inputs_that_do_not_suit_name_the_layer(layer: Layer, shape: Any, named):
    with refuses(ShapeError, named):
        compile(layer, JaxBackend(), shapes={"input": shape})
