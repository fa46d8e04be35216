"""Wrong answers: a wild one gives finite numbers, and a correction undoes it."""

import numpy as np
import pytest

from chain_campaigns import CHAIN, campaign_of
from frugax import ExperimentBudget, causal
from frugax.causal.campaign import Campaign
from frugax.errors import OutputError
from refusals import refuses


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A campaign of three experiments: -1, failed and 1e38."""
    campaign = campaign_of(variables={"x": (-2.0, 2.0)}, budget=ExperimentBudget(n=5))
    campaign.tell_observations(causal.sample(CHAIN, 2, seed=1))
    campaign.ask()
    campaign.tell(0, -1.0)
    campaign.ask()
    campaign.tell_failed(1, "broken")
    campaign.ask()
    campaign.tell(2, 1e38)
    path = tmp_path_factory.mktemp("campaign") / "c"
    campaign.save(path)
    return path


def test_a_corrected_answer_leaves_only_a_note(kept, tmp_path):
    wrong, right = Campaign.load(kept), Campaign.load(kept)
    assert np.isfinite(wrong.recommend().expected)
    assert wrong.advise().value is not None
    wrong.keep(tmp_path / "c")
    wrong.tell(2, -1.2, replace=True)
    right.tell(2, 7.0, replace=True)  # as if 1e38 had never been seen
    right.tell(2, -1.2, replace=True)
    assert wrong.recommend() == right.recommend()
    assert wrong.spent == right.spent == 3
    np.testing.assert_allclose(
        wrong.get_rows(wrong.experiments[2])["y"], [-1.2], rtol=1e-6
    )
    again = Campaign.load(tmp_path / "c")
    assert again.experiments[2].corrections == ("1e+38",)
    assert again.samples is not None
    assert len(again.samples) == 4
    assert again.samples["y"].max() < 10


def test_corrections_return_no_money(kept):
    campaign = Campaign.load(kept)
    named = "replace=True"
    with refuses(ValueError, named):
        campaign.tell(1, 5.0)
    with refuses(ValueError, named):
        campaign.tell_failed(1)
    campaign.tell(1, 5.0, replace=True)
    assert campaign.experiments[1].status == "answered"
    with refuses(ValueError, "charged"):
        campaign.tell_failed(1, charged=False, replace=True)
    campaign.tell_failed(1, "the wrong bottle", replace=True)
    entry = campaign.experiments[1]
    assert (entry.status, entry.reason) == ("failed", "the wrong bottle")
    assert entry.corrections == ("failed: broken", "5")
    assert (campaign.spent, len(campaign.get_rows(entry))) == (3, 0)
    campaign.ask()
    campaign.tell_failed(3, charged=False)
    with refuses(ValueError, 3):
        campaign.tell(3, 1.0, replace=True)


def test_a_misspelt_column_is_removed_with_its_answer(kept):
    campaign = Campaign.load(kept)
    campaign.tell(0, {"y": 1.0, "bloood": 2.0}, replace=True)
    campaign.ask()
    with refuses(ValueError, "blood", "replace=True"):
        campaign.tell(3, {"y": 1.0, "blood": 2.0})
    campaign.tell(0, {"y": 1.0, "blood": 2.0}, replace=True)
    campaign.tell(3, {"y": 1.0, "blood": 3.0})
    assert campaign.samples is not None
    assert "bloood" not in campaign.samples.variables
    assert campaign.samples["blood"][-2:].tolist() == [2.0, 3.0]


def test_a_state_without_a_correction_cannot_replace_it(kept, tmp_path):
    path = tmp_path / "c"
    campaign = Campaign.load(kept)
    campaign.save(path)
    earlier = Campaign.load(path)
    campaign.tell(2, 4.2, replace=True)
    campaign.save(path)  # continues the existing file
    other = Campaign.load(path)
    campaign.tell(2, 4.1, replace=True)
    campaign.save(path)
    other.tell(2, 4.3, replace=True)
    for behind in (earlier, other):
        with refuses(OutputError):
            behind.save(path)
    assert Campaign.load(path).experiments[2].corrections == ("1e+38", "4.2")
