"""Tables that contradict the experiment, and constraints that nothing keeps."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from frugax import ExperimentBudget, causal
from frugax.causal import Samples
from frugax.causal.campaign.report import render_heading
from refusals import refuses, warns

HEAT = {"heat": (20.0, 90.0)}


def begin(**more):
    told: dict[str, Any] = {
        "variables": {"a": (0.0, 1.0)},
        "target": "y",
        "budget": ExperimentBudget(n=3),
        "num_posterior_samples": 8,
    }
    return causal.Campaign(**told | more)


@pytest.fixture(scope="module")
def campaign():
    made = begin(constraints={"harm": (None, 1.0)}, rows_per_experiment=2)
    x = np.linspace(0.0, 1.0, 20)
    made.tell_observations({"a": x, "harm": 5 + x, "y": -x})
    made.ask()
    return made


def test_an_answer_that_contradicts_the_experiment_is_refused(campaign):
    asked = campaign.experiments[0].values["a"]
    wrong = asked + 1e-3
    with refuses(ValueError, "'a'", asked):
        campaign.read_answer(0, {"y": [2.0, 2.0], "a": [asked, wrong]})
    marked = Samples(("harm", "y"), np.ones((1, 2)), np.array([[True, False]]))
    with refuses(ValueError):
        campaign.read_answer(0, marked)
    for said in (np.float32(asked), np.nan):  # as asked, or not said
        rows = campaign.read_answer(0, {"a": said, "y": [1.0, 2.0]})
        assert rows["a"].tolist() == [np.float32(asked)] * 2
        assert rows.intervened.tolist() == [[True, False]] * 2
    other = dataclasses.replace(campaign.experiments[0], values={"a": wrong})
    with refuses(ValueError, "ExperimentRecord"):
        campaign.tell(other, 1.0)
    assert len(campaign.pending) == 1


def test_outliers_are_reported_but_accepted(campaign):
    entry = campaign.experiments[0]
    for wild in ({"y": 40.0}, {"y": [-1.0, -1e38]}, {"y": -1.0, "harm": 50.0}):
        rows = campaign.read_answer(entry, wild)
        (said,) = campaign.find_outliers(entry, rows)
        assert "is far from the values seen or expected" in said
    usual = Samples.from_frame(
        {"y": [-1.5, np.nan], "harm": [6.5, 5.0], "new": [1e9, 0]}
    )
    assert campaign.find_outliers(entry, usual) == ()


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ({"a": [0, 0.5, 1], "harm": [1, 1, 1], "y": [7.0]}, "'y'"),
        ({"y": np.array([1j])}, "'y'"),
        ({"y": np.array(["2020-01-01"], "datetime64[ns]")}, "'y'"),
        ({"y": np.ones((2, 2))}, "'y'"),
        ({"y": [1.0, "much"]}, "'y'"),
    ],
)
def test_observations_are_read_as_strictly_as_samples(campaign, table, named):
    with refuses(ValueError, named):
        campaign.tell_observations(table)


def test_infeasible_constraints_are_reported_with_every_recommendation(campaign):
    best, advice = campaign.recommend(), campaign.advise()
    why = (
        "no experiment is likely to keep harm <= 1: the recommendation does with "
        "probability 0% and has the smallest violation"
    )
    assert best.prob_feasible == 0
    assert best.prob_optimal < 0.05
    page = render_heading("name", campaign, advice, None).replace("&lt;", "<")
    for text in (str(best), str(advice), page):
        assert why in text


def test_constraints_on_unmeasured_variables_are_reported():
    made = begin(constraints={"harm": (None, 1.0)})
    x = np.linspace(0.0, 1.0, 20)
    made.tell_observations({"a": x, "y": -x})
    made.ask()
    why = "harm was never measured, so its limits do not count yet"
    advice = made.advise()
    assert made.unmeasured == ("harm",)
    for text in (str(made.recommend()), str(advice), made.recommend().warning):
        assert why in text
    assert "keeps the constraints" not in render_heading("name", made, advice, None)
    made.tell(0, {"y": -1.0, "harm": 5.0})
    assert made.unmeasured == ()
    assert why not in str(made.advise())
    assert "keeps the constraints" in render_heading("name", made, advice, None)


def test_observations_in_another_unit_than_the_range_are_noticed():
    made = begin(variables=HEAT)
    kelvin = np.linspace(290.0, 330.0, 9)
    with warns(UserWarning, "heat"):
        made.tell_observations({"heat": kelvin, "y": kelvin})


def test_a_first_answer_of_an_odd_size_is_an_outlier():
    made = begin()
    one, other = made.ask(2)
    assert made.find_outliers(0, 4.2) == ()
    assert made.find_outliers(one, {"y": 1e9}) == (
        "y = 1e+09 is very large, and no other value was seen",
    )
    made.tell(one, 2.0)
    assert made.find_outliers(made.experiments[1], {"y": [30.0]}) == ()
    (said,) = made.find_outliers(other, {"y": 1e12})
    assert said.startswith("y = 1e+12 is far from the values seen or expected")


def test_a_wild_value_does_not_hide_the_next():
    made = begin()
    y = np.linspace(0.5, 1.0, 40)
    y[7] = 1e12
    with warns(UserWarning, 7):
        made.tell_observations({"y": y})
    made.ask()
    (said,) = made.find_outliers(0, 1e11)
    assert "far from" in said


def test_a_column_in_other_letters_is_noticed():
    made = begin(variables=HEAT, constraints={"pH": (None, 9.0)})
    with refuses(ValueError, "'Y'", "'y'"):
        made.tell_observations({"Y": [1.0, 2.0]})
    with refuses(ValueError, "'ph'", "'pH'"):
        made.tell_observations({"y": [1.0, 2.0], "ph": [7.0, 7.1]})
    with warns(UserWarning, "Heat", "heat"):
        made.tell_observations({"y": [1.0, 2.0], "Heat": [30.0, 40.0]})


@pytest.mark.parametrize("wrong", ["heat / K", "heat_K", "HEAT", "heats"])
def test_a_column_that_is_nearly_a_variable_is_pointed_out(wrong):
    made = begin(variables=HEAT)
    with warns(UserWarning, "heat", wrong):
        made.tell_observations({wrong: [30.0, 31.0], "y": [1.0, 2.0]})


def test_a_column_of_another_name_is_not_pointed_out():
    made = begin(variables=HEAT)
    for other in ("heating", "heat1"):
        made.tell_observations({other: [30.0, 31.0], "y": [1.0, 2.0]})


def test_a_table_without_rows_is_refused():
    made = begin()
    with refuses(ValueError):
        made.tell_observations({"a": [], "y": []})


def test_a_count_has_no_mean_below_0():
    rng = np.random.default_rng(1)
    made = begin(variables={"a": (-3.0, 3.0)}, target="cells")
    a = rng.standard_normal(60)
    made.tell_observations({"a": a, "cells": rng.poisson(np.exp(a))})
    made.ask()
    made.tell(0, 0.25)  # the mean of several rows
    best = made.recommend()
    assert 0 <= best.low <= best.expected <= best.high
    assert best.high > 0
