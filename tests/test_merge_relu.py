"""The bound of `examples/merge_relu.py` holds anywhere in the box."""

import runpy
import types
from pathlib import Path

import numpy as np
import pytest

PATH = Path(__file__).parent.parent / "examples" / "merge_relu.py"


@pytest.fixture(scope="module")
def example():
    return types.SimpleNamespace(**runpy.run_path(str(PATH)))


@pytest.mark.parametrize("fitted", [False, True])
def test_no_output_changes_beyond_its_bound(example, fitted):
    rng = np.random.default_rng(0)
    layers = tuple(rng.normal(size=s) for s in ((6, 48), (48,), (48, 3), (3,)))
    low, high = -rng.random(6), rng.random(6)
    x = low + (high - low) * rng.random((20_000, 6))
    x[::2] = np.where(x[::2] > (low + high) / 2, high, low)  # corners
    data = x[:500] if fitted else None
    small, bound = example.merge_units(layers, 12, low, high, data=data)
    change = np.abs(example.evaluate(small, x) - example.evaluate(layers, x)).max(0)
    assert (change <= bound).all()
    assert (change > 0.05 * bound).all()


def test_parallel_units_merge_without_a_change(example):
    rng = np.random.default_rng(1)
    w1, b1, w2, b2 = (rng.normal(size=s) for s in ((4, 5), (5,), (5, 2), (2,)))
    twice = np.hstack([w1, 2 * w1]), np.hstack([b1, 2 * b1]), np.vstack([w2, w2]), b2
    _, bound = example.merge_units(twice, 5, -np.ones(4), np.ones(4))
    assert (bound < 1e-3).all()
