"""Decoding with caches, sliding windows, and mixtures of experts."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import frugax as ml
from frugax.jaxprs import flops
from frugax.models import (
    MultiHeadAttention,
    SparseExperts,
    TransformerBlock,
    TransformerLM,
    load_exported,
    op,
)
from refusals import refuses
from tiers import mostly_thorough

RNG = np.random.default_rng(0)
LENGTH = 9


def llama(**settings):
    block = TransformerBlock(
        16, heads=4, hidden=24, activation="silu", gated=True, causal=True,
        norm="rms", bias=False, rotary_base=500.0, **settings,
    )  # fmt: skip
    return TransformerLM(50, block, depth=2, positions="rotary", tied=False)


def backends():
    found: list[Any] = [ml.JaxBackend()]
    if "TorchBackend" in ml.models.__all__:
        found.append(ml.TorchBackend())
    return found


SETTINGS = [
    {},
    {"kv_heads": 2},
    {"kv_heads": 1, "window": 3},
    {"kv_heads": 2, "window": 4, "experts": 4},
]


@pytest.mark.parametrize("backend", backends(), ids=lambda b: b.name)
@pytest.mark.parametrize(
    "settings", mostly_thorough(SETTINGS, in_ci=lambda s: len(s) == 3), ids=str
)
def test_decoding_equals_the_whole_sequence(backend, settings):
    model = llama(**settings)
    full = ml.compile(model, backend, shapes={"input": (2, LENGTH)})
    params = {k: 2 * v for k, v in full.randomize_params(0).items()}
    tokens = RNG.integers(0, 50, (2, LENGTH)).astype("int32")
    wanted = full.evaluate(params, {"input": backend.array(tokens)})["output"]
    decoder = dataclasses.replace(model, cache_length=LENGTH)
    step = ml.compile(decoder, backend, shapes={"input": (2, "time")})
    assert step.param_keys == full.param_keys
    state, at, parts = step.initial_state(), 0, []
    for count in (4, 1, 3, 1):  # a prompt, single tokens and several
        data = {
            "input": backend.array(tokens[:, at : at + count]),
            "position": backend.array(np.int32(at)),
        }
        outputs = step.evaluate(params, data | state)
        state = {key: outputs[key] for key in state}
        parts.append(np.asarray(outputs["output"]))
        at += count
    np.testing.assert_allclose(np.concatenate(parts, 1), wanted, 1e-4, 1e-4)
    # Beyond the cache a result would be wrong, and is NaN.
    data = {
        "input": backend.array(tokens[:, :1]),
        "position": backend.array(np.int32(at)),
    }
    late = step.evaluate(params, data | state)["output"]
    assert np.isnan(np.asarray(late)).all()


def test_an_exported_decoder_runs_without_the_model(tmp_path):
    pytest.importorskip("flatbuffers")
    model, backend = llama(kv_heads=2, window=4, experts=4), ml.JaxBackend()
    full = ml.compile(model, backend, shapes={"input": (1, LENGTH)})
    params = full.randomize_params(0)
    decoder = dataclasses.replace(model, cache_length=LENGTH)
    step = ml.compile(decoder, backend, shapes={"input": (1, 1)})
    step.export(tmp_path / "step", params=params)
    program = load_exported(tmp_path / "step")
    tokens = RNG.integers(0, 50, (1, LENGTH)).astype("int32")
    state, parts = step.initial_state(), []
    for at in range(LENGTH):
        data = {"input": tokens[:, at : at + 1], "position": np.int32(at)}
        outputs = program(data | state)
        state = {key: outputs[key] for key in state}
        parts.append(np.asarray(outputs["output"]))
    wanted = full.evaluate(params, {"input": tokens})["output"]
    np.testing.assert_allclose(np.concatenate(parts, 1), wanted, 1e-4, 1e-5)


def test_looped_blocks_lend_their_weights_to_the_decoder():
    model, backend = dataclasses.replace(llama(), depth=8), ml.JaxBackend()
    full = ml.compile(model, backend, shapes={"input": (1, 4)})
    decoder = dataclasses.replace(model, cache_length=4)
    step = ml.compile(decoder, backend, shapes={"input": (1, 4)})
    params = full.randomize_params(0)
    tokens = RNG.integers(0, 50, (1, 4)).astype("int32")
    data = {"input": tokens, "position": np.int32(0), **step.initial_state()}
    got = step.evaluate(full.unstack_params(params), data)["output"]
    wanted = full.evaluate(params, {"input": tokens})["output"]
    np.testing.assert_allclose(got, wanted, 1e-4, 1e-5)


@pytest.mark.thorough
def test_each_row_may_have_a_position_of_its_own():
    backend = ml.JaxBackend()
    q, k, v = (jnp.asarray(RNG.normal(size=(2, 1, 2, 4)), "float32") for _ in range(3))
    keys, values = (jnp.asarray(RNG.normal(size=(2, 5, 2, 4)), "float32") for _ in "kv")
    out, new_keys, _ = backend.cached_attention(q, k, v, np.array([1, 3]), keys, values)
    for row, at in enumerate((1, 3)):
        one = slice(row, row + 1)
        alone = backend.cached_attention(
            q[one], k[one], v[one], np.int32(at), keys[one], values[one]
        )
        np.testing.assert_allclose(out[one], alone[0], 1e-5, 1e-6)
        assert (new_keys[row, at] == k[row, 0]).all()


@pytest.mark.parametrize("backend", backends(), ids=lambda b: b.name)
@pytest.mark.parametrize("mask", [None, "boolean", "added"])
def test_a_window_sees_the_last_positions_only(backend, mask):
    q, k, v = (RNG.normal(size=(2, 6, 2, 4)).astype("f4") for _ in range(3))
    back = np.arange(6)[:, None] - np.arange(6)
    seen = (back >= 0) & (back < 3)
    given, whole = None, seen
    if mask is not None:
        given = RNG.random((2, 1, 6, 6)) < 0.7
        whole = seen & given
        if mask == "added":
            given = np.where(given, 0.0, -np.inf).astype("f4")
    args = [backend.array(x) for x in (q, k, v)]
    given = None if given is None else backend.array(given)
    got = backend.attention(*args, given, causal=True, window=3)
    wanted = backend.attention(*args, backend.array(np.broadcast_to(whole, (6, 6))
                               if mask is None else whole))  # fmt: skip
    np.testing.assert_allclose(got, wanted, 1e-4, 1e-5)


def test_wrong_windows_and_caches_are_refused():
    with refuses(ValueError, "window", "causal=True"):
        MultiHeadAttention(8, heads=2, window=3)
    with refuses(ValueError, "window"):
        ml.JaxBackend().attention(*[jnp.ones((1, 2, 4))] * 3, window=3)
    with refuses(ValueError, "cache_length", 'positions="rotary"'):
        TransformerLM(9, TransformerBlock(8, 2), depth=1, length=4, cache_length=4)
    with refuses(ValueError, "chosen", 3):
        SparseExperts(2, chosen=3)


# --- experts ----------------------------------------------------------------------


def dense_experts(x, scores, up, down, gate, chosen):
    """All experts for all tokens, weighted by shares that are mostly 0."""
    tokens = x.reshape(-1, x.shape[-1])
    best, which = jax.lax.top_k(scores.reshape(-1, len(up)), chosen)
    hot = jax.nn.one_hot(which, len(up))
    shares = jnp.einsum("nk,nke->ne", jax.nn.softmax(best), hot)
    hidden = jax.nn.silu(jnp.einsum("nd,ehd->neh", tokens, gate))
    hidden = hidden * jnp.einsum("nd,ehd->neh", tokens, up)
    out = jnp.einsum("neh,eoh,ne->no", hidden, down, shares)
    return out.reshape(*x.shape[:-1], -1)


@pytest.mark.parametrize(
    "case",
    mostly_thorough(
        [(1, 4, 2), (7, 3, 1), (5, 5, 5), (40, 4, 2), (300, 2, 1)],
        in_ci=lambda case: case[0] in (7, 40),
    ),
)
def test_experts_equal_all_of_them_weighted(case):
    tokens, experts, chosen = case
    draw = lambda *shape: jnp.asarray(RNG.normal(size=shape), "float32")
    args = [draw(tokens, 6), draw(tokens, experts), draw(experts, 8, 6),
            draw(experts, 6, 8), draw(experts, 8, 6)]  # fmt: skip
    backend = ml.JaxBackend()
    ours = lambda *a: backend.sparse_experts(*a, chosen=chosen)
    theirs = lambda *a: dense_experts(*a, chosen=chosen)
    pulled = draw(tokens, 6)

    @jax.jit
    def run(*args):
        both = (jax.vjp(f, *args) for f in (ours, theirs))
        return [(out, pull(pulled)) for out, pull in both]

    (output, found), (wanted, wanted_gradients) = run(*args)
    np.testing.assert_allclose(output, wanted, 1e-4, 1e-4)
    for mine, want in zip(found, wanted_gradients, strict=True):
        np.testing.assert_allclose(mine, want, 1e-3, 1e-3)
    if len(backends()) == 2:
        import torch

        leaves = [torch.tensor(np.asarray(a), requires_grad=True) for a in args]
        out = ml.TorchBackend().sparse_experts(*leaves, chosen=chosen)
        np.testing.assert_allclose(out.detach(), output, 1e-4, 1e-4)
        torch_grads = torch.autograd.grad(out, leaves, torch.tensor(np.asarray(pulled)))
        for mine, want in zip(found, torch_grads, strict=True):
            np.testing.assert_allclose(mine, want, 1e-3, 1e-3)


def test_all_tokens_may_choose_one_expert():
    backend = ml.JaxBackend()
    x, weight = RNG.normal(size=(20, 3)).astype("f4"), RNG.normal(size=(4, 2, 3))
    weight = weight.astype("f4")
    got = backend.grouped_linear(x, weight, np.array([0, 0, 20, 0], "int32"))
    np.testing.assert_allclose(got, x @ weight[2].T, 1e-5, 1e-5)


def test_the_work_does_not_grow_with_the_number_of_experts():
    def count(experts):
        layer = SparseExperts(experts, chosen=2, hidden=32)
        compiled = ml.compile(layer, ml.JaxBackend(), shapes={"input": (512, 16)})
        params = compiled.randomize_params(0)
        loss = lambda p, x: compiled.pure(p, {"input": x})["output"].sum()
        grad = jax.make_jaxpr(jax.grad(loss))
        router = 3 * 2 * 512 * 16 * experts  # linear in the experts by its nature
        return flops(grad(params, jnp.ones((512, 16))).jaxpr) - router

    # Blocks are filled up to a multiple of their size, by less than one an expert.
    assert count(32) < 1.5 * count(4)


def test_a_free_number_of_tokens_is_exported():
    pytest.importorskip("flatbuffers")
    layer, backend = SparseExperts(4, hidden=8), ml.JaxBackend()
    compiled = ml.compile(layer, backend, shapes={"input": ("tokens", 6)})
    params = compiled.randomize_params(0)
    program = compiled.export(params=params)
    x = RNG.normal(size=(5, 6)).astype("f4")
    wanted = compiled.evaluate(params, {"input": x})["output"]
    np.testing.assert_allclose(program({"input": x})["output"], wanted, 1e-4, 1e-5)


def test_the_start_of_rotary_positions_is_added():
    x = RNG.normal(size=(2, 5, 2, 4)).astype("f4")
    backend = ml.JaxBackend()
    moved = backend.rotary_positions(x[:, 2:], None, np.int32(2))
    np.testing.assert_allclose(moved, backend.rotary_positions(x)[:, 2:], 1e-5, 1e-6)
    assert op("rotary_positions").optional == {"positions", "start"}
