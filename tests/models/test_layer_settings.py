"""Settings that make no sense are refused where they are written."""

from typing import Any

import pytest

from frugax import models as m
from frugax.errors import ShapeError
from frugax.models import JaxBackend, Layer, compile
from refusals import refuses

from .layer_cases import BLOCK

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: m.Linear(0), 0),
        (lambda: m.MLP(4, [0], 2), 0),
        (lambda: m.Sequential([]), "Sequential.layers"),
        (
            lambda: m.Conv2D(4, kernel=0),
            "kernel",
        ),
        (lambda: m.Conv2D(4, kernel=(3, 3, 3)), "(3, 3, 3)"),
        (lambda: m.Conv2D(4, stride=-1), "stride"),
        (lambda: m.Conv2D(4, padding="full"), "padding"),
        (lambda: m.Conv2D(4, padding=-1), "padding"),
        (lambda: m.Conv2D(4, padding=(1, -1)), "padding"),
        (
            lambda: m.Conv2D(4, groups=3),
            "groups",
        ),
        (lambda: m.ConvTranspose1D(4, output_padding=-1), "output_padding"),
        (lambda: m.MaxPool2D(0), 0),
        (lambda: m.Upsample(0), 0),
        (lambda: m.LayerNorm(epsilon=0.0), "epsilon"),
        (lambda: m.GroupNorm(0), 0),
        (lambda: m.BatchNorm(momentum=1.5), "momentum"),
        (lambda: m.Dropout(1.5), 1.5),
        (lambda: m.Dropout(-0.1), -0.1),
        (lambda: m.Embedding(0, 4), 0),
        (lambda: m.LearnedPositions(4, offset=-1), "offset"),
        (
            lambda: m.MultiHeadAttention(64, heads=7),
            "heads",
        ),
        (lambda: m.MultiHeadAttention(64, 8, kv_heads=3), "kv_heads"),
        (lambda: m.MultiHeadAttention(6, 2, rotary=True), 6),
        (
            lambda: m.TransformerBlock(64, heads=7),
            "heads",
        ),
        (lambda: m.TransformerBlock(64, 8, dropout=2.0), "dropout"),
        (lambda: m.TransformerEncoder(BLOCK, depth=-1), "depth"),
        (lambda: m.TransformerLM(7, BLOCK, 2), "TransformerLM.length"),
        (lambda: m.RNN(0), 0),
        (lambda: m.ResidualMLP(4, -1, 2), -1),
        (lambda: m.ConvNet([], 2), "ConvNet.channels"),
        (lambda: m.UNet([4, 0], 2), "UNet.channels"),
        (lambda: m.Celu(0.0), 0.0),
        (lambda: m.Huber(delta=0.0), "delta"),
        (lambda: m.CrossEntropy(label_smoothing=2.0), "label_smoothing"),
        (lambda: m.TopKAccuracy(k=0), "k"),
    ],
)
def test_bad_settings_are_refused_where_they_are_written(make: Any, named):
    with refuses(ValueError, named):
        make()


def test_an_unknown_choice_is_refused():
    # TypeError: in these tests the types of arguments are looked at before the layer.
    with refuses(ValueError, "init"):
        m.Linear(3, init="xavier")  # pyrefly: ignore[bad-argument-type]
    layer = m.Linear(3)
    object.__setattr__(layer, "init", "xavier")
    named = "Linear.init"
    with refuses(ValueError, named):
        layer.__post_init__()


@pytest.mark.parametrize(
    ("layer", "shape", "named"),
    [
        (m.Linear(3, input_size=4), (2, 5), "input"),
        (m.Linear(3), (), "input"),
        (m.Conv2D(3), (2, 5, 4), "(batch, height, width, channels)"),
        (m.Conv1D(4, groups=2), (2, 5, 3), "groups"),
        (m.GroupNorm(3), (2, 5, 4), 3),
        (m.InstanceNorm(), (2, 4), "input"),
        (m.LSTM(3), (2, 4), "(batch, time, features)"),
        (m.LearnedPositions(3), (4,), "(..., time, features)"),
        (m.Residual(m.Linear(3)), (2, 4), 1),
        (m.MaxPool2D(9), (2, 8, 8, 3), "[2, 8, 8, 3]"),
        (m.Linear(3), ("batch", "features"), "features"),
    ],
)
def test_inputs_that_do_not_suit_name_the_layer(layer: Layer, shape: Any, named):
    with refuses(ShapeError, named):
        compile(layer, JaxBackend(), shapes={"input": shape})
