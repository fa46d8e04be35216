"""Which dtype comes out: one rule on both libraries, and JAX's own lattice is it."""

import contextlib
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax.models.ops import OPS, as_dtype, is_floating, result_dtype, sum_dtype
from frugax.models.to_jax import JaxNamespace
from refusals import refuses

torch = pytest.importorskip("torch")

from frugax.models.to_torch import TorchNamespace  # noqa: E402

NARROW = ("bool", "uint8", "int8", "int32", "float16", "bfloat16", "float32")
WIDE = (*NARROW, "int64", "float64")
SCALARS = (True, 2, 0.5)


def lattice(*dtypes, wide):
    """JAX's own answer: with 64 bits, so that it is not cut short to 32."""
    del wide
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        return np.dtype(jnp.result_type(*dtypes))


@pytest.mark.parametrize("one", WIDE)
def test_two_dtypes_meet_as_in_jax(one):
    for other in WIDE:
        got = result_dtype(as_dtype(one), as_dtype(other))
        assert got == lattice(as_dtype(one), as_dtype(other), wide=True), other
        assert got == result_dtype(as_dtype(other), as_dtype(one)), other


def test_more_than_two_meet_in_any_order():
    rng = np.random.default_rng(0)
    for _ in range(200):
        some = [as_dtype(d) for d in rng.choice(WIDE, 3)]
        results = {result_dtype(*order) for order in itertools.permutations(some)}
        assert results == {lattice(*some, wide=True)}, some


def test_unsigned_integers_need_one_more_bit():
    dtype = lambda name: np.dtype(name)
    assert result_dtype(dtype("uint16"), dtype("int8")) == np.int32
    assert result_dtype(dtype("uint32"), dtype("int32")) == np.int64
    assert result_dtype(dtype("uint64"), dtype("int8")) == np.float32
    assert result_dtype(dtype("complex64"), dtype("float64")) == np.complex128
    assert result_dtype(dtype("complex64"), dtype("int64")) == np.complex64


@pytest.mark.parametrize("float_dtype", ["float32", "bfloat16"])
def test_python_numbers_give_way(float_dtype):
    default = as_dtype(float_dtype)
    for name in NARROW:
        dtype = as_dtype(name)
        whole = np.dtype("int32") if name == "bool" else dtype
        rule = lambda kind, d=dtype: result_dtype(d, kind, float_dtype=default)
        assert rule(bool) == dtype
        assert rule(int) == whole
        assert rule(float) == (dtype if is_floating(dtype) else default)
    assert result_dtype(int) == np.int32
    assert result_dtype(int, float, float_dtype=default) == default
    assert result_dtype(bool, to_float=True, float_dtype=default) == default


@pytest.mark.parametrize("wide", [False, True], ids=["32 bits", "64 bits"])
def test_both_libraries_follow_the_rule(wide):
    names = WIDE if wide else NARROW
    default = np.dtype(np.float64 if wide else np.float32)
    to_jax, to_torch = JaxNamespace(default), TorchNamespace(default)
    # bool is no number for subtract; maximum takes all of them.
    for op in ("add", "maximum", "divide", "less", "concat"):
        run = OPS[op]
        to_float = run.promote == "float"
        rule = functools.partial(result_dtype, to_float=to_float, float_dtype=default)
        with jax.enable_x64(True) if wide else contextlib.nullcontext():
            for one, other in itertools.product(names, names):
                a, b = as_dtype(one), as_dtype(other)
                want = np.dtype(bool) if op == "less" else rule(a, b)
                avals = [jax.ShapeDtypeStruct((2,), d) for d in (a, b)]
                got = jax.eval_shape(lambda x, y, run=run: run(to_jax, x, y), *avals)
                assert got.dtype == want, (op, one, other)
                tensors = [to_torch.asarray(np.ones(2), d) for d in (a, b)]
                got = to_torch.dtype_of(run(to_torch, *tensors))
                assert got == want, (op, one, other)
            for one, scalar in itertools.product(names, SCALARS):
                a = as_dtype(one)
                want = rule(a, type(scalar))
                if op in ("less", "concat"):
                    continue
                got = jax.eval_shape(
                    lambda x, s=scalar, run=run: (run(to_jax, x, s), run(to_jax, s, x)),
                    jax.ShapeDtypeStruct((2,), a),
                )
                assert [g.dtype for g in got] == [want, want], (op, one, scalar)
                tensor = to_torch.asarray(np.ones(2), a)
                assert to_torch.dtype_of(run(to_torch, tensor, scalar)) == want
                assert to_torch.dtype_of(run(to_torch, scalar, tensor)) == want


def test_an_array_without_axes_counts_as_any_other():
    # torch alone would keep the float16, as the 0-d tensor has no say there.
    half, one = torch.ones(2, dtype=torch.float16), torch.ones((), dtype=torch.float32)
    assert OPS["add"](TorchNamespace(), half, one).dtype == torch.float32
    j = OPS["add"](JaxNamespace(), jnp.ones(2, jnp.float16), jnp.ones(()))
    assert j.dtype == jnp.float32


def test_sums_of_short_integers_are_int32_also_with_64_bits():
    for name in ("bool", "int8", "uint8", "int32"):
        assert sum_dtype(as_dtype(name)) == np.int32
    assert sum_dtype(np.dtype("int64")) == np.int64
    assert sum_dtype(as_dtype("bfloat16")) == as_dtype("bfloat16")
    with jax.enable_x64(True):
        xp, x = JaxNamespace(), np.ones((2, 2))
        for op in ("sum", "prod", "cumsum", "cumprod", "count_nonzero", "argmax"):
            for name in ("bool", "int8", "uint8", "int32", "int64"):
                j = OPS[op](xp, jnp.asarray(x, as_dtype(name)), axis=0)
                t = OPS[op](TorchNamespace(), TorchNamespace().asarray(x, name), axis=0)
                narrow = op in ("count_nonzero", "argmax") or name != "int64"
                assert j.dtype == (np.int32 if narrow else np.int64), (op, name)
                assert TorchNamespace().dtype_of(t) == j.dtype, (op, name)


def test_a_number_of_numpy_is_an_array_and_does_not_give_way():
    for xp in (JaxNamespace(), TorchNamespace()):
        half = xp.asarray(np.ones(2), "float16")
        assert xp.dtype_of(OPS["add"](xp, half, np.float64(2))) == np.float32
        assert xp.dtype_of(OPS["add"](xp, half, 2.0)) == np.float16


def test_an_unsupported_dtype_is_refused():
    with refuses(TypeError, "float8_e4m3fn"):
        result_dtype(np.dtype(jnp.float8_e4m3fn), np.dtype("float32"))
    with refuses(ValueError, "flaot32", "dtype"):
        OPS["cast"](JaxNamespace(), jnp.ones(2), dtype="flaot32")
    with refuses(ValueError, "float64", "JaxBackend"):
        OPS["cast"](JaxNamespace(), jnp.ones(2), dtype="float64")


def test_bfloat16_from_numpy_keeps_its_values():
    x = np.array([1.5, -2.25, 3e38]).astype(as_dtype("bfloat16"))
    got = TorchNamespace().asarray(x)
    assert got.dtype == torch.bfloat16
    np.testing.assert_array_equal(got.double(), x.astype(np.float64))
