"""Paths through trellises and graphs, arguments of optima, batches and vectors."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax import tropical
from refusals import refuses

INF = np.inf
RNG = np.random.default_rng(0)
NO_EDGE = {"max": -INF, "min": INF}
BEST = {"max": max, "min": min}


def make_torch(array):
    torch = pytest.importorskip("torch")
    return torch.from_numpy(np.array(array))


LIBRARIES = {"numpy": np.asarray, "jax": jnp.asarray, "torch": make_torch}


@pytest.fixture(params=["through NumPy", "compiled"])
def compiled_too(request, monkeypatch):
    """Run JAX's eager calls as they are, and in the programs of larger arrays."""
    if request.param == "compiled":
        monkeypatch.setattr("frugax.tropical._jax._SMALL", -1)


def weights(*shape):
    return RNG.integers(-4, 5, shape).astype("f4")  # small, so that many are equal


@pytest.fixture(params=LIBRARIES)
def make(request):
    return LIBRARIES[request.param]


@pytest.mark.parametrize("kind", ["max", "min"])
def test_the_argument_is_the_first_optimal_term(make, kind, compiled_too):
    a, b = weights(3, 4, 5), weights(5, 6)
    a[0, 0] = NO_EDGE[kind]
    out, which = map(
        np.asarray, tropical.matmul(make(a), make(b), kind=kind, argmax=True)
    )
    terms = a[..., None] + b
    expected = terms.argmax(-2) if kind == "max" else terms.argmin(-2)
    expected[0, 0] = -1
    assert np.array_equal(which, expected)
    assert np.array_equal(out, terms.max(-2) if kind == "max" else terms.min(-2))


def test_vectors_and_batches_multiply_as_in_numpy(make, compiled_too):
    a, b = weights(2, 1, 3, 4), weights(5, 4, 2)
    assert tropical.matmul(make(a), make(b)).shape == (2, 5, 3, 2)
    row, column, scalar = (
        tropical.matmul(make(x), make(y))
        for x, y in ((a[0, 0, 0], b), (a, b[0, :, 0]), (b[0, :, 0], b[0, :, 1]))
    )
    assert row.shape == (5, 2)
    assert column.shape == (2, 1, 3)
    assert float(scalar) == (b[0, :, 0] + b[0, :, 1]).max()
    assert np.array_equal(np.asarray(row), (a[0, 0, 0][:, None] + b).max(-2))


@pytest.mark.parametrize("kind", ["max", "min"])
def test_viterbi_finds_the_best_of_all_paths(make, kind, compiled_too):
    scores, moves = weights(2, 5, 3), weights(3, 3)
    moves[0, 2] = NO_EDGE[kind]

    def total(i, path):
        steps = sum(scores[i, t, state] for t, state in enumerate(path))
        return steps + sum(moves[pair] for pair in itertools.pairwise(path))

    paths, found = map(
        np.asarray, tropical.viterbi(make(scores), make(moves), kind=kind)
    )
    for i, path in enumerate(paths):
        every = itertools.product(range(3), repeat=5)
        assert BEST[kind](total(i, p) for p in every) == total(i, path) == found[i]
    alone, weight = tropical.viterbi(make(scores[1]), make(moves), kind=kind)
    assert np.array_equal(np.asarray(alone), paths[1])
    assert float(weight) == found[1]
    # Equal paths are decided alike in every library.
    reference, _ = tropical.viterbi(scores, moves, kind=kind)
    assert np.array_equal(paths, reference)


@pytest.mark.parametrize("shapes", [((0, 3), (3, 3)), ((2, 0, 3), (3, 3))])
def test_a_trellis_that_does_not_fit_is_refused(make, shapes):
    with refuses(ValueError, "viterbi"):
        tropical.viterbi(*(make(np.zeros(shape)) for shape in shapes))


def test_predecessors_lead_back_along_an_optimal_walk(make, compiled_too):
    edges = np.where(RNG.random((2, 9, 9)) < 0.3, np.abs(weights(2, 9, 9)), INF)
    out, before = map(np.asarray, tropical.closure(make(edges), predecessors=True))
    for i, j in itertools.product(range(9), repeat=2):
        walk = tropical.walk(before[1], i, j)
        if np.isinf(out[1, i, j]):
            assert walk == []
        else:
            assert (walk[0], walk[-1]) == (i, j)
            steps = sum(edges[1][pair] for pair in itertools.pairwise(walk))
            assert steps == out[1, i, j]
    assert np.array_equal(before, tropical.closure(edges, predecessors=True)[1])
    with refuses(IndexError, 9):
        tropical.walk(before[1], 0, 9)


def test_torch_maps_over_a_batch():
    torch = pytest.importorskip("torch")
    a, b = make_torch(weights(4, 3, 5)), make_torch(weights(5, 2))
    mapped = torch.func.vmap(lambda x: tropical.matmul(x, b))(a)
    assert torch.equal(mapped, tropical.matmul(a, b))
    edges = make_torch(np.abs(weights(4, 5, 5)))
    mapped = torch.func.vmap(tropical.closure)(edges)
    assert torch.equal(mapped, tropical.closure(edges))
    with_paths = functools.partial(tropical.closure, predecessors=True)
    for found, one in zip(
        torch.func.vmap(with_paths)(edges), with_paths(edges), strict=True
    ):
        assert torch.equal(found, one)
    which = torch.func.vmap(lambda x: tropical.matmul(x, b, argmax=True))(a)[1]
    assert torch.equal(which, tropical.matmul(a, b, argmax=True)[1])
    moves, scores = make_torch(weights(3, 3)), make_torch(weights(4, 6, 3))
    paths, _ = torch.func.vmap(lambda x: tropical.viterbi(x, moves))(scores)
    assert torch.equal(paths, tropical.viterbi(scores, moves)[0])
    steps = torch.func.vmap(lambda x: tropical.power(x, 3, kind="min"))(edges)
    assert torch.equal(steps[2], tropical.power(edges[2], 3, kind="min"))
    rows = torch.func.vmap(lambda x: tropical.convolve(x, b[:, 0]))(a[0])
    assert torch.equal(rows[1], tropical.convolve(a[0, 1], b[:, 0]))
    values = torch.func.vmap(lambda x: tropical.polynomial(moves[0], moves, x))(scores)
    assert torch.equal(values[1], tropical.polynomial(moves[0], moves, scores[1]))


