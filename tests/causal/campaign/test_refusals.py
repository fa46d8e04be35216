"""Refusals of a campaign: with the value and its place, before anything is lost."""

import gc
import math

import numpy as np
import pytest

from chain_campaigns import CHAIN, campaign_of
from frugax import ExperimentBudget, InfeasibleBudgetError, causal
from frugax.causal.campaign import Campaign
from frugax.causal.campaign.preparation import find_mean_range
from frugax.errors import FrugaxError, OutputError
from refusals import refuses


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"target": "x"}, "'x'"),
        ({"variables": {"x": (1.0, 1.0)}}, "(1.0, 1.0)"),
        ({"variables": {"x": (2.0, 1.0)}}, "(2.0, 1.0)"),
        ({"variables": {"x": (0.0, math.inf)}}, "'x'"),
        ({"variables": {"x": (-1e300, 1e300)}}, (-1e300, 1e300)),
        ({"variables": {"x": (1e9, 1e9 + 1)}}, "float32"),
        ({"variables": {}}, "variables"),
        ({"budget": ExperimentBudget(cost=1, costs={"x": 1.0})}, "'z'"),
        ({"forbidden_sets": [("x",), ("z",)]}, "forbidden_sets"),
        ({"sets": [("x", "w")]}, "'w'"),
        ({"constraints": {"h": (None, None)}}, "'h'"),
        ({"constraints": {"h": (2.0, 1.0)}}, "(2.0, 1.0)"),
        ({"constraints": {"x": (2.5, None)}}, "(-2.0, 2.0)"),
        ({"constraints": {"x": (None, -2.5)}}, "(-2.0, 2.0)"),
        ({"constraints": {"y": (None, 1.0)}}, "'y'"),
        ({"required": [("x", "y")], "forbidden": [("x", "y")]}, "required"),
        ({"required": [("x", "z"), ("z", "x")]}, "x -> z -> x"),
        (
            {"required": [("w", "x"), ("x", "z"), ("z", "y"), ("y", "x")]},
            "x -> z -> y -> x",
        ),
        ({"required": [("x", "x")]}, "x -> x"),
        (
            {"rows_per_experiment": 0},
            "rows_per_experiment",
        ),
        ({"confidence": 0.0}, "confidence"),
        ({"num_posterior_samples": 10**6}, "num_posterior_samples"),
        ({"target": ""}, "target"),
        ({"constraints": {"h\n": (None, 1.0)}}, "'h\\n'"),
        (
            {"sets": [("x", "z")], "forbidden_sets": [("z",)]},
            "'z'",
        ),
        ({"sets": [("x", "x")]}, "('x', 'x')"),
        (
            {"required": [(f"v{i}", f"v{i + 1}") for i in range(10)]},
            "required",
        ),
    ],
)
def test_impossible_settings_are_refused(change, named):
    with refuses(ValueError, named):
        campaign_of(**change)


def test_an_infeasible_budget_names_the_least_price():
    prices = {"x": 1.1, "z": 2.5}
    with refuses(InfeasibleBudgetError, "cost", unit="of cost") as e:
        campaign_of(budget=ExperimentBudget(cost=0.5, costs=prices))
    campaign = campaign_of(budget=ExperimentBudget(cost=e.value.needed, costs=prices))
    ask = campaign.ask()
    assert ask is not None
    assert campaign.ask() is None


def test_edges_without_a_column_are_refused():
    data = causal.sample(CHAIN, 10, seed=0)
    for change in (
        {"required": [("zz", "y")]},
        {"forbidden": [("y", "zz")]},
    ):
        wrong = campaign_of(**change)
        what = next(iter(change))
        with refuses(ValueError, what, "'zz'", "'z'"):
            wrong.tell_observations(data)
        assert wrong.samples is None
    wrong = campaign_of(forbidden=[("x", "y"), ("z", "y")])
    with refuses(ValueError, "'y'"):
        wrong.tell_observations(data)
    assert wrong.samples is None
    with refuses(ValueError, "'y'"):
        wrong.ask()  # before it costs anything
    campaign_of(forbidden=[("x", "y")]).tell_observations(data)  # by way of z
    with refuses(ValueError, "'y'"):
        campaign_of().tell_observations(data.select(("x", "z")))


@pytest.mark.parametrize(
    "edges", ["required", pytest.param("forbidden", marks=pytest.mark.thorough)]
)
def test_required_edges_keep_their_variables_in_the_models(edges):
    names = ("x", "y", "z", *(f"v{i:02}" for i in range(11)))
    rng = np.random.default_rng(0)
    values = rng.standard_normal((20, len(names)))
    values[:, 3:] += 3 * values[:, 1:2]  # but for the last
    values[:, -1] = rng.standard_normal(20)
    campaign = campaign_of(**{edges: [(names[-1], "y")]})
    campaign.tell_observations(causal.Samples.observed(names, values))
    known = campaign.infer()
    assert len(known.names) == 12
    assert (names[-1] in known.names) is (edges == "required")


