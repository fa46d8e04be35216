"""What a campaign refuses, with the value and its place, before anything is lost."""

import gc
import math

import numpy as np
import pytest

from frugax import ExperimentBudget, InfeasibleBudgetError, causal
from frugax.causal.campaign import Campaign
from frugax.errors import FrugaxError, OutputError

CHAIN = causal.SCM.linear(
    {"x": {}, "z": {"x": 1.0}, "y": {"z": -1.0}}, noise_scale=0.1, target="y"
)


def campaign_of(**more):
    told = {
        "variables": {"x": (-2.0, 2.0), "z": (-3.0, 3.0)},
        "target": "y",
        "budget": ExperimentBudget(cost=6.0, costs={"x": 1.0, "z": 2.5}),
        "worlds": 8,
        "policy": "random",
        **more,
    }
    return Campaign(**told)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": "x"}, "target 'x' cannot be set"),
        ({"variables": {"x": (1.0, 1.0)}}, "\\(1.0, 1.0\\) is of no width"),
        ({"variables": {"x": (2.0, 1.0)}}, "is the wrong way round"),
        ({"variables": {"x": (0.0, math.inf)}}, "both finite"),
        ({"variables": {"x": (-1e300, 1e300)}}, "float32 cannot hold or tell apart"),
        ({"variables": {"x": (1e9, 1e9 + 1)}}, "float32 cannot hold or tell apart"),
        ({"variables": {}}, "variables must name"),
        ({"budget": ExperimentBudget(cost=1, costs={"x": 1.0})}, "no price for 'z'"),
        ({"never": [("x",), ("z",)]}, "forbids every experiment"),
        ({"sets": [("x", "w")]}, "sets names 'w'"),
        ({"constraints": {"h": (None, None)}}, "needs a finite bound"),
        ({"constraints": {"h": (2.0, 1.0)}}, "bounds the wrong way round"),
        ({"constraints": {"x": (2.5, None)}}, "no value of its range \\(-2.0, 2.0\\)"),
        ({"constraints": {"x": (None, -2.5)}}, "no value of its range \\(-2.0, 2.0\\)"),
        ({"constraints": {"y": (None, 1.0)}}, "is about the target"),
        ({"required": [("x", "y")], "forbidden": [("x", "y")]}, "both required and"),
        ({"required": [("x", "z"), ("z", "x")]}, "cycle x -> z -> x"),
        (
            {"required": [("w", "x"), ("x", "z"), ("z", "y"), ("y", "x")]},
            "cycle x -> z -> y -> x",
        ),
        ({"required": [("x", "x")]}, "cycle x -> x"),
        ({"rows": 0}, "rows must be a whole number >= 1, got 0"),
        ({"sure": 0.0}, "sure must be in"),
        ({"worlds": 10**6}, "worlds must be <= 4096"),
        ({"target": ""}, "target must be named by a text in one line"),
        ({"constraints": {"h\n": (None, 1.0)}}, r"constraints must be named .*'h\\n'"),
        ({"sets": [("x", "z")], "never": [("z",)]}, r"but never forbids \('z',\)"),
        ({"sets": [("x", "x")]}, "names a variable twice"),
        (
            {"required": [(c, "y") for c in "pqrst"], "max_parents": 4},
            "5 causes of 'y', and max_parents is 4",
        ),
        (
            {"required": [(f"v{i}", f"v{i + 1}") for i in range(10)]},
            r"name 12 variables, at most 12 can be weighed, what is set among them",
        ),
        ({"policy": "greedy"}, "policy must be one of"),
    ],
)
def test_what_cannot_be_is_refused_at_once(change, message):
    with pytest.raises(ValueError, match=message):
        campaign_of(**change)


def test_a_budget_that_pays_for_nothing_says_what_would_do():
    prices = {"x": 1.1, "z": 2.5}
    with pytest.raises(InfeasibleBudgetError, match=r"at least 1\.1 of cost") as e:
        campaign_of(budget=ExperimentBudget(cost=0.5, costs=prices))
    campaign = campaign_of(budget=ExperimentBudget(cost=e.value.needed, costs=prices))
    ask = campaign.ask()
    assert ask is not None
    assert campaign.ask() is None


def test_names_that_no_row_has_are_refused_with_the_observations():
    data = causal.sample(CHAIN, 10, seed=0)
    for change in (
        {"required": [("zz", "y")]},
        {"forbidden": [("y", "zz")]},
    ):
        wrong = campaign_of(**change)
        what = next(iter(change))
        with pytest.raises(ValueError, match=f"{what} names 'zz'.* is it 'z'"):
            wrong.tell_observations(data)
        assert wrong.samples is None
    wrong = campaign_of(forbidden=[("x", "y"), ("z", "y")])
    with pytest.raises(ValueError, match="no way by which x, z could cause 'y'"):
        wrong.tell_observations(data)
    assert wrong.samples is None
    with pytest.raises(ValueError, match="no way by which x, z could cause 'y'"):
        wrong.ask()  # before it costs anything
    campaign_of(forbidden=[("x", "y")]).tell_observations(data)  # by way of z
    with pytest.raises(ValueError, match="no column for the target 'y', only x, z"):
        campaign_of().tell_observations(data.select(("x", "z")))


