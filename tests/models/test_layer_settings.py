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

from .layer_cases import BLOCK

pytestmark = pytest.mark.slow


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


def test_an_unknown_choice_is_refused():
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
