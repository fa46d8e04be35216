import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import forked
from frugax.compress import reduce_relu
from refusals import refuses


def run(layers, x):
    w1, b1, w2, b2 = (np.asarray(a, np.float64) for a in layers)
    return np.maximum(x @ w1 + b1, 0) @ w2 + b2


def net(*, inputs=6, hidden=40, outputs=3, seed=0, dtype: type = np.float32):
    rng = np.random.default_rng(seed)
    shapes = [(inputs, hidden), (hidden,), (hidden, outputs), (outputs,)]
    return tuple(rng.normal(size=shape).astype(dtype) for shape in shapes)


def points_in(low, high, count, seed=0):
    """Half of them corners, where bounds are nearest to being reached."""
    rng = np.random.default_rng(seed)
    x = rng.random((count, len(low)))
    x[::2] = x[::2].round()
    return low + x * (high - low)


def violations(layers, small, low, high, count):
    x = points_in(low, high, count)
    return (np.abs(run(small.layers, x) - run(layers, x)) > small.bound).sum()


CASES = [
    (np.float32, 0, 1, False, 8),
    (np.float64, -1, 1, True, 8),
    (np.float32, -3, -1, True, 1),
    (np.float16, 0, 1, False, 39),
]


def reduced_in_a_box(dtype, low, high, with_data, hidden):
    layers = net(dtype=dtype)
    low = np.full(6, low) - np.arange(6) * 0.1  # every input has other limits
    high = np.full(6, high) + np.arange(6) * 0.2
    data = points_in(low, high, 200, seed=1) if with_data else None
    small = reduce_relu(layers, hidden=hidden, box=(low, high), data=data)
    return layers, small, low, high


@pytest.mark.parametrize("case", CASES)
def test_no_change_is_over_its_bound(case):
    layers, small, low, high = reduced_in_a_box(*case)
    assert violations(layers, small, low, high, 10_000) == 0
    assert [a.dtype for a in small.layers] == [a.dtype for a in layers]
    assert small.w1.shape == (6, case[-1])
    assert set(small.merged_into) <= set(range(case[-1]))
    # Nor is the bound vacuous: within 40 times of the error at these points.
    x = points_in(low, high, 10_000)
    seen = np.abs(run(small.layers, x) - run(layers, x)).max(axis=0)
    assert (small.bound < 40 * seen).all()


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(5))
def test_no_change_of_100_000_points_is_over_its_bound(seed):
    layers = net(seed=seed)
    box = np.zeros(6), np.ones(6)
    for hidden in (1, 4, 20, 40):
        small = reduce_relu(layers, hidden=hidden, box=box, seed=seed)
        assert violations(layers, small, *box, 100_000) == 0


def test_a_change_of_the_smaller_net_is_seen():
    """The check above can fail: a weight that moves breaks the guarantee."""
    layers, small, low, high = reduced_in_a_box(*CASES[1])
    small.b2[0] += 3 * small.bound[0]
    assert violations(layers, small, low, high, 100) > 0


def test_units_that_are_parallel_merge_without_loss():
    w1, b1, w2, b2 = net(hidden=5, dtype=np.float64)
    factors = np.array([0.5, 1.0, 4.0])
    repeated = (
        np.concatenate([w1 * f for f in factors], axis=1),
        np.concatenate([b1 * f for f in factors]),
        np.concatenate([w2, -0.5 * w2, w2]),
        b2,
    )
    small = reduce_relu(repeated, hidden=5, box=(-1, 1))
    x = points_in(np.full(6, -1), np.ones(6), 1000)
    size = np.abs(run(repeated, x)).max()
    np.testing.assert_allclose(run(small.layers, x), run(repeated, x), atol=1e-4 * size)
    assert (small.bound < 1e-3 * size).all()
    assert len(set(small.merged_into)) == 5


