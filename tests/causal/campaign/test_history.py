"""Equal rows give equal figures, whatever their history; reading changes nothing."""

import numpy as np
import pytest

from chain_campaigns import CHAIN, campaign_of
from frugax import ExperimentBudget, causal
from frugax.causal.campaign import Campaign, Categorical, Integer
from refusals import warns


def begin(**more):
    return campaign_of(**{"budget": ExperimentBudget(n=4)} | more)


def rows(experiment):
    return causal.sample(
        CHAIN, 1, seed=experiment.id, intervention=experiment.intervention
    )


def figures(campaign):
    question, best = campaign.ask(), campaign.recommend()
    assert question is not None
    return dict(question.intervention.values), question.expected, best


def tell_twice(campaign, experiment):
    campaign.tell(experiment, rows(experiment))
    campaign.tell(experiment.id, rows(experiment), replace=True)


def tell_wrong_first(campaign, experiment):
    campaign.tell(experiment, 42.0)
    campaign.recommend()  # what was found with the mistake must not outlast it
    campaign.tell(experiment.id, rows(experiment), replace=True)


def tell_failed_first(campaign, experiment):
    campaign.tell_failed(experiment, "spilt")
    campaign.tell(experiment.id, rows(experiment), replace=True)


def read_in_between(campaign, experiment):
    for _ in range(2):
        campaign.recommend()
        campaign.advise()
        campaign.forecast_regret()
        str(campaign.receipt)
    campaign.tell(experiment, rows(experiment))


def tell_once(campaign, experiment):
    campaign.tell(experiment, rows(experiment))


def figures_after_two_experiments(tell_first):
    campaign = begin()
    campaign.tell_observations(causal.sample(CHAIN, 30, seed=0))
    for tell in (tell_first, tell_once):
        experiment = campaign.ask()
        assert experiment is not None
        tell(campaign, experiment)
    return figures(campaign)


@pytest.fixture(scope="module")
def told_once():
    return figures_after_two_experiments(tell_once)


@pytest.mark.parametrize(
    "tell", [tell_twice, tell_wrong_first, tell_failed_first, read_in_between]
)
def test_the_same_rows_give_the_same_figures(tell, told_once):
    assert figures_after_two_experiments(tell) == told_once


def test_the_order_of_rows_and_columns_and_a_file_in_between_change_nothing(tmp_path):
    seen = causal.sample(CHAIN, 30, seed=0)
    turned = seen.rows(slice(None, None, -1)).select(["y", "z", "x"])
    first, second = begin(), begin()
    first.tell_observations(seen)
    second.tell_observations(turned.rows(slice(10)))
    second.tell_observations(turned.rows(slice(10, None)))
    one, other = first.ask(), second.ask()
    assert one is not None
    assert one == other
    first.tell(one, rows(one))
    second.recommend()
    second.save(tmp_path / "campaign")
    second = Campaign.load(tmp_path / "campaign")
    second.tell(one.id, rows(one))
    assert figures(first) == figures(second)


def test_reading_writes_nothing_and_a_receipt_computes_nothing(tmp_path, monkeypatch):
    campaign = begin()
    campaign.tell_observations(causal.sample(CHAIN, 30, seed=0))
    experiment = campaign.ask()
    assert experiment is not None
    campaign.keep(tmp_path / "campaign")
    campaign.tell(experiment, rows(experiment))
    before = (tmp_path / "campaign").read_bytes()
    state = campaign._state
    known = campaign.receipt.spends[-1]
    assert known.measured is None  # nothing has judged the answer yet
    with monkeypatch.context() as patched:
        patched.setattr(Campaign, "infer", lambda *_, **__: pytest.fail("inferred"))
        for name in ("receipt", "left", "spent", "pending", "samples", "unmeasured"):
            getattr(campaign, name)
    campaign.recommend()
    campaign.advise()
    assert campaign.receipt.spends[-1].measured is not None or (
        campaign.receipt.spends[-1].problems
    )
    assert campaign._state is state
    assert (tmp_path / "campaign").read_bytes() == before
    campaign.close()


def test_a_batch_has_no_experiment_twice():
    campaign = begin(
        variables={"k": Integer(1, 4), "s": Categorical(("a", "b"))},
        budget=ExperimentBudget(n=12),
    )
    batch = campaign.ask(6)
    assert len({str(one.actions) for one in batch}) == len(batch) == 6
    # None is left that is not pending: one may repeat, but not two of a batch.
    assert len(campaign.ask(2)) == 1
    assert campaign.ask() is not None


@pytest.mark.parametrize(("minimize", "goal"), [(True, "small"), (False, "large")])
def test_each_answer_states_the_direction(minimize, goal):
    campaign = begin(minimize=minimize)
    campaign.tell_observations(causal.sample(CHAIN, 30, seed=0))
    answers = campaign.ask(), campaign.recommend(), campaign.advise()
    for one in answers:
        assert one is not None
        assert one.goal == f"a {goal} y"
        assert f"for a {goal} y" in str(one)


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_missing_values_of_a_mediator_count_as_if_the_rows_were_not_there(share):
    seen = causal.sample(CHAIN, 300, seed=0)
    values = seen.values.copy()
    hole = np.random.default_rng(0).random(300) < share
    values[hole, seen.index("z")] = np.nan
    gaps, left = begin(num_posterior_samples=64), begin(num_posterior_samples=64)
    with warns(UserWarning, int(hole.sum()), "z"):
        gaps.tell_observations(causal.Samples.observed(seen.variables, values))
    left.tell_observations(seen.rows(~hole))
    direct = [
        one.ensemble.edges[one.names.index("x"), one.names.index("y")]
        for one in (gaps.infer(), left.infer())
    ]
    assert direct[0] == pytest.approx(direct[1], abs=0.3)
