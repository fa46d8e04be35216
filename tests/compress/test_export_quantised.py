"""Files for other tools, with the error that each costs."""

import errno
import json
import os

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from frugax import SizeBudget, compress
from frugax.cli import main
from frugax.compress._roles import ModelConfig, Role, find_roles
from frugax.errors import OutputError, UnsupportedFileError
from gguf_file import read_gguf
from refusals import refuses


@pytest.fixture
def saved(tmp_path):
    rng = np.random.default_rng(0)
    tree = {
        "w": rng.normal(size=(48, 64)).astype("f4"),
        "blocks": rng.normal(size=(6, 512)).astype("f4"),
        "odd": rng.normal(size=(9, 7)).astype("f4"),
        "b": rng.normal(size=40).astype("f4"),
        "n": np.arange(5),
    }
    path = tmp_path / "w.fxz"
    compress.save(path, tree, SizeBudget(rel_error=0.01))
    return path, compress.load_weights(path), tree


def error(ours, theirs):
    return np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)


@pytest.mark.parametrize(("bits", "limit"), [(4, 0.09), (8, 0.006)])
def test_gguf_has_the_error_that_the_report_states(saved, bits, limit):
    path, weights, originals = saved
    to = path.with_suffix(".gguf")
    report = compress.export_quantised(path, to, bits=bits)
    metadata, found = read_gguf(to)
    assert metadata == {"general.architecture": "frugax"}
    assert report.file_bytes == to.stat().st_size
    for tensor in report.tensors:
        name = tensor.name
        assert found[name].shape == weights[name].shape
        measured = error(found[name], weights[name])
        assert tensor.rel_error == pytest.approx(measured, rel=1e-4)
        assert error(found[name], originals[name]) <= tensor.total_rel_error + 1e-9
    codecs = {tensor.name: tensor.codec for tensor in report.tensors}
    assert codecs == {
        "w": f"Q{bits}_0",
        "blocks": {4: "Q4_K", 8: "Q8_0"}[bits],
        "odd": "float32",
        "b": "float32",
        "n": "int64",
    }
    assert 0 < report.rel_error < limit
    assert report.receipt.spends[0].measured == report.rel_error


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("columns", [96, 256])
def test_numbers_near_the_end_of_float16_stay_finite(tmp_path, bits, columns):
    edge = np.random.default_rng(0).normal(size=(64, columns)) / 3
    edge = (edge.clip(-1, 1) * 65504).astype("f2")
    save_file({"layers.0.a.weight": edge}, tmp_path / "w.safetensors")
    for to in (tmp_path / "w.gguf", tmp_path / "folder"):
        report = compress.export_quantised(tmp_path / "w.safetensors", to, bits=bits)
        found = (
            read_gguf(to)[1]
            if to.suffix
            else read_compressed_tensors(to, edge.dtype)[0]
        )["layers.0.a.weight"]
        assert np.isfinite(found).all()
        assert report.rel_error == pytest.approx(
            error(found.astype("f4"), edge.astype("f4")), rel=1e-4
        )


def test_a_size_alone_is_a_verdict_on_the_size(saved, tmp_path):
    path = saved[0] if isinstance(saved, tuple) else saved
    for limit, verdict in (("10MiB", "kept"), (8, "broken")):
        budget = SizeBudget(bytes=limit)
        report = compress.export_quantised(path, tmp_path / "x.gguf", budget=budget)
        assert report.verdict == verdict
        assert [s.name for s in report.receipt.spends] == ["file"]


NET = {
    "model.embed_tokens.weight": (90, 64),
    "model.layers.0.q_proj.weight": (40, 128),
    "model.layers.0.up.weight": (24, 192),
    "model.layers.0.odd.weight": (24, 49),
    "model.norm.weight": (64,),
}