def test_nothing_is_changed_and_the_same_comes_out():
    layers = net()
    copies = tuple(a.copy() for a in layers)
    one = reduce_relu(layers, hidden=8, box=(0, 1))
    two = reduce_relu(tuple(map(jnp.asarray, layers)), hidden=8, box=(0, 1))
    for a, b in zip(layers, copies, strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(one.layers, two.layers, strict=True):
        np.testing.assert_array_equal(a, b)


def test_dead_units_are_handled():
    w1, b1, w2, b2 = net()
    small = reduce_relu((w1 * 0, b1 * 0, w2, b2), hidden=3, box=(0, 1))
    np.testing.assert_array_equal(run(small.layers, np.ones((1, 6)))[0], b2)
    small = reduce_relu((w1, b1, w2 * 0, b2), hidden=3, box=(0, 1))
    np.testing.assert_allclose(run(small.layers, np.ones((1, 6)))[0], b2)


@pytest.mark.slow
def test_digits_are_still_read():
    datasets = pytest.importorskip("sklearn.datasets")
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier
    from threadpoolctl import threadpool_limits  # comes with scikit-learn

    x, y = datasets.load_digits(return_X_y=True)
    x = x / 16
    model = MLPClassifier((256,), max_iter=8, learning_rate_init=5e-3, random_state=0)
    # Two threads for such small products mostly wait for each other.
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x[:1200], y[:1200])
    (w1, w2), (b1, b2) = model.coefs_, model.intercepts_
    layers = w1, b1, w2, b2
    score = lambda layers: (run(layers, x[1200:]).argmax(1) == y[1200:]).mean()
    free = reduce_relu(layers, hidden=32, box=(0, 1))
    fitted = reduce_relu(layers, hidden=16, box=(0, 1), data=x[:1200])
    # An eighth and a sixteenth of the units; three nets of more training:
    # python -m benchmarks.tropical zonotope.
    assert score(free.layers) > score(layers) - 0.05
    assert score(fitted.layers) > score(layers) - 0.05
    largest = np.argsort(-np.linalg.norm(w1, axis=0) * np.linalg.norm(w2, axis=1))[:32]
    pruned = w1[:, largest], b1[largest], w2[largest], b2
    assert score(free.layers) > score(pruned) + 0.1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden": 0}, "hidden must be from 1 to 40, got 0"),
        ({"hidden": 41}, "hidden must be from 1 to 40, got 41"),
        ({"box": (1, 0)}, "low must not be above high"),
        ({"box": (0, np.inf)}, "high must be finite, got inf"),
        ({"box": (np.zeros(5), 1)}, "a number or (6,), got shape (5,)"),
        ({"data": np.zeros((3, 5))}, "data must be (rows, 6), got (3, 5)"),
        ({"data": np.full((3, 6), np.nan)}, "data must be finite"),
    ],
)
def test_wrong_arguments_are_named(change, said):
    with refuses(ValueError, said):
        reduce_relu(net(), **({"hidden": 3, "box": (0, 1)} | change))


def test_wrong_layers_are_named():
    w1, b1, w2, b2 = net()
    with refuses(ValueError, "(40, 6), (40,), (40, 3)"):
        reduce_relu((w1.T, b1, w2, b2), hidden=3, box=(0, 1))
    with refuses(ValueError, "w2"):
        reduce_relu((w1, b1, w2 * np.nan, b2), hidden=3, box=(0, 1))
    with refuses(TypeError, "'[1]'"):
        reduce_relu((w1, 1.0, w2, b2), hidden=3, box=(0, 1))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("hidden=2.5, box=(0, 1)", "hidden must be a whole number, got 2.5"),
        ("hidden=True, box=(0, 1)", "hidden must be a whole number, got True"),
        ("hidden=1, box=3", "box must be (low, high)"),
        ("hidden=1, box=(1, 2, 3)", "box must be (low, high)"),
    ],
)
def test_other_types_are_refused_where_no_type_checker_runs(args, said):
    code = (
        "import numpy as np; from frugax.compress import reduce_relu;"
        "w = np.ones((3, 3));"
        f"reduce_relu((w, w[0], w, w[0]), {args})"
    )
    assert forked.python(code).stderr.splitlines()[-1].startswith(f"TypeError: {said}")


def test_keeping_all_units_does_not_change_the_network():
    layers = net()
    small = reduce_relu(layers, hidden=40, box=(0, 1))
    for now, was in zip(small.layers, layers, strict=True):
        np.testing.assert_array_equal(now, was)
        assert not np.shares_memory(now, was)
    assert not small.bound.any()
