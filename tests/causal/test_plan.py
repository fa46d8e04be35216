"""The plan never overdraws, takes the best first, and passes over nothing that fits."""

import itertools
import math
import re
from fractions import Fraction

import pytest
from hypothesis import given, settings, strategies as st

import forked
from frugax import ExperimentBudget, InfeasibleBudgetError, causal

price = st.floats(1e-3, 1e3)


def decimal(number):
    return Fraction(repr(number))


@st.composite
def problems(draw):
    n = draw(st.sampled_from([1, 8]))  # few: JAX compiles anew for each
    names = [f"x{i}" for i in range(n)]
    moderate = st.integers(-500, 500).map(lambda i: i / 100)  # no float32 underflow
    mean = draw(st.lists(moderate, min_size=n, max_size=n))
    std = draw(st.lists(moderate.map(abs), min_size=n, max_size=n))
    prices = st.fixed_dictionaries(dict.fromkeys(names, price))
    costs = draw(st.just({}) | prices)  # without any, each costs 1
    return names, mean, std, costs, draw(moderate)


@settings(deadline=None)
@given(problems(), st.none() | st.floats(1e-3, 1e4), st.none() | st.integers(1, 5))
def test_never_overdraws_and_leaves_out_nothing_that_fits(problem, cost, n):
    names, mean, std, costs, best = problem
    if cost is None and n is None:
        n = 3
    budget = ExperimentBudget(cost=cost, n=n, costs=costs)
    cheapest = min(budget.price(name) for name in names)
    if cost is not None and cheapest > cost:
        with pytest.raises(InfeasibleBudgetError) as caught:
            causal.plan(names, mean, std, budget, best=best)
        assert caught.value.needed == cheapest
        return
    made = causal.plan(names, mean, std, budget, best=best)
    spent = sum(decimal(budget.price(name)) for name in made.names)
    assert made.predicted == float(spent)
    assert cost is None or spent <= decimal(cost)
    assert n is None or len(made.names) <= n
    assert sorted(made.names + made.left_out) == sorted(names)
    rates = [g / budget.price(x) for g, x in zip(made.gains, made.names, strict=True)]
    # Rates were compared in float32.
    assert all(a >= b * (1 - 1e-6) for a, b in itertools.pairwise(rates))
    assert all(rate > 0 for rate in rates)
    for name in made.left_out:
        i = names.index(name)
        full = n is not None and len(made.names) == n
        broke = cost is not None and (
            spent + decimal(budget.price(name)) > decimal(cost)
        )
        # Twelve standard deviations below `best`: the gain is 0 in float32.
        hopeless = mean[i] <= best and (best - mean[i]) >= 12 * std[i]
        assert full or broke or hopeless


@settings(deadline=None)
@given(problems())
def test_planning_succeeds_at_what_is_needed_and_not_below(problem):
    names, mean, std, costs, best = problem
    with pytest.raises(InfeasibleBudgetError) as caught:
        causal.plan(
            names, mean, std, ExperimentBudget(cost=1e-9, costs=costs), best=best
        )
    needed = caught.value.needed
    causal.plan(names, mean, std, ExperimentBudget(cost=needed, costs=costs), best=best)
    below = ExperimentBudget(cost=math.nextafter(needed, 0), costs=costs)
    with pytest.raises(InfeasibleBudgetError):
        causal.plan(names, mean, std, below, best=best)


@pytest.mark.parametrize("price", [0.1, 0.125])
def test_prices_add_up_as_they_are_written(price):
    names = [f"x{i}" for i in range(3)]
    # In binary three times 0.1 is more than 0.3.
    budget = ExperimentBudget(
        cost=round(3 * price, 9), costs={name: price for name in names}
    )
    made = causal.plan(names, [1.0] * 3, [1.0] * 3, budget, best=0.0)
    assert sorted(made.names) == names
    assert made.predicted == budget.cost


def test_a_plan_survives_json_hashes_and_prints():
    budget = ExperimentBudget(cost=3.0, n=2, costs={"a": 2.0, "b": 1.0, "c": 1.0})
    made = causal.plan(
        ["a", "b", "c"], [1.0, 0.2, -9.0], [1.0, 0.1, 0.1], budget, best=0.0
    )
    assert made.names == ("a", "b")
    assert made.left_out == ("c",)
    back = causal.CausalPlan.from_json(made.to_json())
    assert back == made
    assert hash(back) == hash(made)
    assert "limit: cost 3, 2 experiments" in str(made)


def test_nothing_to_gain_gives_an_empty_plan():
    budget = ExperimentBudget(n=2)
    made = causal.plan(["a"], [0.0], [0.0], budget, best=1.0)
    assert made.names == ()
    assert made.predicted == 0.0


@pytest.mark.parametrize(
    ("names", "mean", "std", "best", "text"),
    [
        ([], [], [], 0.0, "names must be given"),
        (["a", "a"], [1.0, 1.0], [1.0, 1.0], 0.0, "each once"),
        (["a"], [1.0, 2.0], [1.0], 0.0, r"mean has shape \(2,\), .* 1 names"),
        (["a", "b"], [1.0, math.nan], [1.0, 1.0], 0.0, r"mean of 'b' .* got nan"),
        (["a"], [1.0], [math.nan], 0.0, "std of 'a' must be >= 0 and finite, got nan"),
        (["a"], [1.0], [-1.0], 0.0, "std of 'a' must be >= 0 and finite, got -1"),
        (["a"], [1.0], [1.0], float("inf"), "best must be finite, got inf"),
    ],
)
def test_wrong_numbers_are_named(names, mean, std, best, text):
    with pytest.raises(ValueError, match=text):
        causal.plan(names, mean, std, ExperimentBudget(n=1), best=best)


@pytest.mark.parametrize(
    ("costs", "text"),
    [
        (
            {"dose": 3.0},
            "costs has no price for 'diet': price every candidate, or none.",
        ),
        (
            {"dose": 3.0, "deit": 2.0},
            "costs has no price for 'diet': is it 'deit'?",
        ),
        (
            {"dose": 3.0, "diet": 1.0, "doses": 9.0},
            "costs has a price for 'doses', which is no candidate: is it 'dose'?",
        ),
        (
            {"dose": 3.0, "diet": 1.0, "x": 9.0},
            "costs has a price for 'x', which is no candidate: there are dose, diet.",
        ),
    ],
)
def test_a_price_that_is_missing_or_for_nothing_is_named(costs, text):
    budget = ExperimentBudget(cost=9.0, costs=costs)
    with pytest.raises(ValueError, match=re.escape(text)):
        causal.plan(["dose", "diet"], [1.0, 1.0], [1.0, 1.0], budget, best=0.0)


def test_without_any_prices_each_experiment_costs_1():
    budget = ExperimentBudget(cost=2.0)
    made = causal.plan(["a", "b", "c"], [3.0, 2.0, 1.0], [1.0] * 3, budget, best=0.0)
    assert (made.names, made.predicted) == (("a", "b"), 2.0)


def test_callers_that_check_no_types_are_checked_all_the_same():
    # A process of its own: in this one every call is type-checked before it is made.
    code = "from frugax import causal\ncausal.plan(['a'], [1.0], [1.0], '5', best=0.0)"
    ran = forked.python(code)
    assert ran.stderr.endswith(
        "TypeError: budget must be an ExperimentBudget, such as "
        "ExperimentBudget(cost=5.0), got '5'.\n"
    )