def square(n):
    return np.abs(weights(n, n))


# Each makes its arguments for a size n.
OPERATIONS = {
    "matmul": (tropical.matmul, lambda n: (weights(n, n + 1), weights(n + 1, n + 2))),
    "argmax": (
        functools.partial(tropical.matmul, argmax=True, kind="min"),
        lambda n: (weights(2, 1, n, n), weights(3, n, n)),
    ),
    "vector": (
        functools.partial(tropical.matmul, argmax=True),
        lambda n: (weights(n), weights(n, n)),
    ),
    "closure": (tropical.closure, lambda n: (square(n),)),
    "predecessors": (
        functools.partial(tropical.closure, predecessors=True),
        lambda n: (np.where(RNG.random((2, n, n)) < 0.3, square(n), INF).astype("f4"),),
    ),
    "integers": (
        functools.partial(tropical.closure, predecessors=True),
        lambda n: (RNG.integers(1, 99, (2, n, n), "i4"),),
    ),
    "power": (
        functools.partial(tropical.power, exponent=3),
        lambda n: (weights(2, n, n),),
    ),
    "viterbi": (tropical.viterbi, lambda n: (weights(2, n, n + 1), square(n + 1))),
    "convolve": (tropical.convolve, lambda n: (weights(n), weights(n + 2))),
    "polynomial": (
        tropical.polynomial,
        lambda n: (weights(n), square(n), weights(n + 2, n)),
    ),
}


def compare(function, arguments, convert):
    found = function(*map(convert, arguments))
    expected = function(*arguments)
    if not isinstance(expected, tuple):
        found, expected = (found,), (expected,)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(one), other, strict=False)


@pytest.mark.parametrize("name", OPERATIONS)
def test_small_arrays_of_many_shapes_need_no_compilation(name):
    compiled = []

    def count(event: str, duration_secs: float, **_: str | int):
        if "backend_compile" in event:
            compiled.append(event)

    # `jnp.asarray` compiles a copy for each shape; `device_put` does not.
    function, arguments = OPERATIONS[name]
    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        for n in (33, 34, 37, 41, 46):
            compare(function, arguments(n), jax.device_put)
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
    assert compiled == []


@pytest.mark.parametrize("odd", [NO_EDGE["max"], np.nan])
def test_infinities_and_nan_have_the_bits_of_numpy(make, odd, compiled_too):
    def spoil(array):
        return np.where(RNG.random(array.shape) < 0.2, odd, array).astype("f4")

    for n in (1, 3, 9):
        compare(
            functools.partial(tropical.matmul, argmax=True),
            (spoil(weights(2, n, n)), spoil(weights(n, 5))),
            make,
        )
        scores, moves = spoil(weights(3, 7, n)), spoil(weights(n, n))
        compare(tropical.viterbi, (scores, moves), make)
        compare(tropical.convolve, (spoil(weights(n)), spoil(weights(4))), make)
        points = spoil(weights(5, n))
        compare(tropical.polynomial, (scores[0, 0], square(n)[:, :n].T, points), make)


def test_integers_have_no_stand_in_for_a_missing_edge(make, compiled_too):
    # The largest integer plus one wraps around, so more vertices would not be exact.
    edges = np.full((9, 9), np.iinfo("i4").max // 2, "i4")
    edges[np.arange(8), np.arange(1, 9)] = 1
    compare(functools.partial(tropical.closure, predecessors=True), (edges,), make)
    # Sums that wrap around have no meaning, but the same bits.
    edges = RNG.integers(2**30, 2**31 - 1, (35, 35), "i4")
    edges[np.arange(35), np.arange(35)] = 0
    with refuses(ValueError) as expected:
        tropical.closure(edges)
    with refuses(ValueError, str(expected.value)):
        tropical.closure(make(edges))
    scores, moves = (weights(*shape).astype("i4") for shape in ((2, 5, 9), (9, 9)))
    compare(tropical.viterbi, (scores, moves), make)


def test_batches_may_be_empty_and_have_powers(make, compiled_too):
    batch = np.abs(weights(2, 3, 4, 4))
    for exponent in (0, 1, 3):
        powers = np.asarray(tropical.power(make(batch), exponent))
        assert powers.shape == batch.shape
        assert np.array_equal(powers[1, 2], tropical.power(batch[1, 2], exponent))
    for shape in ((0, 3, 3), (2, 0, 0)):
        empty = make(np.zeros(shape, "f4"))
        assert tropical.matmul(empty, empty).shape == shape
        both = tropical.closure(empty, predecessors=True)
        assert all(part.shape == shape for part in both)


def test_an_improving_cycle_of_one_matrix_of_a_batch_is_named(make, compiled_too):
    edges = np.zeros((3, 4, 4), "f4")
    edges[2, 1, 1] = -1
    with refuses(ValueError, 1):
        tropical.closure(make(edges))
