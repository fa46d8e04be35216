"""Weights that another tool rounded to integers are kept exactly, or refused."""

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import frugax
from frugax import SizeBudget, compress
from refusals import refuses

FLOATS = np.linspace(-1, 1, 128, dtype="f4")


def integers(dtype):
    return np.arange(128 * 32).reshape(128, 32).astype(dtype)


PAIRS = {
    "gptq": {"q_proj.qweight": integers("i4"), "q_proj.scales": FLOATS},
    "awq": {"l.0.fc.qweight": integers("i4"), "l.0.fc.scales": FLOATS},
    "bitsandbytes": {"up.weight": integers("u1"), "up.weight.absmax": FLOATS},
    "bitsandbytes of 8 bits": {"up.weight": integers("i1"), "up.SCB": FLOATS},
    "aqlm": {"up.codes": integers("i2"), "up.scales": FLOATS},
    "vptq": {"up.indices": integers("u2"), "up.weight_scale": FLOATS},
    "compressed-tensors": {
        "up.weight_packed": integers("i4"),
        "up.weight_scale": FLOATS,
    },
    "float8": {
        "up.weight": integers("i1").astype(ml_dtypes.float8_e4m3fn),
        "up.weight_scale_inv": FLOATS,
    },
    "mxfp4": {"up_blocks": integers("u1"), "up_scales": integers("u1")[:, :1]},
    "int8": {"w": integers("i1"), "w_scale": FLOATS},
}


@pytest.mark.parametrize("form", PAIRS)
@pytest.mark.parametrize("budget", [SizeBudget("3x"), SizeBudget(rel_error=0.1)])
def test_steps_of_integers_are_never_rounded(form, budget):
    weights = PAIRS[form]
    with refuses(frugax.UnsupportedFileError, *map(repr, weights)):
        compress.plan(weights, budget)


@pytest.mark.parametrize("form", PAIRS)
def test_they_are_kept_to_the_last_bit(form):
    back = compress.decompress(compress.compress(PAIRS[form], SizeBudget(max_abs=0)))
    for name, array in PAIRS[form].items():
        np.testing.assert_array_equal(back[name], array)


def test_they_are_not_exported_again(tmp_path):
    save_file(PAIRS["gptq"], tmp_path / "model.safetensors")
    with refuses(frugax.UnsupportedFileError, "'q_proj.qweight'", "'q_proj.scales'"):
        compress.export_quantised(tmp_path, tmp_path / "again.gguf", bits=4)
    assert not (tmp_path / "again.gguf").exists()


@pytest.mark.parametrize(
    "weights",
    [
        # As in Swin and CLIP: the scales are no steps, and the integers no weights.
        {"attn.relative_position_index": integers("i8"), "attn.logit_scale": FLOATS},
        {"position_ids": integers("i4"), "logit_scale": np.float32(2.7)},
        {"a.mask": integers("u1"), "b.scale": FLOATS},
    ],
)
def test_other_integers_stand_beside_scales(weights):
    assert compress.plan(weights, SizeBudget(rel_error=0.1)).file_bytes > 0
