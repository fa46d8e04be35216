"""A saved model comes back as it was, on either library; damage is named."""

import json

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from frugax.compress.arrays import read_metadata, read_safetensors, write_arrays
from frugax.errors import (
    CorruptFileError,
    OutputError,
    ShapeError,
    UnsupportedFileError,
)
from frugax.models import IOKey, JaxBackend, Model, compile, layer_to_dict, load, op
from frugax.models.layers import (
    MLP,
    BatchNorm,
    Dropout,
    Linear,
    Repeat,
    TransformerBlock,
    TransformerLM,
)
from refusals import refuses, warns

BACKEND = JaxBackend()
TOKENS = np.arange(24, dtype=np.int32).reshape(2, 12)


def small(**options):
    model = MLP(input_size=4, hidden_sizes=(3,), output_size=2)
    compiled = compile(model, BACKEND, **options)
    return compiled, compiled.randomize_params(0)


def language_model(backend=BACKEND, depth=9, **options):
    model = TransformerLM(50, TransformerBlock(8, 2), depth=depth, length=12)
    return compile(model, backend, shapes={"input": ("batch", 12)}, **options)


def assert_equal(one, other):
    assert list(sorted(one)) == list(sorted(other))
    for key, value in one.items():
        assert value.dtype == other[key].dtype, key
        assert np.asarray(value).tobytes() == np.asarray(other[key]).tobytes(), key


def edited(path, arrays=None, **changes):
    """The file with other arrays, or with entries of its description changed."""
    about = json.loads(read_metadata(path)["frugax"]) | changes
    held = {k: np.array(a) for k, a in read_safetensors(path).items()}
    kept = held | (arrays or {})
    kept = {k: a for k, a in kept.items() if a is not None}
    write_arrays(path, kept, {"frugax": json.dumps(about)})


@pytest.fixture
def file(tmp_path):
    compiled, params = small()
    path = tmp_path / "model.safetensors"
    compiled.save(path, params)
    return path


def test_looped_and_unlooped_models_share_files(tmp_path):
    path = tmp_path / "lm.safetensors"
    looped, plain = language_model(), language_model(scan_from=None)
    params = looped.randomize_params(0)
    assert "block_*.mlp.up.weight" in params
    looped.save(path, params)
    names = set(safetensors.numpy.load_file(path))  # as other programs see it
    assert names == set(plain.param_keys)
    again, back, state = load(path, BACKEND)
    assert_equal(back, params)
    assert state == {}
    assert str(again.shapes) == str(looped.shapes)
    unlooped = load(path, BACKEND, scan_from=None)
    assert set(unlooped.params) == names
    for one in (again, unlooped.compiled):
        held = back if one is again else unlooped.params
        np.testing.assert_allclose(
            one.evaluate(held, {"input": TOKENS})["output"],
            looped.evaluate(params, {"input": TOKENS})["output"],
            atol=1e-5,
        )


def test_a_file_saved_by_jax_is_loaded_by_torch(tmp_path):
    torch = pytest.importorskip("torch")
    from frugax.models import TorchBackend

    path = tmp_path / "lm.safetensors"
    ours = language_model()
    params = ours.randomize_params(0)
    ours.save(path, params)
    theirs, weights, _ = load(path, TorchBackend())
    wanted = np.asarray(ours.evaluate(params, {"input": TOKENS})["output"])
    got = theirs.evaluate(weights, {"input": torch.as_tensor(TOKENS)})["output"]
    np.testing.assert_allclose(got.detach().numpy(), wanted, atol=2e-6)
    theirs.save(path, weights)
    assert_equal(load(path, BACKEND).params, params)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize("library", ["jax", "torch"])
def test_dtypes_stay(tmp_path, dtype, library):
    path = tmp_path / "model.safetensors"
    backend = JaxBackend(dtype=dtype)
    if library == "torch":
        pytest.importorskip("torch")
        from frugax.models import TorchBackend

        backend = TorchBackend(dtype=dtype)
    compiled = compile(Linear(3), backend, shapes={"input": (2, 4)})
    params = compiled.randomize_params()
    compiled.save(path, params)
    assert read_safetensors(path)["weight"].dtype == np.dtype(dtype)
    _, back, _ = load(path, backend)
    assert back["weight"].dtype == params["weight"].dtype
    assert (back["weight"] == params["weight"]).all()


