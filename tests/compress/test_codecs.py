"""Each codec alone: exact where it says so, near the entropy where it does not."""

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings

from frugax.compress import _lossless, _quantised, _rans
from frugax.errors import CorruptFileError

DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"),
    *("uint64", "float16", "float32", "float64", "complex64", "complex128"),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
]


def entropy_bytes(numbers):
    _, counts = np.unique(numbers, return_counts=True)
    share = counts / len(numbers)
    return len(numbers) * float(-(share * np.log2(share)).sum()) / 8


@settings(max_examples=100, deadline=None)
@given(
    hnp.arrays(np.int64, st.integers(1, 300), elements=st.integers(-(2**61), 2**61))
    | hnp.arrays(np.int64, st.integers(1, 5000), elements=st.integers(-3, 90))
)
def test_numbers_come_back(numbers):
    block = _rans.encode(numbers)
    np.testing.assert_array_equal(_rans.decode(block, len(numbers)), numbers)


@pytest.mark.parametrize(
    ("deviation", "over"), [(1.2, 1.01), (9.5, 1.005), (40, 1.005)]
)
def test_coded_numbers_are_close_to_their_entropy(deviation, over):
    rng = np.random.default_rng(0)
    numbers = np.rint(rng.normal(size=200_000) * deviation).astype(np.int64)
    size = len(_rans.encode(numbers))
    assert entropy_bytes(numbers) < size < over * entropy_bytes(numbers)
    assert abs(_rans.encoded_bytes(numbers) - size) < 0.003 * size


def test_a_far_outlier_does_not_cost_a_table():
    rng = np.random.default_rng(0)
    numbers = np.rint(rng.normal(size=100_000) * 9.5).astype(np.int64)
    plain = len(_rans.encode(numbers))
    numbers[7] = 10**6
    # 16,384 table entries, nearly all zero, shrink to almost nothing; what is left is
    # the cost of raw low bits.
    assert len(_rans.encode(numbers)) < 1.25 * plain
    numbers[7] = 1000
    assert len(_rans.encode(numbers)) < 1.002 * plain + 100


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_damaged_block_never_decodes_to_other_numbers_unnoticed(data):
    # Below the checksums: the block's own checks must hold off crashes and hangs.
    numbers = np.arange(500) % 17
    block = bytearray(_rans.encode(numbers))
    at = data.draw(st.integers(0, len(block) - 1))
    block[at] ^= data.draw(st.integers(1, 255))
    try:
        found = _rans.decode(bytes(block), 500)
    except CorruptFileError:
        return
    assert found.shape == (500,)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_bit_pattern_survives_without_loss(dtype):
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 256, 999 * dtype.itemsize, np.uint8)
    if dtype.kind == "b":
        raw &= 1
    values = raw.view(dtype)
    block = memoryview(_lossless.encode(values))
    again = _lossless.decode(block, dtype, len(values))
    assert again.tobytes() == values.tobytes()


def test_special_floats_keep_their_bits():
    bits = [0x7FC00001, 0xFFC12345, 0x80000000, 0x7F800000, 1, 0x80000001, 0]
    values = np.array(bits, np.uint32).view(np.float32)
    again = _lossless.decode(memoryview(_lossless.encode(values)), values.dtype, 7)
    assert again.view(np.uint32).tolist() == bits


def test_random_normal_floats_shrink_to_their_exponents_entropy():
    values = np.random.default_rng(0).normal(size=300_000).astype(np.float32)
    planes = values.view(np.uint32)
    exponents = (planes >> 23) & 255
    floor = entropy_bytes(exponents) + 300_000 * 3
    # Half a percent: the coder's own distance from the entropy, and block heads.
    assert len(_lossless.encode(values)) < 1.005 * floor


@settings(max_examples=200, deadline=None)
@given(
    st.floats(1e-30, 1e30),
    st.sampled_from(["float16", "float32", "float64", "bfloat16"]),
    st.integers(0, 2**32 - 1),
)
def test_decoding_is_one_rounded_product_and_within_half_a_step(size, name, seed):
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    step = _quantised.step_below(size)
    assert step is not None
    assert size * (1 - 2**-10) <= step.size <= size
    values = np.random.default_rng(seed).normal(size=100) * size * 50
    with np.errstate(over="ignore"):
        values = values.astype(dtype)
    values = values[np.isfinite(values)]
    levels = _quantised.levels_of(values, step)
    assert levels is not None
    decoded = _quantised.values_of(levels, step, dtype)
    assert np.isfinite(decoded).all()
    exact = levels.astype(np.float64) * step.size
    # The dtype's own rounding, relative or at its smallest number.
    info = ml_dtypes.finfo(dtype)
    slack = np.abs(exact) * float(info.eps) + float(info.smallest_subnormal)
    gap = np.abs(decoded.astype(np.float64) - values.astype(np.float64))
    near_top = np.abs(exact) > float(info.max) - step.size
    assert (gap <= step.size / 2 * (1 + 1e-6) + slack + near_top * step.size).all()


def test_the_largest_numbers_of_a_type_do_not_round_to_infinity():
    step = _quantised.step_below(1000.0)
    assert step is not None
    values = np.array([65504, -65504, 12], np.float16)
    levels = _quantised.levels_of(values, step)
    assert levels is not None
    # 66 thousands would be nearer, and infinite.
    assert levels.tolist() == [65, -65, 0]
    assert np.isfinite(_quantised.values_of(levels, step, values.dtype)).all()


def test_jax_and_torch_decode_bit_for_bit_alike():
    import jax.numpy as jnp

    torch = pytest.importorskip("torch")
    step = _quantised.step_below(0.0123)
    assert step is not None
    levels = np.arange(-40_000, 40_000)
    for name in ("float32", "bfloat16", "float16"):
        dtype = np.dtype(getattr(ml_dtypes, name, name))
        ours = _quantised.values_of(levels, step, dtype).view(np.uint8)
        by_jax = (jnp.asarray(levels, jnp.float32) * jnp.float32(step.size)).astype(
            name
        )
        by_torch = (torch.from_numpy(levels).to(torch.float32) * step.size).to(
            getattr(torch, name)
        )
        np.testing.assert_array_equal(np.asarray(by_jax).view(np.uint8), ours)
        np.testing.assert_array_equal(by_torch.view(torch.uint8).numpy(), ours)
