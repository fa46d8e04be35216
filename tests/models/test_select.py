"""Outputs that are left out, and inputs and weights that are fixed to values."""

import numpy as np
import pytest

import frugax as ml
from frugax.models import (
    BatchNorm,
    IOKey,
    Model,
    op,
)

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


def test_an_output_may_be_a_constant():
    compiled = ml.compile(
        Model.create(y=op("arange", stop=3)(), z=x() + 1.0), ml.JaxBackend()
    )
    np.testing.assert_array_equal(run(compiled, x=X)["y"], [0, 1, 2])
    assert compiled.shapes["y"] == (3,)