def test_one_weight_of_another_dtype_stays(tmp_path):
    path = tmp_path / "model.safetensors"
    compiled, params = small()
    params["linear_0.weight"] = params["linear_0.weight"].astype(ml_dtypes.bfloat16)
    compiled.save(path, params)
    assert_equal(load(path, BACKEND).params, params)


def test_another_backends_dtype(file):
    wide = load(file, JaxBackend(dtype="float64"))  # loses nothing
    assert {p.dtype.name for p in wide.params.values()} == {"float64"}
    narrow = JaxBackend(dtype="bfloat16")
    with refuses(ValueError, "cast=True"):
        load(file, narrow)
    made = load(file, narrow, cast=True)
    assert {p.dtype.name for p in made.params.values()} == {"bfloat16"}
    data = {"input": narrow.ones(2, 4)}  # whose dtype is not the file's either
    assert made.compiled.evaluate(made.params, data)["output"].dtype == "bfloat16"


def test_a_file_keeps_the_state_and_the_options_of_compile(tmp_path):
    path = tmp_path / "model.safetensors"
    model = Model(Linear(4), BatchNorm(), Linear(4))
    model += Dropout(0.5)(output=IOKey("main", expose=True))
    model |= op("multiply")(left="main", right="scale", output="more")
    model |= op("add")(left="more", right="side", output="end")
    fixed = {"linear_1.bias": np.arange(4, dtype=np.float32), "scale": 2.0}
    compiled = compile(
        model,
        BACKEND,
        shapes={"input": (3, 4), "side": np.ones(4, np.int32)},
        data_keys=["linear_0.weight"],
        trainable_keys=["input"],
        constant_keys=fixed,
        discard_keys=["main"],
        inference=True,
    )
    x = np.ones((3, 4), np.float32)
    params = {"input": x, **compiled.randomize_params(0)}
    state = compiled.initial_state() | {"linear_0.weight": np.full((4, 4), 0.5, "f4")}
    with refuses(ValueError):
        compiled.save(path, params)
    compiled.save(path, params, state)
    again, back, held = load(path, BACKEND)
    assert_equal(back, params)
    assert_equal(held, state)
    assert again.param_keys == compiled.param_keys
    assert again.data_keys == compiled.data_keys
    side = {"side": np.ones(4, np.int32)}
    one = compiled.evaluate(params, state | side)
    assert_equal(again.evaluate(back, held | side), one)
    training = load(path, BACKEND, inference=False)
    assert "key" in training.compiled.data_keys
    assert "key" not in again.data_keys


def test_a_mesh_gets_its_weights_split(tmp_path, file):
    backend = JaxBackend(device_mesh=(1,))
    compiled, params, _ = load(file, backend)
    wanted = compiled.randomize_params()
    assert {k: p.sharding for k, p in params.items()} == {
        k: p.sharding for k, p in wanted.items()
    }


def test_the_file_is_written_atomically(tmp_path, file):
    compiled, params = small()
    before = file.read_bytes()
    with refuses(ShapeError, "linear_1.bias", "[2]"):
        compiled.save(file, {k: p for k, p in params.items() if k != "linear_1.bias"})
    with refuses(ShapeError, "other", "[3]"):
        compiled.save(file, params | {"other": np.ones(3, np.float32)})
    with refuses(ShapeError, "linear_0.bias", "(3,)"):
        compiled.save(file, params | {"linear_0.bias": np.ones(4, np.float32)})
    with refuses(ShapeError, "linear_0.bias", "int32"):
        compiled.save(file, params | {"linear_0.bias": np.ones(3, np.int32)})
    (tmp_path / "in the way").write_text("")
    with pytest.raises(OutputError):
        compiled.save(tmp_path / "in the way" / "model", params)
    assert file.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in the way", file.name]


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 100, -1])
def test_a_file_that_is_cut_off(file, cut):
    file.write_bytes(file.read_bytes()[:cut])
    with refuses(CorruptFileError, "model.safetensors"):
        load(file, BACKEND)


def test_any_flipped_byte_of_the_header_is_found(file):
    """Never anything but our own errors, whichever byte of the description breaks."""
    whole = bytearray(file.read_bytes())
    end = 8 + int.from_bytes(whole[:8], "little")
    for i in range(0, end, 37):
        damaged = bytearray(whole)
        damaged[i] ^= 0x15
        file.write_bytes(damaged)
        try:
            load(file, BACKEND)
        except (CorruptFileError, UnsupportedFileError, ShapeError, ValueError):
            continue
        except TypeError as e:
            raise AssertionError(f"byte {i}") from e


