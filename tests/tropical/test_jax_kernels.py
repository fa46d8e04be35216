"""The blocked kernels of JAX: the same bits, the planned shape, a true subgradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from frugax import tropical
from refusals import refuses

INF = np.inf
ZERO = {"max": -INF, "min": INF}


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    """Run the programs of larger arrays on small ones, which go through NumPy."""
    monkeypatch.setattr("frugax.tropical._jax._SMALL", -1)


both_semirings = pytest.mark.parametrize("kind", ["max", "min"])


def random(kind, *shape, seed=0, holes=0.2):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=shape).astype(np.float32)
    return np.where(rng.random(shape) < holes, np.float32(ZERO[kind]), a)


def numpy_of(operation, *arrays, **kwargs):
    """The oracle's result for JAX arrays."""
    return operation(*map(np.asarray, arrays), **kwargs)


# One panel and several, whole and not; few columns; one pass and several.
@both_semirings
@pytest.mark.parametrize("shape", [(9, 33, 130), (65, 16, 300), (40, 50, 1)])
def test_panels_give_the_bits_of_numpy(kind, shape):
    n, k, m = shape
    a, b = random(kind, n, k), random(kind, k, m, seed=1)
    got = tropical.matmul(jnp.asarray(a), jnp.asarray(b), kind=kind)
    np.testing.assert_array_equal(got, tropical.matmul(a, b, kind=kind))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.int8, jnp.uint32])
def test_other_dtypes_have_the_bits_of_numpy(dtype):
    rng = np.random.default_rng(0)
    a = jnp.asarray(rng.integers(0, 50, (20, 40))).astype(dtype)
    got = tropical.matmul(a, a.T)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, numpy_of(tropical.matmul, a, a.T))


@both_semirings
def test_under_jit_the_wrong_infinity_is_not_a_number(kind):
    a = random(kind, 4, 6)
    a[1, 2] = -ZERO[kind]
    got = jax.jit(functools.partial(tropical.matmul, kind=kind))(a, a.T)
    bad = np.isnan(np.asarray(got))
    assert bad[1].all()
    assert bad[:, 1].all()
    assert bad.sum() == 7


@both_semirings
@pytest.mark.parametrize("n", [1, 64, 75])
def test_blocked_closure_has_the_bits_of_the_plain_one(kind, n):
    sign = 1 if kind == "min" else -1
    rng = np.random.default_rng(n)
    # Sums of such numbers round: another order of them would give other bits.
    d = sign * rng.lognormal(sigma=2, size=(n, n)).astype(np.float32)
    d = np.where(rng.random((n, n)) < 0.9, np.float32(ZERO[kind]), d)
    got = tropical.closure(jnp.asarray(d), kind=kind)
    np.testing.assert_array_equal(got, tropical.closure(d, kind=kind))


def test_closure_of_whole_numbers():
    d = np.random.default_rng(0).integers(1, 1000, (40, 40)).astype(np.int32)
    np.testing.assert_array_equal(tropical.closure(jnp.asarray(d)), tropical.closure(d))


def test_a_cycle_beyond_the_first_block_is_found():
    d = np.full((40, 40), INF, np.float32)
    d[33, 35], d[35, 33] = 1, -2
    with refuses(ValueError):
        tropical.closure(jnp.asarray(d))