def read_compressed_tensors(folder, dtype="f4"):
    """Read a folder as compressed-tensors' pack_quantized does."""
    entry = json.loads((folder / "config.json").read_text())["quantization_config"]
    (group,) = entry["config_groups"].values()
    found = load_file(folder / "model.safetensors")
    for name in [n for n in found if n.endswith("_scale")]:
        name = name.removesuffix("_scale")
        steps = found.pop(f"{name}_scale").astype(dtype)
        shape = found.pop(f"{name}_shape")
        words = found.pop(f"{name}_packed").view(np.uint8)
        width = group["weights"]["num_bits"]
        bits = np.unpackbits(words, axis=-1, bitorder="little")
        numbers = bits.reshape(len(bits), -1, width) @ 2 ** np.arange(width)
        integers = (numbers - 2 ** (width - 1))[:, : shape[1]]
        steps = np.repeat(steps, shape[1] // steps.shape[1], axis=1)
        found[name] = integers.astype(dtype) * steps
    return found, entry


@pytest.mark.parametrize(("bits", "limit"), [(4, 0.1), (8, 0.007)])
def test_a_folder_has_the_layout_of_compressed_tensors(tmp_path, bits, limit):
    rng = np.random.default_rng(0)
    tree = {name: rng.normal(size=shape).astype("f4") for name, shape in NET.items()}
    path, to = tmp_path / "w.fxz", tmp_path / "exported"
    compress.save(path, tree, SizeBudget(rel_error=0.01))
    to.mkdir()
    (to / "config.json").write_text('{"model_type": "llama"}')
    report = compress.export_quantised(path, to, bits=bits)
    found, entry = read_compressed_tensors(to)
    weights = compress.load_weights(path)
    # A head without a matrix of its own is not looked for.
    assert {"model.embed_tokens", "lm_head"} <= {*entry["ignore"]}
    group = entry["config_groups"]["group_0"]["weights"]
    assert group["group_size"] == {4: 64, 8: None}[bits]  # 192 is three of these
    assert json.loads((to / "config.json").read_text())["model_type"] == "llama"
    for tensor in report.tensors:
        measured = error(found[tensor.name], weights[tensor.name])
        assert tensor.rel_error == pytest.approx(measured, rel=1e-4)
        rounded = ("q_proj.weight", "up.weight", "odd.weight")[: 2 + (bits == 8)]
        linear = tensor.name.endswith(rounded)
        assert (0 < tensor.rel_error < limit) == linear
    with refuses(ValueError, "another"):
        compress.export_quantised(path, to, bits=bits)


def roles_of(shapes, config=None):
    found = find_roles(shapes, ModelConfig(**(config or {})))
    return {name: role for name, role in found.items() if name != "norm.weight"}


# The matrices of transformers as their files name them, each with its role.
NETS = {
    "gpt2": (
        {"model_type": "gpt2"},
        {
            "wte.weight": ((90, 64), Role.EMBEDDING),
            "transformer.wpe.weight": ((32, 64), Role.EMBEDDING),
            "h.0.attn.c_attn.weight": ((64, 192), Role.TRANSPOSED),
            "h.0.attn.bias": ((1, 1, 32, 32), Role.UNNAMED),
            "score.weight": ((2, 64), Role.HEAD),
        },
    ),
    "t5": (
        {"model_type": "t5"},
        {
            "shared.weight": ((90, 64), Role.EMBEDDING),
            "encoder.block.0.layer.0.SelfAttention.q.weight": ((64, 64), Role.LINEAR),
            "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": (
                (32, 8),
                Role.BIAS,
            ),
            "encoder.block.0.layer.1.DenseReluDense.wo.weight": ((64, 99), Role.READ),
        },
    ),
    "lora": (
        {},
        {
            "base.layers.0.q_proj.lora_A.weight": ((8, 64), Role.ADAPTER),
            "base.layers.0.q_proj.lora_B.default.weight": ((64, 8), Role.ADAPTER),
            "base.layers.0.q_proj.base_layer.weight": ((64, 64), Role.LINEAR),
        },
    ),
    "mamba": (
        {"model_type": "mamba"},
        {
            "layers.0.mixer.in_proj.weight": ((256, 64), Role.LINEAR),
            "layers.0.mixer.dt_proj.weight": ((128, 4), Role.READ),
            "layers.0.mixer.out_proj.weight": ((64, 128), Role.READ),
        },
    ),
    "bert": (
        {},
        {
            "bert.embeddings.word_embeddings.weight": ((90, 64), Role.EMBEDDING),
            "bert.encoder.layer.0.attention.output.dense.weight": (
                (64, 64),
                Role.LINEAR,
            ),
            "bert.encoder.layer.0.output.dense.weight": ((64, 256), Role.LINEAR),
            "bert.pooler.dense.weight": ((64, 64), Role.OUTSIDE),
            "cls.predictions.decoder.weight": ((90, 64), Role.HEAD),
            "classifier.out_proj.weight": ((3, 64), Role.HEAD),
        },
    ),
    "meta llama": (
        {},
        {
            "tok_embeddings.weight": ((90, 64), Role.EMBEDDING),
            "layers.0.attention.wq.weight": ((64, 64), Role.LINEAR),
            "layers.0.feed_forward.w1.weight": ((96, 64), Role.LINEAR),
            "output.weight": ((90, 64), Role.HEAD),
        },
    ),
    "rwkv": (
        {},
        {
            "emb.weight": ((90, 64), Role.EMBEDDING),
            "blocks.0.att.key.weight": ((64, 64), Role.LINEAR),
            "blocks.0.att.time_maa_w1": ((64, 32), Role.UNNAMED),
            "head.weight": ((90, 64), Role.HEAD),
        },
    ),
    "mixtures": (
        {"experts": frozenset({4})},
        {
            "model.layers.0.mlp.gate.weight": ((4, 64), Role.ROUTER),
            "model.layers.0.mlp.chooser.weight": ((4, 64), Role.ROUTER),
            "model.layers.0.self_attn.k_proj.weight": ((4, 64), Role.LINEAR),
            "model.layers.0.mlp.shared_expert_gate.weight": ((1, 64), Role.ROUTER),
            "model.layers.0.mlp.gate_proj.weight": ((96, 64), Role.LINEAR),
            "model.layers.0.mlp.experts.3.w1.weight": ((96, 64), Role.LINEAR),
            "model.layers.0.mlp.experts.down_proj": ((4, 64, 96), Role.EXPERTS),
            "model.layers.0.mlp.experts.down_proj_bias": ((4, 64), Role.BIAS),
            "model.layers.0.moe.input_linear.weight": ((4, 99, 64), Role.EXPERTS),
            "model.layers.0.mixer.conv1d.weight": ((64, 1, 4), Role.CONVOLUTION),
            "mtp.predict.weight": ((128, 64), Role.OUTSIDE),
        },
    ),
    "gates of features": (
        {},
        {
            "blocks.0.ffn.proj_up_gate.weight": ((96, 64), Role.LINEAR),
            "layers.0.mlp.gate.weight": ((96, 64), Role.LINEAR),
            "layers.1.mlp.gate.weight": ((8, 64), Role.ROUTER),
        },
    ),
    "a mixture that hears": (
        {"experts": frozenset({4}), "hidden": frozenset({64})},
        {
            "layers.0.per_layer_input_gate.weight": ((32, 64), Role.LINEAR),
            "audio.layers.0.conv.weight": ((4, 1, 7), Role.CONVOLUTION),
            "audio.positions": ((1, 9, 64), Role.UNNAMED),
            "layers.0.moe.down": ((4, 64, 96), Role.EXPERTS),
        },
    ),
    "by the vocabulary alone": (
        {"vocabulary": frozenset({90})},
        {
            "net.words.weight": ((90, 64), Role.EMBEDDING),
            "net.back.weight": ((96, 64), Role.EMBEDDING),  # filled up
            "net.dense.weight": ((64, 64), Role.LINEAR),
        },
    ),
    "a plain net": (
        {},
        {
            "net.0.weight": ((64, 64), Role.LINEAR),
            "k": ((64, 64), Role.UNNAMED),
            "cls_token": ((1, 1, 64), Role.VECTOR),
        },
    ),
}


@pytest.mark.parametrize("net", NETS)
def test_the_roles_of_tensors(net):
    config, tensors = NETS[net]
    shapes = {name: shape for name, (shape, _) in tensors.items()}
    found = roles_of(shapes | {"norm.weight": (64,)}, config)
    assert found == {name: role for name, (_, role) in tensors.items()}


def test_kinds_of_segments_are_no_vocabulary(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "bert", "vocab_size": 90, "type_vocab_size": 2}')
    assert ModelConfig.read(path).vocabulary == {90}


def test_parts_under_another_name_are_left_out_by_their_last_words(tmp_path):
    tree = {
        "tower.layers.0.up.weight": np.ones((64, 64), "f4"),
        "projector.linear_1.weight": np.ones((64, 64), "f4"),
    }
    compress.save(tmp_path / "w.fxz", tree, SizeBudget(max_abs=0))
    config = {"model_type": "llava", "text_config": {"model_type": "llama"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    compress.export_quantised(tmp_path / "w.fxz", tmp_path / "to")
    _, entry = read_compressed_tensors(tmp_path / "to")
    assert entry["ignore"] == ["projector.linear_1", r"re:.*\.projector\.linear_1$"]


@pytest.mark.parametrize("kind", ["", "gpt_oss", "llama4"])
@pytest.mark.parametrize("bits", [4, 8])
def test_experts_are_rounded_one_by_one(tmp_path, kind, bits):
    rng = np.random.default_rng(0)
    normal = lambda *shape: rng.normal(size=shape).astype("f4")
    transposed = bool(kind)
    gate_up = normal(3, 64, 256) if transposed else normal(3, 256, 64)
    down = normal(3, 128, 64) if transposed else normal(3, 64, 128)
    prefix = "model.layers.0.mlp.experts"
    tree = {f"{prefix}.gate_up_proj": gate_up, f"{prefix}.down_proj": down}
    compress.save(tmp_path / "w.fxz", tree, SizeBudget(max_abs=0))
    config = {"model_type": kind} if kind else {"text_config": {"hidden_size": 64}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.warns(UserWarning, match="experts"):
        report = compress.export_quantised(
            tmp_path / "w.fxz", tmp_path / "to", bits=bits
        )
    assert report.dense_share == 0
    assert report.quantised == 2
    found, entry = read_compressed_tensors(tmp_path / "to")
    assert entry["ignore"] == []
    for i in range(3):
        rows = gate_up[i].T if transposed else gate_up[i]
        gate, up = rows[:128], rows[128:]
        if kind == "gpt_oss":
            gate, up = rows[::2], rows[1::2]
        expected = {
            "gate_proj": gate,
            "up_proj": up,
            "down_proj": down[i].T if transposed else down[i],
        }
        for name, matrix in expected.items():
            decoded = found[f"{prefix}.{i}.{name}.weight"]
            assert error(decoded, matrix) < {4: 0.1, 8: 0.008}[bits]


def test_a_model_of_a_library_that_does_not_read_the_folder_is_named(tmp_path):
    save_file({"a.weight": np.ones((64, 64), "f4")}, tmp_path / "a.safetensors")
    (tmp_path / "config.json").write_text('{"_diffusers_version": "0.42.1"}')
    with pytest.warns(UserWarning, match="diffusers does not read"):
        compress.export_quantised(tmp_path / "a.safetensors", tmp_path / "to")


def test_a_folder_whose_tokeniser_has_no_room_is_not_there(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    model = tmp_path / "model"
    model.mkdir()
    save_file({"a.weight": np.ones((64, 64), "f4")}, model / "model.safetensors")
    for name in ("config.json", "tokenizer.json"):
        (model / name).write_text('{"model_type": "llama"}')
    monkeypatch.setattr("shutil.copyfile", full)
    with refuses(OutputError, tmp_path / "to"):
        compress.export_quantised(model, tmp_path / "to")
    assert os.listdir(tmp_path) == ["model"]


def test_the_report_states_the_share_that_stays(tmp_path):
    path, matrix = tmp_path / "w.fxz", np.ones((64, 64), "f4")
    compress.save(path, {"a.kernel": matrix, "b": matrix[0]}, SizeBudget(max_abs=0))
    report = compress.export_quantised(path, tmp_path / "exported")
    assert report.quantised == 0
    assert report.dense_share == 1
    assert Role.UNNAMED.value in str(report)
    with pytest.raises(SystemExit) as caught:
        main(["export", str(path), "-o", str(tmp_path / "again")])
    assert caught.value.code == 1
    tree = {"a.weight": matrix, "b.kernel": matrix}
    compress.save(path, tree, SizeBudget(max_abs=0))
    assert compress.export_quantised(path, tmp_path / "half").dense_share == 0.5
    kept = compress.export_quantised(path, tmp_path / "kept", keep=["a"])
    assert kept.dense_share == 1


def test_gguf_leaves_routers_and_rounds_experts(tmp_path):
    path, rng = tmp_path / "w.fxz", np.random.default_rng(0)
    tree = {
        "layers.0.mlp.experts.up": rng.normal(size=(3, 64, 64)).astype("f4"),
        "layers.0.mlp.gate.weight": rng.normal(size=(3, 64)).astype("f4"),
    }
    compress.save(path, tree, SizeBudget(max_abs=0))
    report = compress.export_quantised(path, tmp_path / "w.gguf")
    assert [t.codec for t in report.tensors] == ["Q8_0", "float32"]


def test_the_command_reports_whether_the_error_is_within_a_limit(saved, capsys):
    path, *_ = saved
    to = str(path.with_suffix(".gguf"))
    command = ["export", str(path), "-o", to, "--force", "--bits", "4"]
    for limit, code in ((["0.2"], 0), (["0.01"], 1), ([], 0)):
        with pytest.raises(SystemExit) as caught:
            main([*command, *(f"--rel-error={value}" for value in limit)])
        assert caught.value.code == code
    assert "broken" in capsys.readouterr().out
    with pytest.raises(SystemExit) as caught:
        main(["export", str(path), "-o", to + ".bin"])
    assert caught.value.code == 2


def test_a_tensor_that_the_format_cannot_hold_is_refused(tmp_path):
    path = tmp_path / "w.fxz"
    compress.save(path, {"c": np.ones(3, "c16")}, SizeBudget(max_abs=0))
    for name in ("w.gguf", "w"):
        with refuses(UnsupportedFileError, "'c'"):
            compress.export_quantised(path, tmp_path / name)
        assert not (tmp_path / name).exists()
    large = {"w": np.full((2, 32), 1e30, "f4")}
    compress.save(path, large, SizeBudget(max_abs=0))
    with refuses(UnsupportedFileError, "float16", "'w'"):
        compress.export_quantised(path, tmp_path / "w.gguf")
    for name in ("n" * 64, "é" * 32):  # bytes count, and not characters
        compress.save(path, {name: np.ones((2, 32), "f4")}, SizeBudget(max_abs=0))
        with refuses(UnsupportedFileError, repr(name)):
            compress.export_quantised(path, tmp_path / "w.gguf")
    with refuses(ValueError, 8):
        compress.export_quantised(path, tmp_path / "w", bits=6)
    with refuses(ValueError, "gguf"):
        compress.export_quantised(path, tmp_path / "w.bin")
