"""A policy of the user's own: a function instead of a name."""

from typing import Any

import numpy as np

from frugax import ExperimentBudget, causal
from frugax.errors import FrugaxError
from refusals import refuses


def test_a_policy_function_is_passed_again_to_load(tmp_path):
    seen = []

    def cheapest(outlook, rng):
        seen.append(outlook)
        return int(np.argmin(np.where(outlook.affordable, outlook.price, np.inf)))

    costs = {"a": 3.0, "b": 1.0}
    made = causal.Campaign(
        variables={"a": (0, 1), "b": (0, 1)},
        target="y",
        budget=ExperimentBudget(cost=4.0, costs=costs),
        policy=cheapest,
        num_posterior_samples=8,
    )
    assert made.settings.policy == "own"
    made.tell(0 if made.ask() else -1, 1.0)
    made.save(tmp_path / "c")
    with refuses(FrugaxError, "policy"):
        causal.Campaign.load(tmp_path / "c").ask()
    again = causal.Campaign.load(tmp_path / "c", policy=cheapest)
    assert [tuple(ask.values) for ask in again.experiments] == [("b",)]
    ask = again.ask()
    assert ask is not None
    assert ask.intervention.targets == ("b",)
    # Two experiments of the usual price (2), then one and a half.
    assert [round(o.left, 2) for o in seen] == [2.0, 1.5]
    assert [len(o.done) for o in seen] == [0, 1]


def test_a_choice_that_is_not_affordable_is_refused():
    made = causal.Campaign(
        variables={"a": (0, 1)},
        target="y",
        budget=ExperimentBudget(n=1),
        policy=lambda outlook, rng: given[0],
        num_posterior_samples=8,
    )
    given: list[Any] = [-1]
    with refuses(ValueError, -1):
        made.ask()
    for given[0] in (None, 1.0, True, "a", np.zeros(2)):
        with refuses(TypeError, "policy"):
            made.ask()
    assert made.experiments == ()
