"""Every budget is frozen, hashable, readable, and survives plain data both ways."""

import copy
import dataclasses
import pickle

import pytest
from hypothesis import given, strategies as st

import forked
import frugax as fx
from frugax.budget import from_plain, to_plain
from refusals import refuses

BUDGETS = [
    fx.MemoryBudget("2GiB", headroom_frac="5%", kind="total"),
    fx.SizeBudget("6x"),
    fx.SizeBudget("2MiB"),
    fx.SizeBudget("4.25bpw"),
    fx.SizeBudget(ratio=4.0, rel_error=0.01),
    fx.SizeBudget(max_abs=1e-3),
    fx.OverheadBudget("1%"),
    fx.TimeBudget("10min"),
    fx.TimeBudget(seconds="1h", compiles=2),
    fx.TimeBudget(compiles=1),
    fx.ExperimentBudget(cost=10, n=5, seconds="1h", costs={"X": 2, "Y": 0.5}),
    fx.ExperimentBudget(n=3),
]


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_frozen_hashable_and_back_from_plain_data(budget):
    assert from_plain(type(budget), to_plain(budget)) == budget
    assert hash(budget) == hash(copy.deepcopy(budget))
    assert pickle.loads(pickle.dumps(budget)) == budget
    assert dataclasses.replace(budget) == budget
    field = dataclasses.fields(budget)[0].name
    with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
        setattr(budget, field, 1)


@pytest.mark.parametrize(
    ("make", "error", "named"),
    [
        (lambda: fx.SizeBudget(), TypeError, "SizeBudget"),
        (lambda: fx.SizeBudget(ratio=2, bytes=5), TypeError, "'bytes'"),
        (lambda: fx.SizeBudget("2x", ratio=3), TypeError, "'2x'"),
        (lambda: fx.SizeBudget("small"), ValueError, "'small'"),
        (lambda: fx.SizeBudget("1e3"), ValueError, "'1e3'"),
        (lambda: fx.SizeBudget("6X"), ValueError, "'6X'"),
        (lambda: fx.SizeBudget(ratio=0), ValueError, "ratio"),
        (lambda: fx.SizeBudget(rel_error=-1), ValueError, "rel_error"),
        (lambda: fx.SizeBudget(rel_error=2), ValueError, "rel_error"),
        (lambda: fx.SizeBudget(ratio=float("inf")), ValueError, "inf"),
        (lambda: fx.TimeBudget(), TypeError, "limit"),
        (lambda: fx.TimeBudget("1h", seconds=2), TypeError, "'1h'"),
        (lambda: fx.TimeBudget(compiles=0), ValueError, "compiles"),
        (lambda: fx.OverheadBudget(), TypeError, "share"),
        (lambda: fx.OverheadBudget(share=1.5), ValueError, "1.5"),
        (lambda: fx.ExperimentBudget(), TypeError, "limit"),
        (lambda: fx.ExperimentBudget(n=0), ValueError, "n"),
        (
            lambda: fx.ExperimentBudget(n=2.5),  # pyrefly: ignore[bad-argument-type]
            TypeError,
            "n",
        ),
        (
            lambda: fx.TimeBudget(compiles=2.5),  # pyrefly: ignore[bad-argument-type]
            TypeError,
            "compiles",
        ),
        (lambda: fx.ExperimentBudget(cost=-1), ValueError, "cost"),
        (lambda: fx.ExperimentBudget(n=1, costs={"X": 0}), ValueError, "'X'"),
    ],
)
def test_wrong_limits_are_refused_by_name(make, error, named):
    with refuses(error, named):
        make()


@pytest.mark.parametrize("given", ["6", "0.5", "['6x']"])
def test_a_bare_number_is_refused_as_a_size_without_a_type_checker(given):
    code = f"from frugax import SizeBudget; SizeBudget({given})"
    done = forked.python(code)
    said = done.stderr.splitlines()[-1]
    assert said.startswith("TypeError: ")
    assert "write SizeBudget(bytes=1000), " in said
    assert said.endswith(f'SizeBudget(ratio=6) or SizeBudget("6x"), not {given}.')


@given(st.floats(0.01, 1000), st.integers(1, 10**9), st.integers(1, 10**9))
def test_a_ratio_never_allows_more_than_its_share(ratio, original, weights):
    limit = fx.SizeBudget(ratio=ratio).limit_bytes(
        original_bytes=original, weights=weights
    )
    assert limit is not None
    assert limit <= original / ratio < limit + 1


def test_an_experiment_without_a_price_costs_1():
    budget = fx.ExperimentBudget(n=1, costs={"X": 2})
    assert (budget.price("X"), budget.price("Z")) == (2.0, 1.0)


def test_scalars_of_numpy_are_numbers_where_no_type_checker_runs():
    code = """
import numpy as np
from frugax import MemoryBudget, OverheadBudget, SizeBudget, TimeBudget
assert SizeBudget(ratio=np.float32(6)) == SizeBudget(ratio=6)
assert SizeBudget(bytes=np.int64(60000)) == SizeBudget(bytes=60000)
assert type(SizeBudget(bytes=np.int64(60000)).bytes) is int
assert TimeBudget(seconds=np.float32(2)) == TimeBudget(seconds=2)
assert OverheadBudget(share=np.float64(0.5)) == OverheadBudget(share=0.5)
for wrong in (
    lambda: SizeBudget(bytes=np.float32(6)),
    lambda: SizeBudget(ratio=np.bool_(True)),
    lambda: SizeBudget(ratio=np.ones(1)),
    lambda: MemoryBudget("1GiB", headroom_frac=np.float32(1)),
):
    try:
        wrong()
    except (TypeError, ValueError):
        continue
    raise AssertionError(wrong)
"""
    done = forked.python(code)
    assert done.returncode == 0, done.stderr
