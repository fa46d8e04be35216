"""Switches, categories, integers, lists; values really set; several at once."""

from typing import Any

import numpy as np
import pytest

from frugax import ExperimentBudget
from frugax.causal.campaign import (
    Binary,
    Campaign,
    Categorical,
    Grid,
    Integer,
    JointLimit,
    Logarithmic,
)
from refusals import refuses, warns

KINDS = {
    "switch": Binary(),
    "kind": Categorical(("none", "acid", "base")),
    "count": Integer(1, 4),
    "heat": Grid((20, 40, 80)),
    "dose": (0.0, 2.0),
}
GAIN = {"none": 0.0, "acid": -3.0, "base": 2.0}


def campaign_of(**more):
    told: dict[str, Any] = {
        "variables": KINDS,
        "target": "y",
        "budget": ExperimentBudget(n=8),
        "num_posterior_samples": 8,
    }
    return Campaign(**told | more)


def natural(n=30, seed=0):
    rng = np.random.default_rng(seed)
    kind = rng.choice(["none", "acid", "base"], n, p=[0.8, 0.1, 0.1])
    return {
        "switch": rng.random(n) < 0.5,
        "kind": kind,
        "count": rng.integers(1, 5, n),
        "heat": rng.choice([20, 40, 80], n),
        "dose": rng.uniform(0, 1, n),
        "y": [GAIN[k] for k in kind] + 0.3 * rng.standard_normal(n),
    }


def answer(actions, seed):
    noise = 0.1 * np.random.default_rng(seed).standard_normal()
    return GAIN[actions.get("kind", "none")] + noise


def test_experiments_and_recommendations_use_only_settable_values(tmp_path):
    campaign = campaign_of()
    campaign.tell_observations(natural())
    settings = {
        "switch": {True, False},
        "kind": {"none", "acid", "base"},
        "count": {1, 2, 3, 4},
        "heat": {20.0, 40.0, 80.0},
    }
    while (one := campaign.ask()) is not None:
        for name, value in one.actions.items():
            assert name == "dose" or value in settings[name]
        assert ("kind = " not in str(one)) or str(one.actions["kind"]) in str(one)
        campaign.tell(one, answer(one.actions, one.id))
    best = campaign.recommend()
    assert best.actions == {"kind": "acid"}
    assert str(best).startswith("for a small y, do(kind = acid)")
    assert best.prob_better is not None
    assert best.prob_better > 0.8
    assert best.nothing == pytest.approx(np.mean(natural()["y"]), abs=0.2)
    campaign.save(tmp_path / "campaign")
    again = Campaign.load(tmp_path / "campaign")
    assert again.settings.variables == campaign.settings.variables
    assert again.recommend() == best


def test_a_value_that_was_not_quite_set_as_asked_counts_as_it_was(tmp_path):
    campaign = campaign_of(variables={"x": (0.0, 10.0)})
    one = campaign.ask()
    assert one is not None
    asked = one.intervention.values["x"]
    with refuses(ValueError, "'x'"):
        campaign.tell(one, {"y": 1.0, "x": asked + 0.5})
    with refuses(ValueError, "'z'", "actual"):
        campaign.tell(one, 1.0, actual={"z": 1.0})
    campaign.tell(one, {"y": 1.0}, actual={"x": asked + 0.5})
    assert campaign.experiments[0].as_set == {"x": asked + 0.5}
    assert campaign.samples is not None
    assert campaign.samples["x"][0] == pytest.approx(asked + 0.5)
    assert campaign.infer().outlook.done.values[0][0, 0] == asked + 0.5
    campaign.save(tmp_path / "campaign")
    assert Campaign.load(tmp_path / "campaign").experiments == campaign.experiments


def test_several_experiments_at_once_differ_and_are_paid():
    campaign = campaign_of(variables={"x": (0.0, 1.0), "z": (0.0, 1.0)})
    asked = campaign.ask(4)
    assert len(asked) == 4
    assert len({str(one.intervention) for one in asked}) == 4
    assert campaign.left == {"n": 4}
    assert len(campaign.ask(9)) == 4
    assert campaign.ask(2) == ()
    with refuses(ValueError, "n"):
        campaign.ask(0)


def test_experiments_of_the_past_count_as_outcomes():
    campaign = campaign_of(variables={"x": (-2.0, 2.0)})
    from frugax.causal import Samples

    rng = np.random.default_rng(0)
    x = np.array([-2.0, -2.0, 2.0, 2.0])
    values = np.stack([x, -x + 0.1 * rng.standard_normal(4)], axis=1)
    past = Samples(("x", "y"), values, np.array([[True, False]] * 4))
    campaign.tell_observations(past)
    done = campaign.infer().outlook.done
    assert done.values[0][:, 0].tolist() == [-2.0, 2.0]
    assert campaign.recommend().value["x"] > 1.0
    assert campaign.spent == 0
    # Nobody has seen the system left alone.
    assert campaign.recommend().prob_better is None


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Integer(2, 2), "high"),
        (lambda: Categorical(("a",)), "names"),
        (lambda: Categorical(("Pd", "Zn", "Pd")), "'Pd'"),
        (lambda: Grid((1.0,)), "numbers"),
        (lambda: Grid((1.0, float("nan"))), "numbers"),
        (lambda: Logarithmic((0.0, 1.0)), "log_range"),
        (lambda: Logarithmic((1e-60, 1.0)), "log_range"),
        (lambda: Logarithmic((1.0, 0.1)), "log_range"),
    ],
)
def test_wrong_kinds_are_refused(make, named):
    with refuses(ValueError, named):
        make()