def test_a_refused_answer_is_not_charged():
    campaign = campaign_of(rows_per_experiment=2)
    ask = campaign.ask()
    assert ask is not None
    with refuses(TypeError, "'y'"):
        campaign.tell(ask, "much")
    with refuses(TypeError, "True"):
        campaign.tell(ask, True)
    for data, named in (
        ({"y": []}, "row"),
        ({"y": ["a"]}, "'y'"),
        (1e300, 1e300),
        (10**400, "'y'"),
        ({"w": 1.0}, "'y'"),
        (
            {"y": [1.0, 2.0, 3.0]},
            "rows_per_experiment=2",
        ),
    ):
        with refuses(ValueError, named):
            campaign.tell(ask, data)
    assert [e.id for e in campaign.pending] == [ask.id]
    assert campaign.samples is None
    assert campaign.spent == 0
    campaign.tell(ask, {"y": [1.0, math.nan], "weight": 3.0})  # the first may have more
    again = campaign.ask()
    assert again is not None
    with refuses(ValueError, "wieght", "weight"):
        campaign.tell(again, {"y": 1.0, "wieght": 3.0})
    with refuses(ValueError, "'q'"):
        campaign.tell(again, {"y": 1.0, "q": 3.0})
    assert campaign.spent == ask.cost


def test_only_the_campaigns_current_file_is_overwritten(tmp_path):
    path, other = tmp_path / "c", campaign_of(seed=1)
    campaign = campaign_of()
    campaign.keep(path)
    campaign.ask()
    kept = path.read_bytes()
    for write in (other.save, other.keep):
        with refuses(OutputError, "c"):
            write(path)
    assert path.read_bytes() == kept
    again = Campaign.load(path)  # the same, later
    for write in (again.save, again.keep):
        with refuses(OutputError, "c"):
            write(path)
    campaign.keep(path)  # the same file again
    campaign.tell_failed(0)
    campaign.keep(tmp_path / "d")  # releases the first
    for write in (again.save, again.keep):
        with refuses(OutputError, "c"):
            write(path)
    again = Campaign.load(path)
    again.keep(path)
    del again, write
    gc.collect()  # as good as the end of its process
    campaign.save(path)
    kept = path.read_bytes()
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    with refuses(OutputError, "notes.txt"):
        campaign.save(notes)
    assert notes.read_text() == "mine"
    other.ask()  # a file that was refused is not kept either
    assert path.read_bytes() == kept


def test_after_its_time_a_campaign_still_takes_answers(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    campaign = campaign_of(budget=ExperimentBudget(seconds="10min"))
    ask = campaign.ask()
    assert ask is not None
    now[0] += 600
    assert campaign.left == {"seconds": 0.0}
    assert campaign.ask() is None
    assert campaign.advise().reason == "the time is over."
    campaign.tell(ask, 1.0)
    assert campaign.spent == 1.0


def test_answers_that_float32_rounds_away_are_refused():
    campaign = campaign_of(rows_per_experiment=2)
    campaign.tell_observations({"y": 1e9 + 3})  # alone it could be all there is
    lost = "'y'"
    with refuses(ValueError, lost):
        campaign.tell_observations({"y": 1e9 + 1})
    ask = campaign.ask()
    assert ask is not None
    with refuses(ValueError, lost):
        campaign.tell(ask, 1e9 + 1)
    assert campaign.spent == 0
    assert campaign.samples is not None
    assert len(campaign.samples) == 1
    campaign.tell(ask, 2e9)  # these differ
    assert campaign.spent == ask.cost


def test_a_folder_is_not_a_campaign_and_a_number_not_a_table(tmp_path):
    with refuses(IsADirectoryError, "campaign"):
        Campaign.load(tmp_path)
    campaign = campaign_of()
    with refuses(TypeError, 3.0, "'y'"):
        campaign.tell_observations(3.0)
    assert campaign.samples is None


@pytest.mark.parametrize(
    ("values", "range_"),
    [
        ([0, 1, 1, 0, *[1] * 8], (0.0, 1.0)),  # a switch
        ([0] * 40 + [1] * 30 + [2] * 20 + [3] * 10, (0.0, math.inf)),  # a count
        ([0, 0, 1, 2, 3, 3, 4, 4, 5, 6, 7, 8], (-math.inf, math.inf)),  # a score
        ([0] * 40 + [-1] + [1] * 30, (-math.inf, math.inf)),
        ([0.5] * 40, (-math.inf, math.inf)),
    ],
)
def test_means_are_cut_at_0_only_where_values_end_there(values, range_):
    assert find_mean_range(np.array(values, float)) == range_


def test_a_closed_campaign_lets_others_write(tmp_path):
    path = tmp_path / "c"
    with campaign_of() as campaign:
        campaign.keep(path)
        ask = campaign.ask()
        assert ask is not None
    with refuses(FrugaxError):
        campaign.tell(ask, 1.0)
    assert campaign.pending == (campaign.experiments[0],)
    with Campaign.load(path) as again:
        again.keep(path)
        again.tell(0, 1.0)
    campaign = Campaign.load(path)
    campaign.keep(path)
    campaign.close()
    campaign.keep(path)  # continues
    assert campaign.ask() is not None
    assert len(Campaign.load(path).experiments) == 2