def equations(jaxpr):
    """Those of a program and of all programs inside it."""
    for eqn in jaxpr.eqns:
        yield eqn
        for value in jax.tree.leaves(eqn.params, is_leaf=lambda v: hasattr(v, "jaxpr")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from equations(inner)


def largest(jaxpr):
    """The most numbers that any one array of a program has."""
    return max(v.aval.size for eqn in equations(jaxpr) for v in eqn.outvars)


def test_no_array_is_larger_than_the_matrices():
    a = jnp.zeros((256, 256))
    for operation in (tropical.matmul, lambda a, b: tropical.closure(a)):
        jaxpr = jax.make_jaxpr(operation)(a, a).jaxpr
        assert largest(jaxpr) <= a.size
    step = jax.value_and_grad(lambda a: tropical.closure(a).sum())
    assert largest(jax.make_jaxpr(step)(a).jaxpr) <= 2 * a.size  # indices in pairs


def test_the_gradient_of_viterbi_is_along_its_path():
    scores = jnp.zeros((1, 3, 4))  # all paths are equal: the lowest states are decided
    weight = lambda scores, moves: tropical.viterbi(scores, moves)[1].sum()
    of_scores, of_moves = jax.grad(weight, (0, 1))(scores, jnp.zeros((4, 4)))
    assert of_scores[0].tolist() == [[1, 0, 0, 0]] * 3
    assert of_moves.tolist() == [[2, 0, 0, 0]] + [[0] * 4] * 3


@both_semirings
def test_gradients_of_a_product_equal_those_of_the_broadcast(kind):
    a = jnp.asarray(random(kind, 7, 20))
    b = jnp.asarray(random(kind, 20, 18, seed=1))
    w = jnp.asarray(random("max", 7, 18, seed=2, holes=0))

    def mine(a, b):
        out = tropical.matmul(a, b, kind=kind)
        return (w * jnp.where(jnp.isfinite(out), out, 0)).sum()

    def plain(a, b):
        terms = a[:, :, None] + b[None]
        best = terms.max(1) if kind == "max" else terms.min(1)
        return (w * jnp.where(jnp.isfinite(best), best, 0)).sum()

    got = jax.grad(mine, (0, 1))(a, b)
    want = jax.grad(plain, (0, 1))(a, b)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_of_equal_terms_the_first_has_the_gradient():
    a = jnp.asarray([[1.0, 3.0, 3.0], [-INF, -INF, -INF]])
    grad = jax.grad(lambda a: tropical.matmul(a, jnp.zeros((3, 2))).sum())(a)
    assert grad.tolist() == [[0, 2, 0], [0, 0, 0]]


def test_gradients_of_a_closure_are_finite_differences():
    # Weights that are far apart: small changes do not change which walk is best.
    rng = np.random.default_rng(1)
    d = rng.permutation(81).reshape(9, 9).astype(np.float32) + 1
    d = np.where(rng.random((9, 9)) < 0.5, np.float32(INF), d)
    w = rng.integers(1, 5, (9, 9)).astype(np.float32)
    v = np.where(np.isfinite(d), rng.integers(-3, 4, (9, 9)), 0).astype(np.float32)

    def total(d):
        out = tropical.closure(d)
        return (w * jnp.where(jnp.isfinite(out), out, 0)).sum()

    grad = np.asarray(jax.grad(total)(jnp.asarray(d)))
    assert np.isfinite(grad).all()
    # In sixteenths all sums are exact, so the difference is too.
    want = (total(jnp.asarray(d + v / 16)) - total(jnp.asarray(d - v / 16))) * 8
    assert (grad * v).sum() == want


def test_batches_of_everything():
    d = jnp.asarray(-random("max", 3, 34, 34, holes=0.5) + 9)
    got = jax.vmap(tropical.closure)(d)
    np.testing.assert_array_equal(got, [tropical.closure(np.asarray(x)) for x in d])
    x = jnp.asarray(random("max", 3, 10, 4))
    c, e = jnp.asarray(random("max", 20)), jnp.ones((20, 4))
    got = jax.vmap(functools.partial(tropical.polynomial, c, e))(x)
    np.testing.assert_array_equal(got, [tropical.polynomial(c, e, p) for p in x])


@pytest.mark.parametrize("points", [0, 1, 256, 300])
def test_polynomials_at_any_number_of_points(points):
    c, e, x = (
        random("max", 8),
        np.ones((8, 3), np.float32),
        random("max", points, 3),
    )
    x = np.round(x * 8)  # sums of whole numbers are exact in any order
    got = tropical.polynomial(*map(jnp.asarray, (np.round(c), e, x)))
    np.testing.assert_array_equal(got, tropical.polynomial(np.round(c), e, x))


def test_rows_over_a_mesh_stay_where_they_are():
    mesh = jax.make_mesh(
        (4,), ("rows",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4]
    )
    a, b = random("max", 64, 40), random("max", 40, 150, seed=1)
    rows = jax.device_put(a, NamedSharding(mesh, P("rows")))
    everywhere = jax.device_put(b, NamedSharding(mesh, P()))
    got = tropical.matmul(rows, everywhere)
    np.testing.assert_array_equal(got, tropical.matmul(a, b))
    assert got.sharding.is_equivalent_to(rows.sharding, 2)
    text = jax.jit(tropical.matmul).lower(rows, everywhere).compile().as_text() or ""
    assert "all-gather" not in text
    assert "all-reduce" not in text
