"""Damaged and forged files: refused by name, in little memory, without a crash."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from forged_files import DAMAGES, FORGERIES, rewritten, rng_of
from frugax import SizeBudget, compress
from frugax.compress import CompressedFile
from frugax.errors import (
    CorruptFileError,
    UnsupportedFileError,
)

pytestmark = pytest.mark.slow

DAMAGE = (CorruptFileError, UnsupportedFileError)
# What a file may always hold, decoded once into int64 on its way: forged numbers of
# 64 MiB of uint8 make eight times that. See "What a reader must refuse".
MOST_BYTES = 10 * 64 << 20


@pytest.fixture(scope="module")
def files():
    """Small files that use every codec."""
    rng = np.random.default_rng(0)
    normal = rng.normal(size=(16, 17)).astype(np.float32)
    exact = {
        "w": normal,
        "signs": np.tile(normal[0], 20) * rng.choice([-1, 1], 340).astype(np.float32),
        "mask": rng.random(999) < 0.2,
        "half": normal.astype(np.float16),
    }
    noise = {"n": rng.integers(0, 256, 300).astype(np.uint8), "none": np.zeros((0, 2))}
    wide = {"d": normal.astype(np.float64) * 1000}
    return [
        compress.compress(exact, SizeBudget(max_abs=0)),
        compress.compress(noise, SizeBudget(max_abs=0)),
        compress.compress(wide, SizeBudget(rel_error=0.02)),
        compress.compress([{"w": normal}, (noise, None)], SizeBudget(rel_error=0.05)),
        compress.compress(rng.normal(size=(40, 33)), SizeBudget(rel_error=0.1)),
        by_columns(rng.normal(size=(32, 40)).astype(np.float32)),
    ]


def by_columns(w):
    """A file whose tensor is coded column by column."""
    x = np.exp(np.linspace(0, 5, 40, dtype=np.float32)) * np.eye(40, dtype=np.float32)
    rule = compress.calibrate(lambda w, x: x @ w.T, w, [x], draws=8)
    data = compress.compress(w, SizeBudget("6x"), sensitivity=rule)
    assert data.report.tensors[0].codec == "trellis columns scaled"
    return data


def tried(wrong):
    """Decode a file every way there is; the errors that it gave."""
    said = []
    try:
        compress.decompress(wrong)
    except DAMAGE as e:
        said.append(str(e))
    try:
        with CompressedFile(wrong, place="x") as file:
            for name in file:
                try:
                    file[name]
                except DAMAGE as e:
                    said.append(str(e))
    except DAMAGE as e:
        said.append(str(e))
    return said


def corrupt(files, seeds):
    for seed in seeds:
        rng = rng_of(seed)
        data = files[seed % len(files)]
        make = (DAMAGES + FORGERIES)[int(rng.integers(len(DAMAGES + FORGERIES)))]
        wrong = make(data, rng)
        said = tried(wrong)
        if make in DAMAGES and wrong != data:
            assert said, (seed, make)


def test_some_hundred_damaged_files_are_refused(files):
    corrupt(files, range(200))


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(10))
def test_a_hundred_thousand_damaged_files_are_refused(files, part):
    corrupt(files, range(10_000 * part, 10_000 * (part + 1)))


def test_a_forged_file_cannot_allocate_much_memory(files):
    tracemalloc.start()
    try:
        for seed in range(20):
            rng = rng_of(seed)
            tried(FORGERIES[-1](files[seed % len(files)], rng))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST_BYTES


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_header_is_read_or_refused(files, data):
    key = data.draw(
        st.sampled_from(
            [
                *("structure", "chunks", "codec", "digest", "dtype", "name", "shape"),
                *("step", "rel_error", "max_abs", "tied"),
            ]
        )
    )
    value = data.draw(json_values)

    def change(header):
        if key == "structure":
            header[key] = value
        else:
            data.draw(st.sampled_from(header["tensors"]))[key] = value

    tried(rewritten(data.draw(st.sampled_from(files)), change))