def test_a_name_that_is_not_a_level_is_refused():
    campaign = campaign_of()
    with refuses(ValueError, "kind"):
        campaign.tell_observations({**natural(), "kind": ["water"] * 30})


def test_a_constant_target_is_refused():
    campaign = campaign_of(variables={"x": (0.0, 1.0)})
    with refuses(ValueError, "'y'"):
        campaign.tell_observations({"x": np.arange(9.0), "y": np.full(9, 2.0)})


def test_an_unknown_level_is_named_with_its_row():
    rows = natural(6)
    rows["kind"][3] = "zinc"
    with refuses(ValueError, "'kind'", "zinc"):
        campaign_of().tell_observations(rows)
    with refuses(ValueError, "perhaps", "switch"):
        campaign_of().tell_observations(natural(6) | {"switch": ["perhaps"] * 6})


def test_the_mean_of_a_switch_stays_between_0_and_1():
    campaign = campaign_of(variables={"x": (0.0, 1.0)}, num_posterior_samples=32)
    rng = np.random.default_rng(0)
    x = rng.uniform(0.0, 0.3, 60)
    campaign.tell_observations({"x": x, "y": rng.random(60) < 0.1 + x})
    for minimize in (True, False):
        one = campaign.ask()
        assert one is not None
        assert 0 <= one.low <= one.expected <= one.high <= 1
        best = campaign.recommend()
        assert 0 <= best.low <= best.expected <= best.high <= 1
        campaign.tell(one, float(minimize))


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ({"switch": [1, 2] * 15}, "switch"),
        ({"switch": [0.5] * 30}, "switch"),
        ({"plate": [1, 2] * 15}, "plate"),
    ],
)
def test_numbers_that_may_mean_other_levels_are_refused(table, named):
    kinds = KINDS | {"plate": Categorical(("1", "2", "3"))}
    with refuses(ValueError, named):
        campaign_of(variables=kinds).tell_observations(natural() | table)


def test_a_category_has_no_bounds():
    with refuses(ValueError, "kind", "constraints"):
        campaign_of(constraints={"kind": (None, 1.0)})


def test_a_value_far_from_its_range_is_noticed():
    campaign = campaign_of(variables={"x": (0.0, 10.0)})
    experiment = campaign.ask()
    assert experiment is not None
    with warns(UserWarning, "1e+09"):
        campaign.tell(experiment, 1.0, actual={"x": 1e9})


def test_codes_of_samples_are_checked_like_names():
    from frugax.causal import Samples

    campaign = campaign_of()
    table = {**natural(), "kind": np.full(30, 7.0)}
    with refuses(ValueError, "'kind'"):
        campaign.tell_observations(Samples.from_frame(table))


DOSE = {"dose": Logarithmic((1e-9, 1e-3))}


def respond(dose):
    return (np.log10(dose) + 7) ** 2


def test_a_logarithmic_range_is_searched_by_orders_of_magnitude(tmp_path):
    campaign = campaign_of(variables=DOSE)
    asked: list[Any] = []
    while (one := campaign.ask()) is not None:
        asked.append(one.actions["dose"])
        assert 1e-9 <= asked[-1] <= 1e-3
        campaign.tell(one, respond(asked[-1]))
    # The middle of the range is 5e-4; that of its logarithms is 1e-6.
    assert sum(dose < 1e-5 for dose in asked) >= 5
    best = campaign.recommend()
    assert abs(np.log10(best.actions["dose"]) + 7) < 1
    assert best.value == best.actions
    campaign.save(tmp_path / "campaign")
    again = Campaign.load(tmp_path / "campaign")
    assert again.settings.variables == DOSE
    assert again.recommend() == best


def test_rows_with_a_logarithmic_variable_are_told_as_they_are():
    campaign = campaign_of(variables=DOSE)
    dose = 10.0 ** np.random.default_rng(0).uniform(-9, -3, 20)
    campaign.tell_observations({"dose": dose, "y": respond(dose)})
    (one,) = campaign.ask(1)
    campaign.tell(one, 1.0, actual={"dose": 2e-6})
    assert campaign.experiments[0].as_set == {"dose": 2e-6}
    assert campaign.samples is not None
    assert campaign.samples["dose"] == pytest.approx([*dose, 2e-6])
    assert campaign.infer().outlook.done.values[0].ravel() == pytest.approx(
        np.log10(2e-6)
    )


def test_what_has_no_logarithm_is_refused():
    campaign = campaign_of(variables=DOSE)
    rows = {"dose": [1e-6, 0.0, 1e-4], "y": [1.0, 2.0, 3.0]}
    with refuses(ValueError, "row 1", "'dose'"):
        campaign.tell_observations(rows)
    assert campaign.samples is None
    (one,) = campaign.ask(1)
    with refuses(ValueError, "'dose'", -1.0):
        campaign.tell(one, 1.0, actual={"dose": -1.0})
    limit = JointLimit(weights={"dose": 1.0, "x": 1.0}, high=1.0)
    with refuses(ValueError, "'dose'", "joint_limits"):
        campaign_of(variables=DOSE | {"x": (0.0, 1.0)}, joint_limits=[limit])
    with refuses(ValueError, "constraints['dose']"):
        campaign_of(variables=DOSE, constraints={"dose": (None, 1e-4)})