@pytest.mark.parametrize("edges", ["required", "forbidden"])
def test_a_stated_edge_may_be_of_what_does_not_go_with_the_target(edges):
    names = ("x", "y", "z", *(f"v{i:02}" for i in range(11)))
    rng = np.random.default_rng(0)
    values = rng.standard_normal((20, len(names)))
    values[:, 3:] += 3 * values[:, 1:2]  # but for the last
    values[:, -1] = rng.standard_normal(20)
    campaign = campaign_of(**{edges: [(names[-1], "y")]})
    campaign.tell_observations(causal.Samples.observed(names, values))
    known = campaign.look()
    assert len(known.names) == 12
    assert (names[-1] in known.names) is (edges == "required")


def test_answers_that_are_none_are_refused_and_cost_nothing():
    campaign = campaign_of(rows=2)
    ask = campaign.ask()
    assert ask is not None
    with pytest.raises(TypeError, match="got a str"):
        campaign.tell(ask, "much")
    with pytest.raises(TypeError, match="a table or a number, got True"):
        campaign.tell(ask, True)
    for data, message in (
        ({"y": []}, "at least one row"),
        ({"y": ["a"]}, "'y' is no number in row 0"),
        (1e300, "too large for float32"),
        (10**400, "'y' is infinite"),
        ({"w": 1.0}, "an answer needs 'y'"),
        ({"y": [1.0, 2.0, 3.0]}, r"gives 2 rows .*got 3: begin it with rows=3"),
    ):
        with pytest.raises(ValueError, match=message):
            campaign.tell(ask, data)
    assert [e.id for e in campaign.pending] == [ask.id]
    assert campaign.samples is None
    assert campaign.spent == 0
    campaign.tell(ask, {"y": [1.0, math.nan], "weight": 3.0})  # the first may have more
    again = campaign.ask()
    assert again is not None
    with pytest.raises(ValueError, match=r"has 'wieght', .* is it 'weight'"):
        campaign.tell(again, {"y": 1.0, "wieght": 3.0})
    with pytest.raises(ValueError, match="has 'q', which is in no row before"):
        campaign.tell(again, {"y": 1.0, "q": 3.0})
    assert campaign.spent == ask.cost


def test_no_file_is_written_over_but_its_own(tmp_path):
    path, other = tmp_path / "c", campaign_of(seed=1)
    campaign = campaign_of()
    campaign.keep(path)
    campaign.ask()
    kept = path.read_bytes()
    for write in (other.save, other.keep):
        with pytest.raises(OutputError, match="c holds another campaign: go on with"):
            write(path)
    assert path.read_bytes() == kept
    again = Campaign.load(path)  # the same, later
    for write in (again.save, again.keep):
        with pytest.raises(OutputError, match="another writer has it open"):
            write(path)
    campaign.keep(path)  # once more is no other
    campaign.tell_failed(0)
    campaign.keep(tmp_path / "d")  # lets go of the first
    for write in (again.save, again.keep):
        with pytest.raises(OutputError, match="has changed since this campaign was"):
            write(path)
    again = Campaign.load(path)
    again.keep(path)
    del again, write
    gc.collect()  # as good as the end of its process
    campaign.save(path)
    kept = path.read_bytes()
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    with pytest.raises(OutputError, match="it is not a readable campaign"):
        campaign.save(notes)
    assert notes.read_text() == "mine"
    other.ask()  # a file that was refused is not kept either
    assert path.read_bytes() == kept


def test_after_its_time_nothing_is_asked_but_an_answer_still_counts(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    campaign = campaign_of(budget=ExperimentBudget(seconds="10min"))
    ask = campaign.ask()
    assert ask is not None
    now[0] += 600
    assert campaign.left == {"seconds": 0.0}
    assert campaign.ask() is None
    assert campaign.advise().why == "the time is over."
    campaign.tell(ask, 1.0)
    assert campaign.spent == 1.0


def test_the_order_of_columns_changes_nothing():
    data = causal.sample(CHAIN, 30, seed=0)
    turned = data.select(("y", "z", "x"))
    found = []
    for table in (data, turned):
        campaign = campaign_of(policy="improvement")
        campaign.tell_observations(table)
        ask = campaign.ask()
        assert ask is not None
        campaign.tell(ask, {"y": -1.0})
        found.append((ask, campaign.recommend()))
    assert found[0] == found[1]
    assert not np.array_equal(data.values, turned.values)


def test_single_answers_whose_digits_are_lost_are_refused_when_told():
    campaign = campaign_of(rows=2)
    campaign.tell_observations({"y": 1e9 + 3})  # alone it could be all there is
    lost = "'y' is so far from 0 that float32"
    with pytest.raises(ValueError, match=lost):
        campaign.tell_observations({"y": 1e9 + 1})
    ask = campaign.ask()
    assert ask is not None
    with pytest.raises(ValueError, match=lost):
        campaign.tell(ask, 1e9 + 1)
    assert campaign.spent == 0
    assert campaign.samples is not None
    assert len(campaign.samples) == 1
    campaign.tell(ask, 2e9)  # these differ
    assert campaign.spent == ask.cost


def test_a_closed_campaign_lets_others_write_and_loses_nothing(tmp_path):
    path = tmp_path / "c"
    with campaign_of() as campaign:
        campaign.keep(path)
        ask = campaign.ask()
        assert ask is not None
    with pytest.raises(FrugaxError, match="this campaign is closed"):
        campaign.tell(ask, 1.0)
    assert campaign.pending == (campaign.asks[0],)
    with Campaign.load(path) as again:
        again.keep(path)
        again.tell(0, 1.0)
    campaign = Campaign.load(path)
    campaign.keep(path)
    campaign.close()
    campaign.keep(path)  # goes on
    assert campaign.ask() is not None
    assert len(Campaign.load(path).asks) == 2
