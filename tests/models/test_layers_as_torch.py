"""Layers of several ops give the numbers of torch.nn with the same weights."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from frugax.models import IOKey, JaxBackend, Model, compile
from frugax.models.layers import (
    BatchNorm,
    MultiHeadAttention,
    TransformerBlock,
)

from .layer_cases import arrays, close, numbers, run

pytestmark = pytest.mark.slow


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def own(module: Any) -> dict[str, np.ndarray]:
    """A torch module's weights by name."""
    return {k: v.detach().numpy() for k, v in module.state_dict().items()}


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
