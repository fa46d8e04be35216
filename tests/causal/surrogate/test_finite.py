"""Edges and parent sets are finite for every finite table."""

import warnings

import numpy as np
import pytest

from frugax import causal
from refusals import warns

KINDS = ("normal", "constant", "copy", "negated", "binary", "rare", "count", "huge")
KINDS += ("tiny", "nearly constant", "widest", "set everywhere", "missing")


def make_table(seed: int, d: int, rows: int) -> causal.Samples:
    """Draw a table whose columns are of all the kinds that lose digits."""
    rng = np.random.default_rng([seed, d, rows])
    values = rng.standard_normal((rows, d))
    intervened = rng.random((rows, d)) < rng.choice([0.0, 0.0, 0.3])
    for j in range(d):
        kind = KINDS[rng.integers(len(KINDS))]
        x = values[:, j]
        if kind == "constant":
            x = np.full(rows, rng.choice([0.0, 1.0, -1e12]))
        elif kind in ("copy", "negated") and j:
            x = values[:, rng.integers(j)] * (1 if kind == "copy" else -1)
        elif kind == "binary":
            x = (x > 0).astype(float)
        elif kind == "rare":
            x = (np.arange(rows) == 0).astype(float)
        elif kind == "count":
            x = rng.poisson(3, rows).astype(float)
        elif kind == "huge":
            x = x * 1e12
        elif kind == "tiny":
            x = x * 1e-38
        elif kind == "nearly constant":
            x = 1 + (np.arange(rows) == 0) * 1e-5
        elif kind == "widest":
            x = np.where(np.arange(rows) == 0, -3e38, 3e38)
        elif kind == "set everywhere":
            intervened[:, j] = True
        elif kind == "missing":
            x = np.where(np.arange(rows) < 2, x, np.nan)
        values[:, j] = x
    names = tuple(f"v{j}" for j in range(d))
    # float32, as a table of 1e-300 is all zeros there, and no column is refused.
    return causal.Samples(names, values.astype(np.float32), intervened)


@pytest.mark.parametrize(
    ("d", "tables"),
    [
        (2, 24),
        (3, 24),
        (5, 24),
        (8, 12),
        pytest.param(13, 2, marks=pytest.mark.thorough),
        pytest.param(40, 1, marks=pytest.mark.thorough),
        pytest.param(110, 1, marks=pytest.mark.thorough),
    ],
)
def test_probabilities_are_finite_for_every_finite_table(d: int, tables: int) -> None:
    surrogate = causal.load_default_surrogate()
    for seed in range(tables):
        rows = (2, 3, 40, 300)[seed % 4] if tables > 1 else 60
        samples = make_table(seed, d, rows)
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            warnings.simplefilter("ignore", UserWarning)  # constant columns
            edges = surrogate.edge_probabilities(samples)
            posterior = surrogate.posterior(samples, "v0")
        assert np.isfinite(edges).all(), (d, seed)
        assert (edges >= 0).all()
        assert (edges <= 1).all()
        assert np.isclose(posterior.probs.sum(), 1), (d, seed)


def test_columns_of_1e_300_are_as_good_as_constant() -> None:
    x = np.random.default_rng(0).standard_normal((50, 3)) * [1.0, 1e-300, 1e-30]
    samples = causal.Samples(
        ("a", "b", "c"), x.astype(np.float32), np.zeros(x.shape, bool)
    )
    with warns(UserWarning):
        edges = causal.load_default_surrogate().edge_probabilities(samples)
    assert np.isfinite(edges).all()
