import tracemalloc

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

import forked
from frugax import tropical
from refusals import refuses

INF = np.inf
PICK = {"max": np.max, "min": np.min}
ZERO = {"max": -INF, "min": INF}


def torch_from(a):
    return pytest.importorskip("torch").from_numpy(np.ascontiguousarray(a))


LIBRARIES = {"numpy": np.asarray, "jax": jnp.asarray, "torch": torch_from}
every_library = pytest.mark.parametrize("make", LIBRARIES.values(), ids=LIBRARIES)
both_semirings = pytest.mark.parametrize("kind", ["max", "min"])


def random(kind, *shape, seed=0):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=shape).astype(np.float32)
    return np.where(rng.random(shape) < 0.2, np.float32(ZERO[kind]), a)


@every_library
@both_semirings
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 16, 3), (33, 70, 19), (7, 0, 2)])
def test_matmul_is_the_definition_bit_for_bit(make, kind, shape):
    n, k, m = shape
    a, b = random(kind, n, k), random(kind, k, m, seed=1)
    terms = a[:, :, None] + b[None]
    pick = PICK[kind]
    want = pick(terms, axis=1, initial=ZERO[kind])
    got = tropical.matmul(make(a), make(b), kind=kind)
    assert type(got) is type(make(a))
    np.testing.assert_array_equal(np.asarray(got), want)
    assert np.asarray(got).dtype == np.float32


@every_library
def test_whole_numbers_multiply_exactly(make):
    a = np.arange(12, dtype=np.int32).reshape(3, 4)
    want = (a[:, :, None] + a.T[None]).max(axis=1)
    np.testing.assert_array_equal(tropical.matmul(make(a), make(a.T)), want)


@settings(max_examples=50, deadline=None)
@given(
    hnp.arrays(
        np.float64,
        st.tuples(*[st.integers(1, 6)] * 2).map(lambda s: (3, *s)),
        elements=st.integers(-9, 9).map(float) | st.just(-INF),
    ),
    st.integers(0, 7),
)
def test_the_semiring_laws_hold(stack, exponent):
    # Whole numbers as floats: sums are exact, so associativity is too.
    a, b, c = stack[0], stack[1].T, stack[2]
    m = tropical.matmul
    np.testing.assert_array_equal(m(m(a, b), c), m(a, m(b, c)))
    np.testing.assert_array_equal(
        m(a, np.maximum(b, stack[2].T)), np.maximum(m(a, b), m(a, stack[2].T))
    )
    eye = tropical.identity(len(a), a)
    np.testing.assert_array_equal(m(eye, a), a)
    square = m(a, b)
    want = eye
    for _ in range(exponent):
        want = m(want, square)
    np.testing.assert_array_equal(tropical.power(square, exponent), want)


@every_library
@both_semirings
def test_closure_is_the_sum_of_all_powers(make, kind):
    sign = 1 if kind == "min" else -1
    rng = np.random.default_rng(0)
    d = sign * rng.integers(1, 9, (12, 12)).astype(np.float32)
    d = np.where(rng.random((12, 12)) < 0.9, np.float32(ZERO[kind]), d)
    better = np.minimum if kind == "min" else np.maximum
    want = term = tropical.identity(12, d, kind=kind)
    for _ in range(12):
        term = tropical.matmul(term, d, kind=kind)
        want = better(want, term)
    got = tropical.closure(make(d), kind=kind)
    np.testing.assert_array_equal(np.asarray(got), want)
    assert np.isinf(want).any()
    assert np.isfinite(want).sum() > 12


@every_library
def test_an_improving_cycle_is_refused_by_name(make):
    d = np.full((3, 3), INF, np.float32)
    d[0, 1], d[1, 2], d[2, 0] = 1, 1, -3
    with refuses(ValueError, -1.0):
        tropical.closure(make(d))


@every_library
@both_semirings
def test_polynomials_are_their_definition(make, kind):
    rng = np.random.default_rng(0)
    exponents = rng.integers(0, 4, (20, 5)).astype(np.float32)
    coefficients = random(kind, 20)
    points = random(kind, 50, 5, seed=1)
    want = np.full(50, ZERO[kind], np.float32)
    better = max if kind == "max" else min
    for i, x in enumerate(points):
        for c, e in zip(coefficients, exponents, strict=True):
            # The zero to the power 0 is the one: such variables are left out.
            want[i] = better(want[i], c + (x[e > 0] * e[e > 0]).sum())
    got = tropical.polynomial(
        make(coefficients), make(exponents), make(points), kind=kind
    )
    # Five products and sums of numbers below 20 in float32, in any order.
    np.testing.assert_allclose(np.asarray(got), want, atol=20 * 6 * 2**-23)


