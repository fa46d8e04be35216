"""GGUF files of models: llama.cpp's names, and the answers of the model they are of."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from frugax import compress
from frugax.compress.codecs import k_quants
from frugax.errors import CorruptFileError, UnsupportedFileError
from gguf_file import q4_k, q6_k, read_gguf
from refusals import refuses


def relative(ours, theirs):
    theirs = theirs.astype("f8")
    return np.linalg.norm(ours - theirs) / max(1e-30, np.linalg.norm(theirs))


RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    "values",
    [
        RNG.normal(size=(3, 512)),
        RNG.standard_t(3, size=(3, 512)) * 0.02,
        np.abs(RNG.normal(size=(3, 512))) + 1,
        np.where(RNG.random((3, 512)) < 0.05, RNG.normal(size=(3, 512)), 0),
        np.zeros((3, 512)),
        -np.ones((3, 512)),
    ],
    ids=["normal", "heavy", "positive", "sparse", "zeros", "constant"],
)
@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_blocks_decode_to_what_is_stated(values, dtype):
    array = values.astype(dtype)
    for encode, decode, length, limit in (
        (k_quants.encode_q4_k, q4_k, 144, 0.12),
        (k_quants.encode_q6_k, q6_k, 210, 0.04),
    ):
        blocks, decoded = encode(array)
        raw = np.frombuffer(blocks, np.uint8).reshape(-1, length)
        np.testing.assert_allclose(
            decode(raw).reshape(array.shape), decoded, rtol=1e-6, atol=1e-7
        )
        assert relative(decoded, array) < limit


def test_blocks_are_read_alike_by_the_package_gguf():
    gguf = pytest.importorskip("gguf")
    array = RNG.normal(size=(4, 512)).astype("f4")
    for kind, encode in (
        ("Q4_K", k_quants.encode_q4_k),
        ("Q6_K", k_quants.encode_q6_k),
    ):
        blocks, decoded = encode(array)
        raw = np.frombuffer(blocks, np.uint8).reshape(4, -1)
        read = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
        assert np.array_equal(read, decoded)


CONFIG = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "vocab_size": 40,
    "rope_theta": 10000.0,
}
MIXTURE = {
    "num_experts": 3,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
}


def make_model(kind, *, tied=False, fused=False):
    """Draw the weights of a small transformer, under the names of transformers."""
    rng = np.random.default_rng(1)
    normal = lambda *s: (rng.normal(size=s) / s[-1] ** 0.5).astype("f4")
    w = {"model.embed_tokens.weight": normal(40, 256)}
    w["model.norm.weight"] = 1 + normal(256)
    if not tied:
        w["lm_head.weight"] = normal(40, 256)
    for i in range(2):
        p = f"model.layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            w[f"{p}{norm}.weight"] = 1 + normal(256)
        shapes = {"q": (256, 256), "k": (128, 256), "v": (128, 256), "o": (256, 256)}
        for name, shape in shapes.items():
            w[f"{p}self_attn.{name}_proj.weight"] = normal(*shape)
            if kind == "qwen2" and name != "o":
                w[f"{p}self_attn.{name}_proj.bias"] = normal(shape[0])
        if kind.startswith("qwen3"):
            for name in "qk":
                w[f"{p}self_attn.{name}_norm.weight"] = 1 + normal(64)
        if kind in ("mixtral", "qwen3_moe"):
            moe = "block_sparse_moe" if kind == "mixtral" else "mlp"
            names = ("w1", "w3", "w2")
            if kind != "mixtral":
                names = ("gate_proj", "up_proj", "down_proj")
            w[f"{p}{moe}.gate.weight"] = normal(3, 256)
            sets = [[normal(256, 256) for _ in range(3)] for _ in names]
            if fused:
                gate_up = [np.concatenate(pair) for pair in zip(*sets[:2], strict=True)]
                w[f"{p}{moe}.experts.gate_up_proj"] = np.stack(gate_up)
                w[f"{p}{moe}.experts.down_proj"] = np.stack(sets[2])
            else:
                for name, matrices in zip(names, sets, strict=True):
                    for e, matrix in enumerate(matrices):
                        w[f"{p}{moe}.experts.{e}.{name}.weight"] = matrix
        else:
            for name, shape in (("gate", (512, 256)), ("up", (512, 256))):
                w[f"{p}mlp.{name}_proj.weight"] = normal(*shape)
            w[f"{p}mlp.down_proj.weight"] = normal(256, 512)
    return w


def rms_norm(x, weight):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def rotate(x, *, neighbours):
    """Turn pairs of each head by angles of their position."""
    positions = np.arange(len(x))[:, None, None]
    angles = positions * 10000.0 ** (-np.arange(32) / 32)
    out = np.empty_like(x)
    pairs = (slice(0, None, 2), slice(1, None, 2))
    one, two = pairs if neighbours else (slice(32), slice(32, None))
    out[..., one] = x[..., one] * np.cos(angles) - x[..., two] * np.sin(angles)
    out[..., two] = x[..., two] * np.cos(angles) + x[..., one] * np.sin(angles)
    return out


def forward(layers, embedding, norm, head, tokens, *, neighbours):
    """The logits of a decoder, of matrices by llama.cpp's names of each layer."""
    x = embedding[tokens].astype("f8")
    for w in layers:
        h = rms_norm(x, w["attn_norm.weight"])
        q, k, v = (
            (h @ w[f"attn_{n}.weight"].T + w.get(f"attn_{n}.bias", 0)) for n in "qkv"
        )
        q, k, v = (a.reshape(len(x), -1, 64) for a in (q, k, v))
        if "attn_q_norm.weight" in w:
            q = rms_norm(q, w["attn_q_norm.weight"])
            k = rms_norm(k, w["attn_k_norm.weight"])
        q, k = (rotate(a, neighbours=neighbours) for a in (q, k))
        k, v = (np.repeat(a, 2, axis=1) for a in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / 8
        scores += np.triu(np.full((len(x), len(x)), -1e9), 1)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", scores, v).reshape(len(x), -1)
        x = x + mixed @ w["attn_output.weight"].T
        h = rms_norm(x, w["ffn_norm.weight"])
        if "ffn_gate_inp.weight" not in w:
            gated = silu(h @ w["ffn_gate.weight"].T) * (h @ w["ffn_up.weight"].T)
            x = x + gated @ w["ffn_down.weight"].T
            continue
        share = np.exp(h @ w["ffn_gate_inp.weight"].T)
        share /= share.sum(-1, keepdims=True)
        for e in range(3):
            gate, up, down = (
                w[f"ffn_{n}_exps.weight"][e] for n in ("gate", "up", "down")
            )
            x = x + share[:, e : e + 1] * ((silu(h @ gate.T) * (h @ up.T)) @ down.T)
    return rms_norm(x, norm) @ head.T


def logits_of_transformers(w, tokens):
    rename = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.o_proj": "attn_output",
        **{f"self_attn.{n}_proj": f"attn_{n}" for n in "qkv"},
        **{f"self_attn.{n}_norm": f"attn_{n}_norm" for n in "qk"},
        **{f"mlp.{n}_proj": f"ffn_{n}" for n in ("gate", "up", "down")},
        "mlp.gate": "ffn_gate_inp",
        "block_sparse_moe.gate": "ffn_gate_inp",
    }
    layers = []
    for i in range(2):
        prefix, layer = f"model.layers.{i}.", {}
        of_layer = {n.removeprefix(prefix): a for n, a in w.items() if prefix in n}
        for name, array in of_layer.items():
            module, _, ending = name.rpartition(".")
            if module in rename:
                layer[f"{rename[module]}.{ending}"] = array
        for moe in ("mlp", "block_sparse_moe"):
            if f"{moe}.experts.gate_up_proj" in of_layer:
                both = of_layer[f"{moe}.experts.gate_up_proj"]
                layer["ffn_gate_exps.weight"] = both[:, :256]
                layer["ffn_up_exps.weight"] = both[:, 256:]
                layer["ffn_down_exps.weight"] = of_layer[f"{moe}.experts.down_proj"]
            for theirs, ours in zip(
                ("w1", "w3", "w2", "gate_proj", "up_proj", "down_proj"),
                ("gate", "up", "down") * 2,
                strict=True,
            ):
                names = [f"{moe}.experts.{e}.{theirs}.weight" for e in range(3)]
                if names[0] in of_layer:
                    stack = np.stack([of_layer[n] for n in names])
                    layer[f"ffn_{ours}_exps.weight"] = stack
        layers.append(layer)
    embedding = w["model.embed_tokens.weight"]
    head = w.get("lm_head.weight", embedding)
    norm = w["model.norm.weight"]
    return forward(layers, embedding, norm, head, tokens, neighbours=False)


