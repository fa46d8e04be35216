"""Random trees of every dtype and random budgets: kept, or refused truthfully."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest

from frugax import SizeBudget, compress
from frugax.errors import InfeasibleBudgetError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:these tensors have NaN"),
]

DTYPES = [
    *("bool", "int8", "uint16", "int32", "int64", "uint64", "float16", "float32"),
    *("float64", "complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("int4", "float4_e2m1fn"),
]
CHUNK = 50


def random_array(rng):
    # As `name :=` inside the call it kept a type checker trying overloads for hours.
    name = str(rng.choice(DTYPES))
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    shape = tuple(rng.choice([0, 1, 2, 5, 17, 40], size=rng.integers(0, 4)))
    scale = 10.0 ** rng.choice([-36, -8, -2, 0, 1])
    match rng.integers(6):
        case 0:
            values = np.zeros(shape)
        case 1:
            values = rng.integers(0, 3, size=shape) * scale
        case 2 if dtype.kind in "fV":
            values = np.where(rng.random(shape) < 0.1, np.nan, rng.normal(size=shape))
        case 3:
            values = rng.standard_t(2, size=shape) * scale
        case _:
            values = rng.normal(size=shape) * scale
    if dtype.kind in "iub":
        values = np.abs(values) * 3 % 100
    return np.asarray(values).astype(dtype)


def random_budget(rng, exact_bytes):
    size = {"bytes": int(exact_bytes * rng.uniform(0.3, 1.05)) + 1}
    error = {"rel_error": 10.0 ** rng.uniform(-6, 0)}
    largest = {"max_abs": 10.0 ** rng.uniform(-9, 0)}
    match rng.integers(6):
        case 0:
            return SizeBudget(**error)
        case 1:
            return SizeBudget(**largest)
        case 2:
            return SizeBudget(**size, **error)
        case 3:
            return SizeBudget(**size, **largest)
    return SizeBudget(**size)


def check(seed):
    rng = np.random.default_rng(seed)
    tree = {f"t{i}": random_array(rng) for i in range(rng.integers(0, 5))}
    exact = compress.compress(tree, SizeBudget(max_abs=0))
    budget = random_budget(rng, len(exact))
    data, needed = None, 0.0
    try:
        data = compress.compress(tree, budget)
    except InfeasibleBudgetError as error:
        needed = error.needed
    if data is None:  # at `needed` it succeeds
        assert budget.bytes is not None
        assert needed > budget.bytes
        budget = dataclasses.replace(budget, bytes=int(needed))
        data = compress.compress(tree, budget)
    assert data.receipt.verdict == "kept"
    assert budget.bytes is None or len(data) <= budget.bytes
    back = compress.decompress(data)
    for name, array in tree.items():
        assert back[name].dtype == array.dtype
        assert back[name].shape == array.shape
        if budget.max_abs is not None and array.dtype.kind in "iubc":
            assert back[name].tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "chunk",
    [
        pytest.param(c, marks=[pytest.mark.thorough] if c > 0 else [])
        for c in range(10_000 // CHUNK)
    ],
)
def test_a_random_tree_is_kept_or_refused_with_a_true_need(chunk):
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        check(seed)


@pytest.mark.parametrize("short", [1, 8, 19])
def test_a_tree_without_weights_to_quantise_is_refused_with_its_size(short):
    rng = np.random.default_rng(0)
    tree = {"a": rng.random(3000) < 0.5, "n": rng.integers(0, 99, 40)}
    exact = len(compress.compress(tree, SizeBudget(max_abs=0)))
    with pytest.raises(InfeasibleBudgetError) as error:
        compress.compress(tree, SizeBudget(bytes=exact - short))
    assert error.value.needed == exact
