"""Outputs that are left out, and inputs and weights that are fixed to values."""

import numpy as np
import pytest

import frugax as ml
from frugax.models import (
    BatchNorm,
    IOKey,
    Linear,
    Model,
    op,
)
from frugax.models._select import prune
from frugax.models.graph import ModelGraph, OpNode, Spec

BACKENDS = ["jax", "torch"]
X = np.arange(6, dtype="float32").reshape(2, 3)


def x():
    return IOKey("x", shape=(2, 3))


def backend_of(name):
    if name == "torch":
        pytest.importorskip("torch")
        return ml.TorchBackend(jit=False)
    return ml.JaxBackend()


def run(compiled, **data):
    backend = compiled.backend
    data = {k: backend.array(v) for k, v in data.items()}
    made = compiled.evaluate(compiled.randomize_params(0), data)
    return {
        k: np.asarray(v.detach() if hasattr(v, "detach") else v)
        for k, v in made.items()
    }


def test_a_state_is_renewed_by_each_layer():
    h = x()
    model = Model.create(y=BatchNorm(name="a")(h) + BatchNorm(name="b")(h))
    compiled = ml.compile(model, ml.JaxBackend())
    assert {"a.running_mean", "b.running_var"} <= set(compiled.output_keys)
    aside = Model.create(y=x() + 1.0, z=BatchNorm(name="a")(x()))
    compiled = ml.compile(aside, ml.JaxBackend(), discard_keys=["z"])
    assert set(compiled.output_keys) == {"y", "a.running_mean", "a.running_var"}


@pytest.mark.parametrize("name", BACKENDS)
def test_constant_arrays_become_the_backends_own(name):
    compiled = ml.compile(Model.create(y=x() + np.arange(3.0)), backend_of(name))
    (constant,) = compiled.graph.constants.values()
    assert isinstance(constant, type(compiled.backend.ones(1)))
    assert compiled.graph.specs[compiled.graph.outputs["y"]].dtype == np.float32
    assert run(compiled, x=X)["y"].dtype == np.float32


def test_inputs_and_weights_are_fixed():
    model = Model.create(y=Linear(2, name="a")(IOKey("scale", shape=(3,))) * x()[:, :2])
    fixed = {"scale": np.ones(3), "a.weight": np.ones((2, 3)), "a.bias": np.zeros(2)}
    compiled = ml.compile(model, ml.JaxBackend(), constant_keys=fixed)
    assert compiled.param_keys == frozenset()
    assert compiled.data_keys == {"x"}
    np.testing.assert_allclose(run(compiled, x=X)["y"], 3 * X[:, :2])


def test_an_output_may_be_a_constant():
    compiled = ml.compile(
        Model.create(y=op("arange", stop=3)(), z=x() + 1.0), ml.JaxBackend()
    )
    np.testing.assert_array_equal(run(compiled, x=X)["y"], [0, 1, 2])
    assert compiled.shapes["y"] == (3,)


def test_prune_keeps_the_operations_that_outputs_need():
    key = IOKey("x", shape=(2,))

    def node(i, left, right):
        wires = {"left": left, "right": right}
        return OpNode(f"n{i}", op("add"), "add", wires, (f"{i}",), ())

    graph = ModelGraph(
        {"x": key, "unread": key},
        {"/c": 1.0, "/d": 2.0},
        (node(0, "x", "/c"), node(1, "x", "/d"), node(2, "0", "0")),
        {"y": "2", "z": "1"},
        specs={"x": Spec((2,), np.dtype("float32"))},
    )
    pruned = prune(graph, ["z"])
    assert [n.path for n in pruned.nodes] == ["n0", "n2"]
    assert set(pruned.inputs) == {"x"}
    assert set(pruned.constants) == {"/c"}