def test_garbage_and_strangers(tmp_path, file):
    with refuses(FileNotFoundError, "none"):
        load(tmp_path / "none", BACKEND)
    with refuses(CorruptFileError):
        load(tmp_path, BACKEND)
    stranger = tmp_path / "theirs.safetensors"
    safetensors.numpy.save_file({"w": np.ones(3)}, stranger)
    with refuses(UnsupportedFileError, "load_state_dict"):
        load(stranger, BACKEND)
    write_arrays(stranger, {}, {"frugax": "[" * 100_000})
    with refuses(CorruptFileError, "theirs.safetensors"):
        load(stranger, BACKEND)
    edited(file, version=2)
    with refuses(UnsupportedFileError, 2):
        load(file, BACKEND)
    edited(file, version=1, model=layer_to_dict(Linear(2)) | {"version": 9})
    with refuses(UnsupportedFileError, 9):
        load(file, BACKEND)
    edited(file, model={"format": "frugax-model", "version": 1, "layer": {"kind": "X"}})
    with refuses(UnsupportedFileError, "model.safetensors"):
        load(file, BACKEND)


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        (
            {"linear_0.bias": None},
            "linear_0.bias",
        ),
        ({"more": np.ones(2, "f4")}, "more"),
        (
            {"linear_1.weight": np.ones((3, 2), "f4")},
            "linear_1.weight",
        ),
        ({"linear_1.bias": np.ones(2, "i4")}, "linear_1.bias"),
    ],
)
def test_arrays_that_do_not_fit(file, arrays, named):
    edited(file, arrays)
    with refuses(ShapeError, named):
        load(file, BACKEND)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_that_are_not_finite_are_refused_unless_allowed(tmp_path, dtype):
    path = tmp_path / "model.safetensors"
    compiled = compile(Linear(3), JaxBackend(dtype=dtype), shapes={"input": (2, 4)})
    params = compiled.randomize_params()
    params["weight"] = params["weight"].at[0, :2].set(np.nan).at[1, 1].set(-np.inf)
    with warns(UserWarning, "weight"):
        compiled.save(path, params)
    with refuses(ValueError, "weight"):
        load(path, JaxBackend(dtype=dtype))
    assert_equal(
        load(path, JaxBackend(dtype=dtype), allow_non_finite=True).params, params
    )


def test_large_and_odd_arrays(tmp_path):
    path = tmp_path / "arrays"
    arrays = {
        "transposed": np.arange(6.0).reshape(2, 3).T,
        "scalar": np.asarray(3.0, np.float32),
        "empty": np.zeros((0, 3), np.float16),
        "swapped": np.arange(3, dtype=">i4"),
        "bf16": np.ones(3, ml_dtypes.bfloat16),
        "fp8": np.ones(5, ml_dtypes.float8_e4m3fn),
        "bool": np.array([True, False]),
    }
    write_arrays(path, arrays, {"note": "é"})
    back = read_safetensors(path)
    assert read_metadata(path) == {"note": "é"}
    for key, array in arrays.items():
        assert back[key].dtype == array.dtype.newbyteorder("=")
        assert back[key].shape == array.shape
        np.testing.assert_array_equal(back[key], array)
    with refuses(UnsupportedFileError, "'c'"):
        write_arrays(path, {"c": np.ones(2, complex)}, {})


def test_nothing_is_pickled_or_imported(file, monkeypatch):
    import pickle

    def refuse(*_args, **_kwargs):
        raise AssertionError("pickle")

    monkeypatch.setattr(pickle, "loads", refuse)
    monkeypatch.setattr(pickle, "load", refuse)
    _, params, _ = load(file, BACKEND)
    assert all(isinstance(p, jax.Array) for p in params.values())


def test_blocks_in_blocks(tmp_path):
    path = tmp_path / "model.safetensors"
    model = Repeat(Repeat(Linear(4), 3), 2, name="block")
    compiled = compile(model, BACKEND, shapes={"input": ("batch", 4)}, scan_from=2)
    params = compiled.randomize_params(0)
    assert max(p.ndim for p in params.values()) == 4  # a loop in a loop
    compiled.save(path, params)
    flat = load(path, BACKEND, scan_from=None)
    assert len(flat.params) == 12
    assert_equal(load(path, BACKEND, scan_from=2).params, params)
