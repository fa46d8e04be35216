"""Layers give the numbers of torch.nn with the same weights."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from frugax.models import IOKey, JaxBackend, Model, compile, layers
from frugax.models.layers import (
    LSTM,
    BatchNorm,
    Bidirectional,
    Embedding,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    Linear,
    MultiHeadAttention,
    RMSNorm,
    TransformerBlock,
)

from .layer_cases import arrays, close, labels, numbers, run

pytestmark = pytest.mark.slow


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
