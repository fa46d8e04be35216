"""Each codec alone: exact where it says so, near the entropy where it does not."""

import struct

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings

from frugax.compress.codecs import (
    encode_grid,
    lossless,
    split_chunks,
    step_below,
    to_levels,
    to_values,
)
from frugax.errors import CorruptFileError, UnsupportedFileError
from refusals import refuses

DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"),
    *("uint64", "float16", "float32", "float64", "complex64", "complex128"),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
    *(ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.float4_e2m1fn),
    *(ml_dtypes.float8_e8m0fnu, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz),
]


def entropy_bytes(numbers):
    _, counts = np.unique(numbers, return_counts=True)
    share = counts / len(numbers)
    return len(numbers) * float(-(share * np.log2(share)).sum()) / 8


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_bit_pattern_survives_without_loss(dtype):
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 256, 999 * dtype.itemsize, np.uint8)
    if dtype.kind == "b":
        raw &= 1
    values = raw.view(dtype)
    block = memoryview(lossless.encode(values))
    again = lossless.decode(block, dtype, len(values))
    assert again.tobytes() == values.tobytes()


def exactly_back(values):
    """Code and decode; the block, if every bit came back and the input is as it was."""
    before = values.tobytes()
    values.flags.writeable = False
    block = lossless.encode(values)
    again = lossless.decode(memoryview(block), values.dtype, len(values))
    assert again.tobytes() == before == values.tobytes()
    return block


def coders(block, word, count=0):
    """Layout and coders of every part, read with the words of docs/container.md."""
    found, at = [], 0
    while at < len(block):
        layout, at, planes = block[at], at + 1, []
        if layout == 2:
            at += word // 2 * min(count, lossless.PART)
            count -= lossless.PART
        for _ in range(word // 2 if layout == 2 else word):
            coder, length = struct.unpack_from("<BI", block, at)
            planes.append(coder)
            at += 5 + length
        found.append((layout, *planes))
    return found


def test_special_floats_keep_their_bits():
    bits = [0x7FC00001, 0xFFC12345, 0x80000000, 0x7F800000, 1, 0x80000001, 0]
    exactly_back(np.array(bits, np.uint32).view(np.float32))


def test_random_normal_floats_shrink_to_their_exponents_entropy():
    values = np.random.default_rng(0).normal(size=300_000).astype(np.float32)
    exponents = (values.view(np.uint32) >> 23) & 255
    floor = entropy_bytes(exponents) + 300_000 * 3
    block = exactly_back(values)
    assert floor < len(block) < 1.005 * floor
    assert coders(block, 4, 300_000) == [(2, 0, 1)] * 2
    # Where the low bytes are not noise, they are planes too.
    few = values.astype(np.float16).astype(np.float32)
    assert coders(exactly_back(few), 4)[0][0] == 1
    double = exactly_back(np.random.default_rng(0).normal(size=9000))
    assert coders(double, 8, 9000) == [(2, 0, 0, 1, 1)]
    with refuses(CorruptFileError):
        lossless.decode(memoryview(double)[:35_999], np.dtype(np.float64), 9000)
    for dtype in (np.uint16, ml_dtypes.bfloat16):  # which have no layout 2
        with refuses(UnsupportedFileError, 2):
            lossless.decode(memoryview(double), np.dtype(dtype), 9000)


def test_a_plane_of_two_values_takes_a_bit_or_less():
    rng = np.random.default_rng(0)
    # As float32 made from bfloat16: the sign is alone in the lowest bytes.
    values = rng.normal(size=9001).astype(ml_dtypes.bfloat16).astype(np.float32)
    assert coders(exactly_back(values), 4)[0][:3] == (1, 2, 2)
    for share in (0.5, 0.1, 0.0):
        mask = rng.random(80_001) < share
        floor = entropy_bytes(mask)
        assert len(exactly_back(mask)) < 1.1 * floor + 64


def test_numbers_that_repeat_up_to_their_sign_are_found():
    rng = np.random.default_rng(0)
    once = rng.normal(size=500).astype(np.float32)
    values = np.tile(once, 40) * rng.choice([-1, 1], 20_000).astype(np.float32)
    block = exactly_back(values)
    assert coders(block, 4)[0][0] == 0
    assert len(block) < 0.3 * values.nbytes


def test_columns_of_their_own_exponents_are_found_above_noise():
    rng = np.random.default_rng(0)
    scales = 2.0 ** rng.integers(0, 3, 1000)
    noise = rng.uniform(1, 2, (100, 1000)) * rng.choice([-1, 1], (100, 1000))
    values = (noise * scales).astype(np.float32).reshape(-1)
    assert len(exactly_back(values)) < 3.02 * len(values)


def test_each_part_of_a_block_is_coded_independently():
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, lossless.PART, np.uint8)
    values = np.concatenate([noise, np.zeros(5, np.uint8), noise[:0]])
    assert coders(exactly_back(values), 1) == [(0, 0), (0, 2)]
    exactly_back(np.zeros(0, np.float32))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_damaged_block_of_planes_is_refused_or_still_numbers(data):
    rng = np.random.default_rng(0)
    values = np.concatenate(
        [rng.normal(size=700), np.zeros(100), np.tile(rng.normal(size=50), 10)]
    ).astype(np.float32)
    block = bytearray(lossless.encode(values))
    for _ in range(data.draw(st.integers(1, 4))):
        block[data.draw(st.integers(0, len(block) - 1))] ^= data.draw(
            st.integers(1, 255)
        )
    cut = data.draw(st.none() | st.integers(0, len(block)))
    try:
        found = lossless.decode(memoryview(block)[:cut], values.dtype, len(values))
    except (CorruptFileError, UnsupportedFileError):
        return
    assert found.shape == values.shape


