"""`multiple_choice_knapsack` finds the best there is, and its bound is one."""

import itertools

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from frugax.allocate import multiple_choice_knapsack
from frugax.errors import InfeasibleBudgetError


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 4), st.integers(1, 4), st.integers(0, 60))
def test_nothing_is_better(seed, items, options, spare):
    rng = np.random.default_rng(seed)
    cost = rng.integers(0, 40, (items, options))
    loss = rng.random((items, options))
    limit = int(cost.min(axis=1).sum()) + spare
    found = multiple_choice_knapsack(cost, loss, limit=limit)
    rows = np.arange(items)
    assert found.cost == cost[rows, found.chosen].sum() <= limit
    assert found.loss == pytest.approx(loss[rows, found.chosen].sum())
    best = min(
        loss[rows, pick].sum()
        for pick in itertools.product(range(options), repeat=items)
        if cost[rows, pick].sum() <= limit
    )
    assert found.loss == pytest.approx(best)
    assert found.bound <= best + 1e-12


def test_many_items_come_close_to_the_bound():
    rng = np.random.default_rng(0)
    size = rng.integers(1000, 10**6, 60)
    variance = 10.0 ** rng.uniform(-2, 0, 60)
    bits = np.linspace(1, 8, 15)
    cost = (size[:, None] * bits / 8).astype(int)
    loss = (size * variance)[:, None] * 4.0**-bits
    found = multiple_choice_knapsack(cost, loss, limit=int(size.sum() * 3.6 / 8))
    assert 0 <= found.gap < 0.003


def test_few_menus_with_dents_have_a_bound_as_well():
    # With one price for all, half of an option is one: 150 would seem within reach.
    cost = np.array([[0, 600, 1000], [0, 500, 1000], [0, 550, 1000]])
    loss = np.array([[100.0, 90, 0], [100, 92, 0], [100, 91, 0]])
    found = multiple_choice_knapsack(cost, loss, limit=1500)
    assert (found.loss, found.gap) == (192, 0)


def test_an_option_of_infinite_loss_is_never_chosen():
    cost, loss = np.array([[1, 2]]), np.array([[np.inf, 3.0]])
    assert multiple_choice_knapsack(cost, loss, limit=5).chosen.tolist() == [1]
    with pytest.raises(InfeasibleBudgetError) as caught:
        multiple_choice_knapsack(cost, loss, limit=1)
    assert caught.value.needed == 2


def test_zero_loss_has_zero_gap():
    found = multiple_choice_knapsack(np.array([[3]]), np.array([[0.0]]), limit=3)
    assert (found.gap, found.loss, found.bound) == (0, 0, 0)