@every_library
@pytest.mark.parametrize("whole", ["cex", "e"])
def test_whole_numbers_have_polynomials_too(make, whole):
    kinds = [np.int32 if name in whole else np.float32 for name in "cex"]
    c, e, x = (
        make(np.array(values, dtype))
        for values, dtype in zip(
            ([0, 1], [[2, 0], [0, 1]], [[3, 4]]), kinds, strict=True
        )
    )
    with jax.numpy_dtype_promotion("standard"):
        got = np.asarray(tropical.polynomial(c, e, x))
    assert got.tolist() == [6]
    assert got.dtype.kind == ("i" if whole == "cex" else "f")


@every_library
def test_a_negative_power_of_infinity_is_refused(make):
    one = make(np.zeros(1, np.float32))
    with refuses(ValueError, "polynomial"):
        tropical.polynomial(
            one,
            make(np.array([[-1.0]], np.float32)),
            make(np.array([[-INF]], np.float32)),
        )


@every_library
@both_semirings
@pytest.mark.parametrize("sizes", [(1, 1), (1, 5), (4, 4), (7, 3)])
def test_convolution_is_its_definition(make, kind, sizes):
    a, b = random(kind, sizes[0]), random(kind, sizes[1], seed=3)
    want = np.full(sum(sizes) - 1, ZERO[kind], np.float32)
    better = np.maximum if kind == "max" else np.minimum
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            want[i + j] = better(want[i + j], x + y)
    got = tropical.convolve(make(a), make(b), kind=kind)
    np.testing.assert_array_equal(np.asarray(got), want)


@every_library
def test_convolution_of_whole_numbers(make):
    a = np.array([3, 1, 2], np.int32)
    got = tropical.convolve(make(a), make(a), kind="min")
    np.testing.assert_array_equal(np.asarray(got), [6, 4, 2, 3, 4])


@every_library
@both_semirings
def test_the_other_infinity_is_refused(make, kind):
    bad = make(np.array([[-ZERO[kind]]], np.float32))
    with refuses(ValueError):
        tropical.matmul(bad, bad, kind=kind)


@every_library
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # NumPy's
@pytest.mark.parametrize("exponent", [2, 4])
def test_a_power_that_overflows_its_dtype_is_reported(make, exponent):
    a = make(np.full((1, 1), 3e38, np.float32))
    with refuses(ValueError, exponent):
        tropical.power(a, exponent)


def test_no_power_shares_its_memory_with_the_input():
    a = np.array([[-0.0, -INF], [1.0, 2.0]])
    same = tropical.power(a, 1)
    assert same.tobytes() == a.tobytes()
    assert not np.shares_memory(same, a)
    with refuses(ValueError):
        tropical.power(-a, 1)


# What each call is refused with, and what the message names.
REFUSED = {
    "power(np.zeros((2, 3)), 2)": ("ValueError", "(2, 3)"),
    "power(np.zeros((2, 2)), -1)": ("ValueError", "-1"),
    "power(np.eye(2), 2.0)": ("TypeError", "2.0"),
    "power(np.eye(2), True)": ("TypeError", "True"),
    "closure(np.zeros(2))": ("ValueError", "(2,)"),
    "closure(np.full((1, 1), None))": ("TypeError", "closure"),
    "matmul(np.zeros((2, 3)), np.zeros((2, 3)))": ("ValueError", "(2, 3)"),
    "matmul(np.zeros((2, 0), int), np.zeros((0, 2), int))": ("ValueError", "k = 0"),
    "matmul(np.eye(2), np.eye(2), kind='sum')": ("ValueError", "'sum'"),
    "matmul(np.ma.masked_array([[1.0]], [[True]]), np.eye(1))": ("TypeError", "mask"),
    "matmul(jnp.zeros((2, 2)), np.zeros((2, 2)))": ("TypeError", "jnp.asarray"),
    "polynomial(np.zeros(2), np.zeros((3, 1)), np.zeros((4, 1)))": ("ValueError", "3"),
    "polynomial(np.zeros(0), np.zeros((0, 2)), np.zeros((4, 2)))": ("ValueError", "0"),
    "convolve(np.zeros((2, 2)), np.zeros(2))": ("ValueError", "(2, 2)"),
    "convolve(np.zeros(0), np.zeros(2))": ("ValueError", "convolve"),
    "identity(1.5, np.ones(1))": ("TypeError", "1.5"),
    "identity(-1, np.zeros(1))": ("ValueError", "-1"),
    "identity(2, np.zeros(1, int))": ("ValueError", "identity"),
    **dict.fromkeys(
        (
            *("matmul([[1.0]], np.eye(1))", "matmul(np.eye(1), [[1.0]])"),
            *("identity(2, [1.0])", "power([[1.0]], 2)", "closure([[1.0]])"),
            "polynomial(np.zeros(1), [[1.0]], np.zeros((1, 1)))",
            "convolve([1.0], np.zeros(2))",
        ),
        ("TypeError", "np.asarray"),
    ),
    **{
        f"{call.format(f'{make}(np.ones((2, 2), {dtype!r}))')}": ("TypeError", dtype)
        for dtype in ("bool", "complex64")
        for make in ("np.asarray", "jnp.asarray", "torch.from_numpy")
        for call in (
            *("matmul({0}, {0})", "closure({0})", "power({0}, 2)", "identity(2, {0})"),
            *("convolve({0}[0], {0}[0])", "polynomial({0}[0], {0}, {0})"),
        )
    },
}