@pytest.mark.parametrize(
    ("block", "error", "named"),
    [
        (b"", CorruptFileError, "planes"),
        (b"\0\0\4\0", CorruptFileError, "planes"),
        (b"\2\0\4\0\0\0abcd", UnsupportedFileError, 2),
        (b"\0\7\4\0\0\0abcd", UnsupportedFileError, 7),
        (b"\0\0\3\0\0\0abc", CorruptFileError, 4),
        (b"\0\0\4\0\0\0abcde", CorruptFileError, "lengths"),
        (b"\0\2\2\0\0\0ab", CorruptFileError, "plane"),
        (b"\0\2\4\0\0\0ab\2a", UnsupportedFileError, 2),
    ],
)
def test_a_block_of_planes_with_a_false_header_is_refused(block, error, named):
    with refuses(error, named):
        lossless.decode(memoryview(block), np.dtype(np.uint8), 4)


@settings(max_examples=200, deadline=None)
@given(
    st.floats(1e-30, 1e30),
    st.sampled_from(["float16", "float32", "float64", "bfloat16"]),
    st.integers(0, 2**32 - 1),
)
def test_decoding_is_one_rounded_product_and_within_half_a_step(size, name, seed):
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    step = step_below(size)
    assert step is not None
    assert size * (1 - 2**-10) <= step.size <= size
    values = np.random.default_rng(seed).normal(size=100) * size * 50
    with np.errstate(over="ignore"):
        values = values.astype(dtype)
    values = values[np.isfinite(values)]
    levels = to_levels(values, step)
    assert levels is not None
    decoded = to_values(levels, step, dtype)
    assert np.isfinite(decoded).all()
    exact = levels.astype(np.float64) * step.size
    # The dtype's own rounding, relative or at its smallest number.
    info = ml_dtypes.finfo(dtype)
    slack = np.abs(exact) * float(info.eps) + float(info.smallest_subnormal)
    gap = np.abs(decoded.astype(np.float64) - values.astype(np.float64))
    near_top = np.abs(exact) > float(info.max) - step.size
    assert (gap <= step.size / 2 * (1 + 1e-6) + slack + near_top * step.size).all()


def test_chunks_that_no_trellis_takes_leave_the_others_their_blocks():
    full = np.full((32, 32), 1e12, np.float32)  # whose integers are out of range
    some = np.linspace(-9, 9, 1024, dtype=np.float32).reshape(32, 32)
    step = step_below(1.0)
    assert step is not None
    for arrays in ([full], [full, some, full]):
        parts = (part for array in arrays for part in split_chunks(array, step))
        found = list(encode_grid(parts))
        assert [f is None for f in found] == [array is full for array in arrays]


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("share", [0.03, 0.3, 0.9])
def test_numbers_near_the_end_of_a_dtype_become_its_largest(name, share):
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    largest = float(ml_dtypes.finfo(dtype).max)
    step = step_below(min(share * largest, 1.3e36))
    assert step is not None
    rng = np.random.default_rng(0)
    values = np.clip(rng.normal(size=(64, 64)), -1, 1) * largest
    values = values.astype(dtype)
    levels = to_levels(values, step)
    assert levels is not None
    (coded,) = encode_grid(split_chunks(values, step))
    assert coded is not None
    for decoded in (to_values(levels, step, dtype), coded[1].reshape(values.shape)):
        assert np.isfinite(decoded).all()
        gap = decoded.astype(np.float64) - values.astype(np.float64)
        assert np.sqrt(np.mean(gap**2)) < 0.6 * step.size
