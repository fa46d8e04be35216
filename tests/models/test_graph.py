"""A description knows its shapes, names, parameters and costs without any library."""

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings, strategies as st

from frugax import models
from frugax.models import graph
from frugax.models.graph import (
    Chain,
    Conv,
    Flatten,
    Gelu,
    LayerNorm,
    Linear,
    MeanPool,
    Relu,
    Residual,
    Tanh,
    walk,
)

leaves = st.one_of(
    st.builds(
        Linear, st.integers(1, 9), st.booleans(), st.sampled_from(["he", "glorot"])
    ),
    st.builds(Conv, st.integers(1, 9), st.integers(1, 5), st.integers(1, 3)),
    st.builds(LayerNorm, st.floats(1e-9, 1)),
    st.builds(MeanPool, st.none() | st.integers(1, 4)),
    st.sampled_from([Relu(), Gelu(), Tanh(), Flatten()]),
)
layers = st.recursive(
    leaves,
    lambda inner: (
        st.builds(Residual, inner)
        | st.lists(inner, max_size=3).map(lambda parts: Chain(*parts))
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(layers)
def test_a_model_survives_json_and_hashes(model):
    back = graph.from_plain(json.loads(json.dumps(graph.to_plain(model))))
    assert back == model
    assert hash(back) == hash(model)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ("Linear", "^expected a layer"),
        (
            {"kind": "Chain", "layers": [{"kind": "os.system"}]},
            r"^layers\[0\]: expected",
        ),
        ({"kind": "Chain", "layers": 3}, "^Chain has the one key layers"),
        (
            {"kind": "Residual", "body": {"kind": "Linear"}},
            r"^body\.features: .*missing",
        ),
        ({"kind": "Residual", "body": {"kind": "Tanh"}, "x": 1}, "one key body"),
        ({"kind": "Linear", "feature": 3}, "^feature: there is no such key"),
        ({"kind": "Linear", "features": 0}, "must be a whole number >= 1, got 0"),
        ({"kind": ["Linear"]}, "^expected a layer"),
    ],
)
def test_data_that_is_no_model_is_refused_with_its_place(wrong, text):
    with pytest.raises(ValueError, match=text):
        graph.from_plain(wrong)


def test_parameters_are_named_by_their_place():
    model = models.residual_mlp(8, 1, 3, hidden=16)
    named = {
        n: p.shape for node in walk(model, (5,)) for n, p in node.parameters.items()
    }
    assert named == {
        "0.weight": (8, 5),
        "0.bias": (8,),
        "1.residual.0.scale": (8,),
        "1.residual.0.shift": (8,),
        "1.residual.1.weight": (16, 8),
        "1.residual.1.bias": (16,),
        "1.residual.3.weight": (8, 16),
        "1.residual.3.bias": (8,),
        "2.scale": (8,),
        "2.shift": (8,),
        "3.weight": (3, 8),
        "3.bias": (3,),
    }
    (alone,) = walk(Linear(2, bias=False), (7,))
    assert list(alone.parameters) == ["weight"]


@pytest.mark.parametrize(
    ("model", "shape", "text"),
    [
        (
            Chain(Linear(4), Residual(Chain(Relu(), Linear(5)))),
            (3,),
            r"layer '1' \(Residual\) adds its input of shape \(4,\) to .* \(5,\)",
        ),
        (
            Chain(Relu(), Chain(Conv(4))),
            (8,),
            r"layer '1\.0' \(Conv\).*got shape \(8,\)",
        ),
        (
            Chain(MeanPool(3)),
            (8, 12, 1),
            r"layer '0' \(MeanPool\).* divide 8 x 12. Windows that do: 1, 2, 4\.",
        ),
        (LayerNorm(), (), r"the model's only layer \(LayerNorm\)"),
        (Relu(), (3, 0), r"whole numbers >= 1, got \(3, 0\)"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused_at_its_layer(model, shape, text):
    with pytest.raises(ValueError, match=text):
        walk(model, shape)


def test_what_is_no_layer_is_refused():
    # In a process of its own: here the run-time type checker would be first.
    code = "from frugax.models import Chain, Relu; Chain(Relu(), 'Relu')"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "TypeError: Chain layer 1 must be a layer of models.graph" in ran.stderr


def test_costs_are_counted():
    (linear,) = walk(Linear(3), (2, 5))
    assert linear.flops == 2 * (3 * (5 + 5) + 3)  # two places
    (conv,) = walk(Conv(4, kernel=3, stride=2), (5, 8, 2))
    assert conv.after == (3, 4, 4)
    assert conv.flops == 3 * 4 * 4 * (2 * 9 * 2 + 1)
    text = graph.summary(walk(models.mlp([8], 3), (4,)))
    assert text.splitlines()[-1].split() == ["total", "67", "268", "B", "131"]


@pytest.mark.parametrize("library", ["jax", "torch", "numpy"])
def test_describing_a_model_imports_no_array_library(library):
    code = (
        "import sys, frugax.models as m; m.graph.walk(m.convnet([4], 3), (8, 8, 1));"
        f"raise SystemExit({library!r} in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
