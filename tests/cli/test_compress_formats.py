"""`frugax compress FOLDER --to FORMAT`: files for other tools, and one table."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from frugax.cli import main
from gguf_file import read_gguf

# A dot in the folder's name is no suffix.
NAME = "Tiny-0.1B"
SIZES = {
    "vocab_size": 300,
    "max_position_embeddings": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
CONFIG = {"model_type": "llama", "rms_norm_eps": 1e-5, **SIZES}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    normal = lambda *shape: rng.normal(size=shape).astype("f4")
    head = normal(300, 64)
    weights = {"model.embed_tokens.weight": normal(300, 64), "lm_head.weight": head}
    for layer in range(2):
        names = {"self_attn.q_proj": (64, 64), "mlp.up_proj": (128, 64)}
        for name, shape in names.items():
            weights[f"model.layers.{layer}.{name}.weight"] = normal(*shape)
    whole = tmp_path / NAME
    whole.mkdir()
    save_file(weights, whole / "model.safetensors")
    (whole / "config.json").write_text(json.dumps(CONFIG))
    (whole / "tokenizer_config.json").write_text("{}")
    (whole / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(weights, "model.safetensors")})
    )
    return weights


@pytest.fixture
def compress(capsys):
    def run(*options):
        with pytest.raises(SystemExit) as ended:
            main(["compress", NAME, *options])
        printed = capsys.readouterr()
        return ended.value.code, printed.out, " ".join(printed.err.split())

    return run


def rows_of(table):
    """The number of tensors in each row of the table, by the kind of tensor."""
    found = {}
    for line in table.splitlines():
        name, *cells = line.split()
        if cells and cells[0].isdigit() and "of" not in cells:
            found[name] = int(cells[0])
    return found


def test_a_folder_becomes_a_gguf_file(folder, compress, tmp_path):
    code, out, _ = compress("--size", "4bpw", "--to", "gguf")
    assert code == 0
    metadata, tensors = read_gguf(tmp_path / f"{NAME}.gguf")
    assert metadata["general.architecture"] == "llama"
    assert len(tensors) == len(folder)
    assert rows_of(out) == {
        "lm_head.weight": 1,
        "model.embed_tokens.weight": 1,
        "model.layers.*.mlp.up_proj.weight": 2,
        "model.layers.*.self_attn.q_proj.weight": 2,
        "all": 6,
    }
    size = (tmp_path / f"{NAME}.gguf").stat().st_size
    assert f"{size:,}" in out
    assert sorted(p.name for p in tmp_path.iterdir()) == [NAME, f"{NAME}.gguf"]


def test_a_folder_becomes_one_of_compressed_tensors(folder, compress, tmp_path):
    code, _, _ = compress("--size", "4bpw", "--to", "compressed-tensors")
    assert code == 0
    made = tmp_path / f"{NAME}-compressed-tensors"
    assert sorted(p.name for p in made.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer_config.json",
    ]
    config = json.loads((made / "config.json").read_text())
    assert config.items() >= CONFIG.items()
    assert config["quantization_config"]["format"] == "pack-quantized"
    tensors = load_file(made / "model.safetensors")
    assert "model.layers.1.mlp.up_proj.weight_packed" in tensors
    # Embeddings stay as they are.
    kept = tensors["model.embed_tokens.weight"]
    assert (kept == folder["model.embed_tokens.weight"]).all()


def test_a_folder_becomes_an_fxz_file(folder, compress, tmp_path):
    code, out, _ = compress("--size", "4bpw", "--to", "fxz")
    assert code == 0
    weights = sum(array.size for array in folder.values())
    assert (tmp_path / f"{NAME}.fxz").stat().st_size <= weights * 4 / 8
    assert rows_of(out)["all"] == 6


@pytest.mark.parametrize(
    ("limits", "bits"),
    [
        (("--size", "6bpw"), 6),
        (("--size", "8bpw"), 8),
        (("--rel-error", "0.2"), 4),
        (("--rel-error", "0.03"), 6),
        (("--rel-error", "0.01"), 8),
        (("--ratio", "3.5"), 8),
        (("--ratio", "6"), 4),
        (("--size", "8bpw", "--rel-error", "0.01"), 8),
    ],
)
def test_the_limits_choose_the_bits(folder, compress, tmp_path, limits, bits):
    rng = np.random.default_rng(0)
    path = tmp_path / NAME / "model.safetensors"
    save_file({"w": rng.normal(size=(64, 512)).astype("f4")}, path)
    for name in ("model.safetensors.index.json", "config.json"):
        (tmp_path / NAME / name).unlink()
    code, out, _ = compress(*limits, "--to", "gguf")
    assert code == 0
    codec = {4: "Q4_K", 6: "Q6_K", 8: "Q8_0"}[bits]
    assert f" {codec} " in out


@pytest.mark.parametrize("to", ["new/w.gguf", "new/folder"])
def test_the_folder_above_is_made(folder, compress, tmp_path, to):
    assert compress("--size", "8bpw", "--to", to)[0] == 0
    assert [p.name for p in (tmp_path / "new").iterdir()] == [to.partition("/")[2]]


@pytest.mark.parametrize("to", ["gguf", "compressed-tensors"])
@pytest.mark.parametrize("limits", [("--size", "1KiB"), ("--rel-error", "1e-6")])
def test_what_is_there_stays_where_nothing_is_within_the_limits(
    folder, compress, tmp_path, to, limits
):
    options = ("--to", to, "--force")
    assert compress("--size", "8bpw", *options)[0] == 0
    (there,) = (p for p in tmp_path.iterdir() if p.name != NAME)
    file = there / "model.safetensors" if there.is_dir() else there
    before, names = file.read_bytes(), sorted(tmp_path.rglob("*"))
    code, out, _ = compress(*limits, *options)
    assert code == 1
    assert "broken" in out
    assert file.read_bytes() == before
    assert sorted(tmp_path.rglob("*")) == names


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--size", "3bpw", "--to", "gguf"), "3bpw"),
        (("--size", "4bpw", "--to", "x.zip"), "x.zip"),
        (("--size", "4bpw", "--to", NAME), NAME),
        (("--max-abs", "0.1", "--to", "gguf"), "max_abs"),
        (("--size", "4bpw", "--to", "there.gguf"), "there.gguf"),
    ],
)
def test_a_mistake_is_one_line(folder, compress, tmp_path, options, named):
    (tmp_path / "there.gguf").write_bytes(b"mine")
    code, out, err = compress(*options)
    assert code == 2
    assert out == ""
    assert "Traceback" not in err
    assert named in err
    assert sorted(p.name for p in tmp_path.iterdir()) == [NAME, "there.gguf"]
    assert (tmp_path / "there.gguf").read_bytes() == b"mine"