def test_wrong_arguments_are_named_without_a_type_checker():
    pytest.importorskip("torch")
    code = f"""
import jax.numpy as jnp
import numpy as np
import torch
from frugax.tropical import *
for call in {[*REFUSED]!r}:
    try:
        print("nothing", eval(call))
    except Exception as e:
        print(f"{{type(e).__name__}}: {{e}}")
"""
    said = forked.python(code).stdout.splitlines()
    for found, (call, (error, named)) in zip(said, REFUSED.items(), strict=True):
        assert found.startswith(error), (call, found)
        assert named in found, (call, found)


@both_semirings
def test_torch_gradients_are_of_the_first_best_term(kind):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    # Few values: most sums have an equal, and some rows hold nothing but the zero.
    a, b = (
        np.where(rng.random((6, 6)) < 0.5, ZERO[kind], rng.integers(0, 2, (6, 6)))
        for _ in range(2)
    )
    a[3] = ZERO[kind]
    terms = a[:, :, None] + b[None]
    out = PICK[kind](terms, axis=1)
    first = (terms == out[:, None]).argmax(axis=1)
    want = np.zeros((2, 6, 6))
    for i, j in np.argwhere(out != ZERO[kind]):
        want[0, i, first[i, j]] += 1
        want[1, first[i, j], j] += 1
    left, right = (torch.from_numpy(x).requires_grad_() for x in (a, b))
    got = tropical.matmul(left, right, kind=kind)
    np.testing.assert_array_equal(got.detach(), out)
    got.sum().backward()
    np.testing.assert_array_equal(left.grad, want[0])
    np.testing.assert_array_equal(right.grad, want[1])


def test_torch_gradients_of_a_closure_go_along_the_walk():
    torch = pytest.importorskip("torch")
    roads = torch.tensor(
        [[0.0, 5, 1, INF], [9, 0, 9, INF], [9, 2, 0, INF], [1, 1, 1, 0]]
    )
    plain = tropical.closure(roads)
    roads.requires_grad_()
    paths = tropical.closure(roads)
    assert torch.equal(paths, plain)
    (used,) = torch.autograd.grad(paths[0, 1], roads, retain_graph=True)
    assert used.tolist() == [[0, 0, 1, 0], [0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    for i, j in ((0, 3), (0, 0)):  # no walk, and none needed
        (used,) = torch.autograd.grad(paths[i, j], roads, retain_graph=True)
        assert not used.any()
    (used,) = torch.autograd.grad(paths[0].nan_to_num(0, 0).sum(), roads)
    assert used.tolist() == [[0, 0, 2, 0], [0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]]


def test_memory_is_bounded_by_the_result():
    n = 300
    a = np.random.default_rng(0).normal(size=(n, n))
    tracemalloc.start()
    tropical.matmul(a, a)
    tropical.closure(a * a, kind="min")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # The broadcast would need n times the matrix; this needs a few of them.
    assert peak < 5 * a.nbytes


@every_library
def test_a_closure_of_no_numbers_is_refused(make):
    d = np.zeros((3, 3), np.float32)
    d[0, 2] = np.nan
    with refuses(ValueError, "NaN"):
        tropical.closure(make(d))


def test_a_numpy_constant_beside_another_library_is_refused_with_a_remedy():
    c = np.zeros(2, np.float32)
    for x, said in ((jnp.ones(2), "jnp.asarray"), (torch_from(c), "torch.from_numpy")):
        with refuses(TypeError, said):
            tropical.convolve(x, c)
        with refuses(TypeError, said):
            tropical.polynomial(x, c[:, None], x[:, None])
    with refuses(TypeError, "jnp.asarray"):
        jax.jit(lambda x: tropical.convolve(x, c))(jnp.ones(2))
