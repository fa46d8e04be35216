"""Layers in rows, in networks and with shared weights."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from frugax import models as m
from frugax.models import IOKey, JaxBackend, Model, compile, weight_of

from .layer_cases import arrays, close, labels, numbers, run

pytestmark = pytest.mark.slow


def test_networks_are_the_layers_they_say():
    by_hand = {
        m.ConvNet([4, 6], 3): [
            *(m.Conv2D(4), m.Relu(), m.Conv2D(6, stride=2), m.Relu()),
            *(m.GlobalAvgPool(), m.Linear(3)),
        ],
        m.ResidualMLP(5, 1, 3, hidden=7): [
            m.Linear(5, name="first"),
            m.Residual(
                m.Sequential(
                    [
                        m.LayerNorm(name="norm"),
                        m.Linear(7, name="up"),
                        m.Gelu(),
                        m.Linear(5, name="down"),
                    ],
                    name="inside",
                ),
                name="block_0",
            ),
            m.LayerNorm(name="norm"),
            m.Linear(3, name="last"),
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
        wanted = run(m.Sequential(parts), renamed, input=x)["output"]
        close(run(net, params, input=x)["output"], wanted)


def test_a_unet_hands_each_size_across():
    # Without its lower levels a pixel would see no further than its convolutions: two
    # by two of 3 x 3 reach 4 pixels, and with one level below it is all 8.
    net = m.UNet([2, 3], classes=1, norm="none")
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


def test_the_last_layer_of_a_language_model_reads_the_vectors_of_tokens():
    block = m.TransformerBlock(8, 2)
    tied = m.TransformerLM(7, block, 1, length=5)
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
    output = m.Linear(2, name="l")(IOKey("x", shape=("batch", 3)))
    weight = weight_of(output)
    model = Model.create(l1=m.L1(0.1)(weight), l2=m.L2(0.5)(weight), output=output)
    w = numbers(2, 3)
    got = run(model, {"l.weight": w, "l.bias": numbers(2)}, x=numbers(4, 3))
    close(got["l1"], 0.1 * np.abs(w).sum())
    close(got["l2"], 0.5 * (w**2).sum())


def test_a_dotted_name_reaches_a_weight_inside():
    output = m.MLP(3, [4], 2, name="m")(IOKey("x", shape=("batch", 3)))
    model = Model.create(l2=m.L2(1.0)(weight_of(output, "linear_0.weight")), out=output)
    compiled = compile(model, JaxBackend())
    params = compiled.randomize_params(0)
    got = compiled.evaluate(params, {"x": jnp.ones((5, 3))})["l2"]
    close(got, np.sum(np.asarray(params["m.linear_0.weight"]) ** 2))
