"""The plan, the receipt and the page of a campaign."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from chromium import BROWSER, chromium
from frugax import ExperimentBudget, InfeasibleBudgetError, causal
from frugax.budget import Verdict
from frugax.causal.campaign import graph_svg, report_page
from refusals import refuses

SUBJECT = {"variables": {"x": (-2.0, 2.0), "z": (-3.0, 3.0)}, "target": "y"}
PRICES = {"x": 0.1, "z": 0.25}
# Four experiments of which one failed, a correction and a question without an answer,
# with constraints, forbidden sets and limits.
WORKED = Path(__file__).parent / "data" / "worked.campaign"


def test_a_plan_counts_the_experiments_that_the_budget_pays_for():
    plan = causal.plan(
        {**SUBJECT, "max_targets": 2}, ExperimentBudget(cost=0.8, n=5, costs=PRICES)
    )
    counts = [(one.variables, one.cost, one.max_count) for one in plan.experiments]
    # Of 0.1 eight fit exactly, but only five may be done.
    assert counts == [(("x",), 0.1, 5), (("z",), 0.25, 3), (("x", "z"), 0.35, 2)]
    assert plan.max_experiments == 5
    assert plan.predicted == 0.8  # two of 0.35, and one of 0.1
    assert "x + z" in str(plan)
    assert causal.CampaignPlan.from_json(plan.to_json()) == plan


def test_a_plan_without_a_limit_of_cost_or_number_is_in_seconds():
    plan = causal.plan(SUBJECT, ExperimentBudget(seconds=60))
    assert plan.max_experiments is None
    assert plan.predicted == 60
    by_number = causal.plan(SUBJECT, ExperimentBudget(n=4, costs=PRICES))
    assert by_number.predicted == 1.0
    with pytest.raises(InfeasibleBudgetError) as e:
        causal.plan(SUBJECT, ExperimentBudget(cost=0.05, costs=PRICES))
    assert e.value.needed == 0.1


def test_apply_begins_the_campaign_of_a_plan_and_its_receipt_shows_the_spend(
    tmp_path,
):
    budget = ExperimentBudget(cost=0.4, costs=PRICES, seconds=1e6)
    observed = {"x": np.arange(6.0), "z": np.arange(6.0) ** 2, "y": np.arange(6.0)}
    draft = causal.Campaign(
        **SUBJECT, budget=ExperimentBudget(n=1), num_posterior_samples=8
    )
    draft.tell_observations(observed)
    plan = causal.plan(draft, budget)
    assert [one.spent for one in plan.regret] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    assert all(0 <= one.low <= one.expected <= one.high for one in plan.regret)
    assert "expected distance from the best" in str(plan)
    read = causal.CampaignPlan.from_json(plan.to_json())
    assert read.regret == plan.regret
    campaign = causal.apply(draft, read, seed=7)
    assert (campaign.settings.budget, campaign.settings.seed) == (budget, 7)
    assert campaign.samples is not None
    while (experiment := campaign.ask()) is not None:
        campaign.tell(experiment, 1.0)
    saved = tmp_path / "campaign"
    campaign.save(saved)
    now = campaign.recommend().expected_regret
    number, cost, seconds, regret = campaign.receipt.spends
    assert (number.limit, number.predicted) == (4, 4)
    assert number.measured == len(campaign.experiments)
    assert (cost.limit, cost.predicted) == (0.4, plan.predicted)
    assert cost.measured == campaign.spent
    assert seconds.limit == 1e6
    assert seconds.measured is not None
    assert all(one.verdict == Verdict.KEPT for one in (number, cost, seconds))
    # Six rows leave a forecast that any outcome would keep.
    assert regret.verdict == Verdict.CANNOT_TELL
    assert regret.measured is None
    assert f"today the distance is {now:.3g} ±" in regret.problems
    again = causal.Campaign.load(saved)
    assert again.receipt.spends[3].predicted == regret.predicted
    with refuses(ValueError, "plan"):
        causal.plan(campaign, budget)


def test_a_plan_for_other_experiments_is_refused():
    plan = causal.plan(SUBJECT, ExperimentBudget(n=2))
    with refuses(ValueError, "variables"):
        causal.apply({**SUBJECT, "max_targets": 2}, plan)
    with refuses(TypeError, "CampaignPlan"):
        causal.apply(SUBJECT, 3)  # pyrefly: ignore[bad-argument-type]


def test_a_saved_campaign_continues():
    campaign = causal.Campaign.load(WORKED)
    settings = campaign.settings
    assert settings.max_targets == settings.rows_per_experiment == 2
    assert settings.forbidden_sets == (("x", "w"),)
    assert (settings.min_gain_per_cost, settings.confidence) == (0.01, 0.9)
    assert settings.num_posterior_samples == 8
    records = campaign.experiments
    assert [one.status for one in records] == [
        *("answered", "failed", "answered", "answered", "pending")
    ]
    assert records[1].reason == "power cut"
    assert records[2].corrections == ("-2.19614",)
    assert (campaign.spent, campaign.reserved) == (6.0, 4.0)
    best = campaign.recommend()
    assert best.low <= best.expected <= best.high
    experiment = campaign.ask()
    assert experiment is not None
    assert campaign.pending[-1].forecast is not None


@pytest.fixture(scope="module")
def reported():
    campaign = causal.Campaign.load(WORKED)
    return campaign, report_page("worked", campaign, campaign.advise())


def test_the_report_has_the_receipt_and_the_forecasts(reported):
    campaign, page = reported
    assert re.search(r"Do next: </b>(experiment \d, do\(|ask for another|no exp)", page)
    assert re.search(r"<span>(left of \d+|experiments left)</span>", page)
    for part in ("cost of the experiments", "power cut", "corrected, before: -2.19614"):
        assert part in page
    # The same graph as a separate picture, with its own styles.
    graph = graph_svg(campaign)
    assert ET.fromstring(graph).tag.endswith("svg")
    assert ".node.target" in graph
    assert all(name in graph for name in campaign.settings.variables)


@pytest.mark.browser
@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_the_report_is_as_wide_as_a_phone(reported, tmp_path):
    page = tmp_path / "report.html"
    page.write_text(reported[1])
    with chromium() as browser:
        browser.size(400, 800)
        browser.open(page.as_uri())
        browser.wait_for("document.readyState === 'complete'")
        assert browser.run("document.documentElement.scrollWidth") == 400
        browser.size(1280, 800)
        tops = browser.run(
            "[...document.querySelectorAll('.tile')]"
            ".map(e => e.getBoundingClientRect().top)"
        )
        rows = [tops.count(top) for top in sorted({*tops})]
        assert min(rows) > 1, rows
        assert browser.complaints == []
