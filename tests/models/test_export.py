"""An exported program equals the model, without needing it."""

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax.compress.arrays import read_metadata, read_safetensors, write_arrays
from frugax.errors import CorruptFileError, MissingExtraError, UnsupportedFileError
from frugax.models import JaxBackend, compile, load_exported
from frugax.models.layers import MLP, Dropout, Linear, Sequential
from refusals import refuses

pytest.importorskip("flatbuffers")
BACKEND = JaxBackend()


def small(backend: Any = BACKEND):
    model = MLP(input_size=4, hidden_sizes=(3,), output_size=2)
    compiled = compile(model, backend)
    return compiled, compiled.randomize_params(0)


def inputs(batch, dtype: Any = np.float32):
    return {"input": np.random.default_rng(batch).normal(size=(batch, 4)).astype(dtype)}


@pytest.mark.parametrize("held", [False, True])
def test_a_program_survives_with_its_free_batch(tmp_path, held):
    compiled, params = small()
    path = tmp_path / "program"
    made = compiled.export(path, params=params if held else None)
    back = load_exported(path)
    assert back.has_params is held
    assert back.platforms == (jax.default_backend(),)
    assert str(back.shapes["input"]) == "(batch, 4)"
    for batch in (1, 5):
        wanted = compiled.evaluate(params, inputs(batch))["output"]
        for program in (made, back):
            given = (inputs(batch),) if held else (params, inputs(batch))
            np.testing.assert_array_equal(program(*given)["output"], wanted)


@pytest.mark.slow
def test_the_file_needs_no_frugax(tmp_path):
    compiled, params = small()
    path = tmp_path / "program"
    compiled.export(path, params=params)
    code = f"""
import numpy as np, jax, safetensors.numpy, sys
content = safetensors.numpy.load_file({str(path)!r})["stablehlo"]
call = jax.export.deserialize(bytearray(content.tobytes())).call
print(call({{"input": np.ones((2, 4), np.float32)}})["output"].tolist())
assert not any(name.startswith("frugax") for name in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    wanted = compiled.evaluate(params, {"input": np.ones((2, 4), np.float32)})
    assert done.stdout.strip() == str(wanted["output"].tolist())


def test_other_platforms():
    compiled, _ = small()
    assert compiled.export(platforms=["cpu", "cuda"]).platforms == ("cpu", "cuda")
    with refuses(ValueError, "gpu", "platforms"):
        compiled.export(platforms=["gpu"])


def test_double_precision_and_random_keys(tmp_path):
    backend = JaxBackend(dtype="float64")
    compiled, params = small(backend)
    compiled.export(tmp_path / "double")
    made = load_exported(tmp_path / "double")(params, inputs(3, np.float64))["output"]
    assert made.dtype == "float64"
    wanted = compiled.evaluate(params, inputs(3, np.float64))["output"]
    np.testing.assert_array_equal(made, wanted)
    assert jnp.ones(1).dtype == "float32"  # nothing was switched on for good
    drops = compile(
        Sequential([Linear(8), Dropout(0.5)]), BACKEND, shapes={"input": ("batch", 4)}
    )
    params = drops.randomize_params(0)
    drops.export(tmp_path / "drops")
    data = inputs(3) | {"key": jax.random.key(1)}
    np.testing.assert_array_equal(
        load_exported(tmp_path / "drops")(params, data)["output"],
        drops.evaluate(params, data)["output"],
    )


def test_gradients_on_request(tmp_path):
    compiled, params = small()
    compiled.export(tmp_path / "program", gradients=True)
    program = load_exported(tmp_path / "program")

    def loss(run):
        return lambda params: jnp.sum(run(params, inputs(3))["output"] ** 2)

    got = jax.jit(jax.grad(loss(program)))(params)
    wanted = jax.jit(jax.grad(loss(compiled.evaluate)))(params)
    for key, value in wanted.items():
        np.testing.assert_allclose(got[key], value, rtol=1e-5)


def test_arguments_that_do_not_fit_the_program_are_refused():
    compiled, params = small()
    program = compiled.export(params=params)
    with refuses(TypeError, 2):
        program(params, inputs(2))
    with refuses(ValueError, "input"):
        program({})
    with refuses(ValueError, "'x'"):
        program(inputs(2) | {"x": np.ones(1)})
    with refuses(ValueError, "params"):
        compiled.export(params={})


def test_torch_models_cannot_be_exported():
    pytest.importorskip("torch")
    from frugax.models import TorchBackend

    with refuses(TypeError, "JaxBackend"):
        small(TorchBackend())[0].export()


def test_damage_is_found(tmp_path):
    path = tmp_path / "program"
    compiled, params = small()
    compiled.export(path, params=params)
    held, metadata = read_safetensors(path), read_metadata(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with refuses(CorruptFileError):
        load_exported(path)
    flipped = np.array(held["stablehlo"])
    flipped[flipped.size // 2] ^= 1
    write_arrays(path, {"stablehlo": flipped}, metadata)
    with refuses(CorruptFileError):
        load_exported(path)
    text = metadata["frugax-exported"]
    for wrong, error, named in (
        ("{}", CorruptFileError, "description"),
        ("[", CorruptFileError, "description"),
        (
            text.replace('"version": 1', '"version": 2'),
            UnsupportedFileError,
            2,
        ),
    ):
        write_arrays(path, held, {"frugax-exported": wrong})
        with refuses(error, named):
            load_exported(path)
    compiled.save(path, params)
    with refuses(UnsupportedFileError):
        load_exported(path)


def test_a_missing_flatbuffers_package_is_named(tmp_path, monkeypatch):
    import importlib.util

    compiled, _ = small()
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n: None if n == "flatbuffers" else find(n)
    )
    with refuses(MissingExtraError, "frugax[export]"):
        compiled.export(tmp_path / "program")
    assert list(tmp_path.iterdir()) == []
