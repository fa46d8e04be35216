"""Random models give the same outputs and gradients in JAX and in torch.

A seed that Hypothesis draws makes a model of `random_models.py`.
"""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings, strategies as st

import frugax as ml
from frugax.models.graph import Fill

from .random_models import random_model

torch = pytest.importorskip("torch")

BACKENDS = {
    (library, dtype): make(dtype=dtype, jit=False)
    for library, make in (("jax", ml.JaxBackend), ("torch", ml.TorchBackend))
    for dtype in ("float32", "float64")
}


def numbers_for(compiled, inputs, seed):
    """Float64 numbers for all that goes in, and a cotangent for each output."""
    rng = np.random.default_rng(seed)
    made: dict[str, Any] = {}
    for key in sorted(compiled.param_keys | compiled.data_keys):
        shape, dtype = inputs.get(key, (None, "float"))
        if dtype == "int":  # 4 is the least number of classes or rows there is
            made[key] = rng.integers(0, 4, shape)
        elif shape is not None:
            made[key] = rng.normal(size=shape)
        else:
            weight = compiled.weights[key]
            noise = rng.normal(size=weight.shape)
            if isinstance(weight.init, Fill):
                noise = weight.init.value + 0.2 * noise
                made[key] = abs(noise) if weight.kind == "state" else noise
            else:
                made[key] = noise * max(getattr(weight.init, "std", 0.0), 0.3)
    cotangents = {
        k: rng.normal(size=compiled.shapes[k])
        for k in compiled.output_keys
        if k not in compiled.weights
    }
    return made, cotangents


def results_of(compiled, made, cotangents):
    """Outputs and gradients, as float64 in NumPy, by ("output" or "gradient", key)."""
    array = compiled.backend.array
    outputs, gradients = compiled.evaluate(
        {k: array(made[k]) for k in compiled.param_keys},
        {k: array(made[k]) for k in compiled.data_keys},
        {k: array(v) for k, v in cotangents.items()},
    )
    found = {("output", k): v for k, v in outputs.items()}
    found |= {("gradient", k): v for k, v in gradients.items()}
    return {k: np.asarray(v).astype(np.float64) for k, v in found.items()}


def check(drawn, *, dtype, seed):
    """Hold JAX against torch, within what rounding may do to this very model."""
    model, inputs, inference = drawn

    def results(library, at, numbers):
        compiled = compiled_by.get((library, at))
        if compiled is None:
            compiled = compiled_by[library, at] = ml.compile(
                model,
                BACKENDS[library, at],
                trainable_keys=[k for k in model.inputs if inputs[k][1] == "float"],
                inference=inference,
                scan_from=None,
            )
        return results_of(compiled, *(numbers or numbers_for(compiled, inputs, seed)))

    compiled_by: dict[Any, Any] = {}
    wanted = results("torch", "float64", None)
    exact = compiled_by["torch", "float64"]
    made, cotangents = numbers_for(exact, inputs, seed)
    # How far results move when all that goes in is off by one part in 1e7, in float64:
    # what each rounding does is amplified like that, and there are as many as steps.
    rng = np.random.default_rng(seed + 1)
    nudged = {
        k: v * (1 + 1e-7 * rng.normal(size=v.shape)) if v.dtype.kind == "f" else v
        for k, v in made.items()
    }
    moved = results("torch", "float64", (nudged, cotangents))
    eps, depth = float(np.finfo(dtype).eps), len(exact.graph.nodes)
    found_by = {
        library: results(library, dtype, (made, cotangents))
        for library in ("jax", "torch")
    }
    for library, kind in itertools.product(found_by, ("output", "gradient")):
        found = found_by[library]
        assert found.keys() == wanted.keys()
        keys = [key for key in wanted if key[0] == kind]
        # Of all gradients together: one that is 0 is a sum of others that cancel.
        reach = max((abs(moved[k] - wanted[k]).max(initial=0) for k in keys), default=0)
        scale = max((abs(wanted[k]).max(initial=0) for k in keys), default=0)
        close = 4 * depth * eps * (reach / 1e-7 + scale + 1)
        for key in keys:
            assert found[key].shape == wanted[key].shape
            off = abs(found[key] - wanted[key]).max(initial=0)
            assert off <= close, f"{library} {key}: {off:.3g}, allowed {close:.3g}"


# Each number makes another model; a smaller number makes no smaller one, so nothing is
# shrunk. (Drawn step by step by Hypothesis, most models were near copies of few.)
FAST = settings(
    max_examples=1, deadline=None, derandomize=True, phases=[Phase.generate]
)
FULL = settings(FAST, max_examples=500)


@pytest.mark.slow
@FAST
@given(seed=st.integers(0, 2**31))
def test_a_few_random_models_agree_in_float64(seed):
    check(random_model(seed), dtype="float64", seed=seed)


@pytest.mark.thorough
@FULL
@given(seed=st.integers(0, 2**31))
def test_five_hundred_random_models_agree_in_float64(seed):
    check(random_model(seed), dtype="float64", seed=seed)


@pytest.mark.thorough
@settings(FAST, max_examples=100)
@given(seed=st.integers(0, 2**31))
def test_random_models_agree_in_float32(seed):
    check(random_model(seed), dtype="float32", seed=seed)
