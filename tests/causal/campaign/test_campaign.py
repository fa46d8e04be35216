"""Campaigns: what they ask, what they learn, and that no money is lost."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest

from frugax import ExperimentBudget, causal
from frugax.causal.campaign import Campaign, Entry, Failed, _file, drive, simulated
from frugax.causal.campaign._advice import interval
from frugax.causal.campaign._known import _promising
from frugax.causal.campaign._measured import outcomes_of
from frugax.errors import CorruptFileError, FrugaxError, OutputError
from tiers import mostly_thorough

CHAIN = causal.SCM.linear(
    {"x": {}, "z": {"x": 1.0}, "y": {"z": -1.0}}, noise_scale=0.1, target="y"
)


def campaign_of(**more):
    told = {
        "variables": {"x": (-2.0, 2.0), "z": (-3.0, 3.0)},
        "target": "y",
        "budget": ExperimentBudget(cost=6.0, costs={"x": 1.0, "z": 2.5}),
        "worlds": 8,
        **more,
    }
    return Campaign(**told)


def answered(campaign, ask, rows=1):
    data = causal.sample(CHAIN, rows, seed=ask.id, intervention=ask.intervention)
    campaign.tell(ask, data)


def test_it_finds_the_best_of_a_chain_and_says_how_sure_it_is():
    campaign = campaign_of(seed=1)
    campaign.tell_observations(causal.sample(CHAIN, 60, seed=0))
    while (ask := campaign.ask()) is not None:
        assert ask.low <= ask.expected <= ask.high
        assert ask.value.learn >= 0
        assert ask.value.exploit >= 0
        answered(campaign, ask)
    best = campaign.recommend()
    assert best.value == {"z": pytest.approx(3.0, abs=0.3)}
    assert best.low <= -3.0 + 0.2
    assert best.high >= -3.0 - 0.2
    assert best.right > 0.5
    assert campaign.spent <= 6.0
    assert campaign.advise().stop
    assert "pays for no more" in campaign.advise().why


def test_larger_can_be_better():
    campaign = campaign_of(minimize=False, budget=ExperimentBudget(n=3))
    campaign.tell_observations(causal.sample(CHAIN, 60, seed=0))
    while (ask := campaign.ask()) is not None:
        answered(campaign, ask)
    assert campaign.recommend().value == {"z": pytest.approx(-3.0, abs=0.3)}
    assert campaign.recommend().expected > 2.5


def test_resumed_from_its_file_it_goes_on_as_if_nothing_had_happened(tmp_path):
    straight, broken = campaign_of(), campaign_of()
    for campaign in (straight, broken):
        campaign.tell_observations(causal.sample(CHAIN, 30, seed=0))
    for _ in range(3):
        broken.save(tmp_path / "c")
        broken = Campaign.load(tmp_path / "c")
        one, other = straight.ask(), broken.ask()
        assert one == other
        if one is None or other is None:
            break
        answered(straight, one)
        broken.save(tmp_path / "c")
        broken = Campaign.load(tmp_path / "c")
        assert [e.id for e in broken.pending] == [other.id]
        answered(broken, other)
    assert straight.recommend() == broken.recommend()
    assert straight.asks == broken.asks


def test_nothing_known_gives_questions_but_no_recommendation():
    campaign = campaign_of()
    with pytest.raises(FrugaxError, match="nothing is known of y yet"):
        campaign.recommend()
    ask = campaign.ask()
    assert ask is not None
    campaign.tell(ask, math.nan)  # it took place, and nothing was measured
    with pytest.raises(FrugaxError, match="nothing is known of y yet"):
        campaign.recommend()
    assert not campaign.advise().stop
    ask = campaign.ask()
    assert ask is not None
    campaign.tell(ask, 1.5)  # a number is the target
    assert campaign.recommend().low <= campaign.recommend().high


def test_several_may_be_under_way_and_all_are_set_aside():
    campaign = campaign_of(budget=ExperimentBudget(n=4))
    campaign.tell_observations(causal.sample(CHAIN, 30, seed=0))
    asks = [campaign.ask() for _ in range(4)]
    assert campaign.ask() is None
    assert campaign.reserved == sum(a.cost for a in asks if a is not None)
    assert campaign.spent == 0
    first = asks[0]
    assert first is not None
    campaign.tell_failed(first, "power cut", charged=False)
    assert campaign.spent == 0
    assert campaign.ask() is not None  # what never took place may be done again
    with pytest.raises(ValueError, match="experiment 0 is refunded already"):
        campaign.tell(first, 1.0)
    with pytest.raises(TypeError, match="True is no question"):
        campaign.tell(True, 1.0)
    with pytest.raises(ValueError, match="no experiment 9"):
        campaign.tell(9, 1.0)


@pytest.mark.parametrize(
    "policy",
    mostly_thorough(
        ["improvement", "thompson", "gain", "ucb", "random"],
        in_ci=lambda p: p in ("improvement", "random"),
    ),
)
def test_no_budget_is_overdrawn_whatever_fails(policy, tmp_path):
    # Not 0.1 + 0.2: a sum of rounded prices must not pass the limit either.
    for seed in range(3):
        rng = np.random.default_rng([seed, len(policy)])
        costs = {n: float(rng.choice([0.1, 0.2, 0.3, 0.7])) for n in ("x", "z")}
        limit = float(rng.choice([0.3, 0.6, 0.9]))
        campaign = campaign_of(
            budget=ExperimentBudget(cost=limit, costs=costs),
            policy=policy,
            together=2,
            worlds=8,
            rows=2,
            seed=seed,
        )
        path = tmp_path / str(seed)
        if rng.random() < 0.7:
            campaign.tell_observations(causal.sample(CHAIN, 12, seed=seed))
        paid = Fraction()
        while (ask := campaign.ask()) is not None:
            match rng.integers(5):
                case 0:
                    campaign.tell_failed(ask, "broken")
                case 1:
                    campaign.tell(ask, math.nan)
                case 2:
                    campaign.tell(ask, {"y": [1.0, math.nan], "x": math.nan})
                case 3:
                    campaign.save(path)
                    campaign = Campaign.load(path)
                    campaign.tell(ask.id, 2.0)
                case _:
                    answered(campaign, ask)
            paid += sum(Fraction(repr(costs[n])) for n in ask.intervention.values)
        assert paid <= Fraction(repr(limit))
        assert campaign.spent == float(paid)
        if campaign.measured:
            best = campaign.recommend()
            assert best.low <= best.expected <= best.high


def test_forbidden_sets_are_never_asked_for_and_allowed_ones_are():
    scm = causal.SCM.linear(
        {"a": {}, "b": {}, "c": {}, "y": {"a": 1.0, "b": 1.0, "c": 1.0}}
    )
    campaign = Campaign(
        variables={"a": (-1, 1), "b": (-1, 1), "c": (-1, 1)},
        target="y",
        budget=ExperimentBudget(n=4),
        together=3,
        never=[("a", "b")],
        worlds=8,
        rows=5,
    )
    campaign.tell_observations(causal.sample(scm, 60, seed=0))
    while (ask := campaign.ask()) is not None:
        assert not {"a", "b"} <= set(ask.intervention.targets)
        campaign.tell(ask, causal.sample(scm, 5, seed=1, intervention=ask.intervention))
    best = campaign.recommend()
    assert set(best.value) in ({"a", "c"}, {"b", "c"})
    assert best.expected == pytest.approx(-2.0, abs=0.5)


def test_a_constraint_keeps_the_recommendation_out_of_what_is_harmful():
    scm = causal.SCM.linear(
        {"x": {}, "harm": {"x": 1.0}, "y": {"x": -1.0}}, noise_scale=0.2
    )
    told = {
        "variables": {"x": (-3.0, 3.0)},
        "target": "y",
        "budget": ExperimentBudget(n=3),
        "worlds": 16,
    }
    found = {}
    for name, constraints in (("free", {}), ("safe", {"harm": (None, 1.0)})):
        campaign = Campaign(**told, constraints=constraints)
        campaign.tell_observations(causal.sample(scm, 200, seed=0))
        found[name] = campaign.recommend()
    assert found["free"].value["x"] == pytest.approx(3.0, abs=0.2)
    assert 0.5 < found["safe"].value["x"] < 1.1
    assert found["safe"].keeps >= 0.9
    # Nothing that is as safe is better; that a bolder one might be does not count.
    assert found["safe"].right > 0.5
    assert found["safe"].regret < 0.1


def test_what_is_looked_at_more_closely_may_be_done():
    # What no world allows is best in all; what half of them allow is next.
    loss = np.tile([0.0, -1.0, -9.0, -5.0, -2.0, 1.0], (4, 1))
    allowed = np.ones(loss.shape, bool)
    allowed[:, 2] = False
    allowed[:2, 3] = False
    centres = _promising(loss, allowed, np.zeros(6))
    assert centres[:3] == [4, 1, 0]
    assert 2 not in centres
    assert 3 in centres  # there is something to hope for


@pytest.mark.parametrize("minimize", [True, False])
def test_an_interval_is_as_wide_as_its_worlds_are_few_and_its_point_untried(minimize):
    campaign = campaign_of(minimize=minimize)
    campaign.tell_observations(causal.sample(CHAIN, 10, seed=0))
    outlook = campaign.look().outlook
    loss = np.tile(np.arange(8.0)[:, None], (1, len(outlook.points)))
    outlook = dataclasses.replace(outlook, loss=loss if minimize else -loss)
    # Of eight that are equally likely none is beyond the ends.
    assert interval(outlook, 0, campaign.settings) == (3.5, 0.0, 7.0)
    unsure = dataclasses.replace(outlook, doubt=np.full(len(loss[0]), 12 / 1.645))
    assert interval(unsure, 0, campaign.settings) == pytest.approx((3.5, -9.0, 16.0))


def test_forecasts_are_judged_by_what_worlds_said_not_by_their_wider_interval():
    campaign = campaign_of(worlds=16)
    campaign.tell_observations(causal.sample(CHAIN, 30, seed=0))
    answered(campaign, campaign.ask())
    campaign.ask()  # there is doubt now
    forecast = campaign.pending[0].forecast
    assert forecast is not None
    assert forecast.spread is not None
    wide = (forecast.high - forecast.low) / (2 * 1.645)
    assert 0 < forecast.spread < wide

    def spread_of(entry):
        answers = outcomes_of(
            campaign.settings,
            np.array([1.0]),
            np.array([entry.id]),
            [entry],
            ("x", "z", "y"),
            1.0,
        )
        return float(answers[0].forecast_std[0])

    entry = campaign.pending[0]
    assert spread_of(entry) == forecast.spread
    older = dataclasses.replace(forecast, spread=None)  # from a file of version 2
    assert spread_of(dataclasses.replace(entry, forecast=older)) == pytest.approx(wide)


def test_a_constraint_may_be_on_what_is_set_and_needs_no_rows():
    campaign = campaign_of(constraints={"z": (None, 1.0)}, sets=[("x", "z")])
    ask = campaign.ask()  # before anything is known
    assert ask is not None
    campaign.tell_observations(causal.sample(CHAIN, 40, seed=0))
    best = campaign.recommend()
    assert best.keeps >= 0.9
    assert best.value.get("z", 0.0) <= 1.0


def test_known_edges_are_in_every_world():
    campaign = campaign_of(required=[("x", "y")], forbidden=[("z", "y")])
    campaign.tell_observations(causal.sample(CHAIN, 60, seed=0))
    known = campaign.look()
    x, y, z = (known.names.index(n) for n in ("x", "y", "z"))
    assert known.belief.edges[x, y] == 1
    assert known.belief.edges[z, y] == 0


def test_a_damaged_file_is_never_taken_for_a_campaign(tmp_path):
    path = tmp_path / "c"
    campaign = campaign_of()
    campaign.tell_observations(causal.sample(CHAIN, 5, seed=0))
    campaign.ask()
    campaign.save(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for at in rng.integers(0, len(whole), 60):
        path.write_bytes(whole[:at])
        with pytest.raises(CorruptFileError, match="no campaign, or damaged"):
            Campaign.load(path)
        bent = bytearray(whole)
        bent[at] ^= 255
        path.write_bytes(bytes(bent))
        try:
            again = Campaign.load(path)
        except CorruptFileError:
            continue
        # A byte that nobody reads, as the archive's dates.
        assert (again.asks, again.spent) == (campaign.asks, campaign.spent)
    for junk in (b"", b"junk", b"PK"):
        path.write_bytes(junk)
        with pytest.raises(CorruptFileError, match="it is no archive of arrays"):
            Campaign.load(path)
    with pytest.raises(FileNotFoundError, match=r"none: there is no such file\. Give"):
        Campaign.load(tmp_path / "none")
    with pytest.raises(OutputError, match=r"new.c: there is no folder .*new\. Make it"):
        campaign.keep(tmp_path / "new" / "c")
    # By hand: a limit below what is set aside.
    plain = campaign._state
    two = (*plain.entries, dataclasses.replace(plain.entries[0], id=1))
    less = dataclasses.replace(plain.settings, budget=ExperimentBudget(n=1))
    _file.write(path, dataclasses.replace(plain, settings=less, entries=two))
    with pytest.raises(CorruptFileError, match="cost more than its budget"):
        Campaign.load(path)


def test_driven_to_its_end_it_answers_what_was_pending_first():
    truth = causal.environment_from_scm(CHAIN, {"x": (-2.0, 2.0), "z": (-3.0, 3.0)})
    campaign = campaign_of(budget=ExperimentBudget(n=3), rows=2)
    campaign.tell_observations(truth.sample(30, seed=0))
    waiting = campaign.ask()
    assert waiting is not None
    told = []
    simulator = simulated(truth, rows=2, seed=0)
    advice = drive(
        campaign,
        lambda e: Failed("broken") if e.id == 1 else simulator(e),
        told=lambda e: told.append((e.id, e.status)),
    )
    assert told == [(0, "answered"), (1, "failed"), (2, "answered")]
    assert advice.stop
    assert truth.regret(campaign.recommend().intervention) < 0.5


def test_what_experiments_show_against_all_worlds_is_believed_once():
    system = causal.SCM.linear({"x": {}, "w": {}, "y": {"x": -1.0}})
    campaign = campaign_of(
        variables={"x": (-2.0, 2.0)},
        forbidden=[("x", "y")],  # and nothing goes through w: no world explains it
        budget=ExperimentBudget(n=4),
        rows=400,
    )
    campaign.tell_observations(causal.sample(system, 50, seed=0))
    tried = (-2.0, 0.0, 1.0, 2.0)
    entries = tuple(Entry(id=i, values={"x": x}) for i, x in enumerate(tried))
    campaign._change(entries=entries)  # asked for, in an order that is known
    for i, x in enumerate(tried):
        do = causal.intervene(x=x)
        campaign.tell(i, causal.sample(system, 400, seed=i, intervention=do))
    known = campaign.look()
    assert known.deviation.size > 0
    for x in tried:
        g = known.outlook.points.targets.index((known.names.index("x"),))
        off = np.abs(known.outlook.points.values[g][:, 0] - x)
        at = np.flatnonzero(known.outlook.points.group == g)[np.argmin(off)]
        # Four standard errors of the mean of 400 rows, and as much for the worlds.
        believed = known.outlook.mean[at] + known.outlook.shift[at]
        assert believed == pytest.approx(-x, abs=0.4)