def logits_of_llama_cpp(w, tokens, *, neighbours):
    layers = [
        {n.removeprefix(f"blk.{i}."): a for n, a in w.items() if f"blk.{i}." in n}
        for i in range(2)
    ]
    embedding = w["token_embd.weight"]
    head = w.get("output.weight", embedding)
    return forward(
        *(layers, embedding, w["output_norm.weight"], head, tokens),
        neighbours=neighbours,
    )


MODELS = [
    ("llama", {}),
    ("mistral", {"tied": True}),
    ("mixtral", {}),
    ("qwen2", {}),
    ("qwen3", {"tied": True}),
    ("qwen3_moe", {}),
    ("qwen3_moe", {"fused": True}),
]


@pytest.mark.parametrize(
    ("kind", "options", "bits", "limit"),
    [
        *((*model, 8, 0.03) for model in MODELS),
        *((*model, 4, 0.35) for model in (MODELS[0], MODELS[1], MODELS[-1])),
    ],
)
def test_a_model_has_its_answers_in_llama_cpps_names(
    tmp_path, kind, options, bits, limit
):
    w = make_model(kind, **options)
    config = CONFIG | {"model_type": kind}
    config["tie_word_embeddings"] = options.get("tied", False)
    if kind in ("mixtral", "qwen3_moe"):
        config |= MIXTURE
    stored = dict(w)
    if options.get("tied"):  # as some folders have it
        stored["lm_head.weight"] = w["model.embed_tokens.weight"].copy()
    folder = tmp_path / "model"
    folder.mkdir()
    save_file(stored, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    report = compress.export_quantised(folder, tmp_path / "m.gguf", bits=bits)
    metadata, found = read_gguf(tmp_path / "m.gguf")
    name = metadata["general.architecture"]
    assert metadata[f"{name}.block_count"] == 2
    assert metadata[f"{name}.attention.head_count_kv"] == 2
    assert all(len(n) < 64 for n in found)
    tokens = np.array([3, 1, 39, 7, 7, 2])
    expected = logits_of_transformers(w, tokens)
    given = logits_of_llama_cpp(found, tokens, neighbours=name == "llama")
    assert relative(given, expected) < limit
    codecs = {t.codec for t in report.tensors if not (t.why_dense or t.tied)}
    assert codecs <= ({"Q8_0"} if bits == 8 else {"Q4_K", "Q6_K"})
    if options.get("tied"):
        assert "output.weight" not in found
    if (head := found.get("output.weight")) is not None and bits == 4:
        assert relative(head, w["lm_head.weight"]) < 0.02  # of six bits


def test_gpt2_is_turned_to_rows_of_outputs(tmp_path):
    rng = np.random.default_rng(0)
    w = {
        "wte.weight": rng.normal(size=(40, 256)),
        "wpe.weight": rng.normal(size=(64, 256)),
        "h.0.attn.c_attn.weight": rng.normal(size=(256, 768)),
        "h.0.attn.bias": np.ones((1, 1, 64, 64)),
        "ln_f.weight": rng.normal(size=256),
    }
    w = {name: array.astype("f2") for name, array in w.items()}
    save_file(w, tmp_path / "model.safetensors")
    config = {"model_type": "gpt2", "n_embd": 256, "n_head": 4, "n_layer": 1}
    config |= {"n_positions": 64, "vocab_size": 40, "layer_norm_epsilon": 1e-5}
    (tmp_path / "config.json").write_text(json.dumps(config))
    compress.export_quantised(tmp_path, tmp_path / "m.gguf", bits=6)
    metadata, found = read_gguf(tmp_path / "m.gguf")
    assert metadata["gpt2.feed_forward_length"] == 1024
    assert set(found) == {
        "token_embd.weight",
        "position_embd.weight",
        "blk.0.attn_qkv.weight",
        "output_norm.weight",
    }
    assert (
        relative(found["blk.0.attn_qkv.weight"], w["h.0.attn.c_attn.weight"].T) < 0.02
    )
    assert np.array_equal(found["position_embd.weight"], w["wpe.weight"])


@pytest.mark.parametrize("fallback", [False, True])
def test_the_vocabulary_of_a_tokeniser_is_written(tmp_path, fallback):
    save_file(make_model("llama"), tmp_path / "model.safetensors")
    config = CONFIG | {"model_type": "llama", "bos_token_id": 1, "eos_token_id": [2, 3]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    vocabulary = {"<s>": 1, "</s>": 2, "a": 4, "b": 5, "ab": 6, "<0x0A>": 3, "<unk>": 0}
    tokeniser = {
        "model": {
            "type": "BPE",
            "vocab": vocabulary,
            "merges": ["a b"] if fallback else [["a", "b"]],
            "byte_fallback": fallback,
        },
        "added_tokens": [
            {"id": 1, "content": "<s>", "special": True},
            {"id": 7, "content": "<tool>", "special": False},
        ],
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokeniser))
    compress.export_quantised(tmp_path, tmp_path / "m.gguf", bits=4)
    found, _ = read_gguf(tmp_path / "m.gguf")
    tokens = found["tokenizer.ggml.tokens"]
    assert tokens[:9] == [
        *("<unk>", "<s>", "</s>", "<0x0A>", "a", "b", "ab", "<tool>", "[PAD8]"),
    ]
    assert len(tokens) == 40
    assert found["tokenizer.ggml.token_type"][:9] == [1, 3, 1, 6, 1, 1, 1, 4, 5]
    assert found["tokenizer.ggml.bos_token_id"] == 1
    assert found["tokenizer.ggml.eos_token_id"] == 2
    if fallback:
        assert found["tokenizer.ggml.model"] == "llama"
        scores = found["tokenizer.ggml.scores"]
        assert scores[4] > scores[5] > scores[6]
    else:
        assert found["tokenizer.ggml.model"] == "gpt2"
        assert found["tokenizer.ggml.pre"] == "llama-bpe"
        assert found["tokenizer.ggml.merges"] == ["a b"]


def test_a_model_that_llama_cpp_cannot_have_is_refused(tmp_path):
    w = make_model("llama")
    save_file(w, tmp_path / "model.safetensors")
    path = tmp_path / "config.json"
    config = CONFIG | {"model_type": "llama"}
    for changed, named in (
        ({"rope_scaling": {"rope_type": "dynamic"}}, "dynamic"),
        ({"vocab_size": None}, "vocab_size"),
    ):
        path.write_text(json.dumps(config | changed))
        with refuses(UnsupportedFileError, named):
            compress.export_quantised(tmp_path, tmp_path / "m.gguf")
    path.write_text("{")
    with refuses(CorruptFileError, path):
        compress.export_quantised(tmp_path, tmp_path / "m.gguf")
    path.write_text(json.dumps(config))
    w["model.layers.0.self_attn.extra.weight"] = np.ones((64, 256), "f4")
    save_file(w, tmp_path / "model.safetensors")
    with refuses(UnsupportedFileError, "model.layers.0.self_attn.extra.weight"):
        compress.export_quantised(tmp_path, tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()


def test_llama_3_has_its_factors_of_frequencies(tmp_path):
    save_file(make_model("llama"), tmp_path / "model.safetensors")
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}
    scaling |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    config = CONFIG | {"model_type": "llama", "rope_scaling": scaling}
    config["rope_theta"] = 500000.0
    (tmp_path / "config.json").write_text(json.dumps(config))
    compress.export_quantised(tmp_path, tmp_path / "m.gguf")
    metadata, found = read_gguf(tmp_path / "m.gguf")
    factors = found["rope_freqs.weight"]
    assert factors.shape == (32,)
    assert factors[0] == 1
    assert factors[-1] == 8
    assert np.all(np.diff(factors) >= 0)
    assert metadata["llama.rope.freq_base"] == 500000.0
