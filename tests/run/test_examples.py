"""The examples are sound, and the one that shows your own model runs."""

from pathlib import Path

import pytest

from frugax.budget import Verdict
from frugax.causal.campaign import load_campaign_config
from frugax.run import RunFolder, load_config, run

EXAMPLES = Path(__file__).parents[2] / "examples"
CONFIGS = sorted(EXAMPLES.glob("*.yaml"))
CAMPAIGNS = [p for p in CONFIGS if "\ncampaign:" in p.read_text("utf-8")]
RUNS = [p for p in CONFIGS if p not in CAMPAIGNS]


@pytest.mark.parametrize("path", RUNS, ids=lambda p: p.name)
def test_an_example_is_sound_and_named_after_its_file(path):
    assert load_config(path).name == path.stem


@pytest.mark.parametrize("path", CAMPAIGNS, ids=lambda p: p.name)
def test_an_example_of_a_campaign_is_sound(path):
    assert load_campaign_config(path).campaign.variables


def test_the_example_of_a_users_model_keeps_its_budgets(tmp_path):
    path = EXAMPLES / "own_model.yaml"
    outcome = run(
        load_config(path), RunFolder(tmp_path / "own"), config_folder=path.parent
    )
    # The budgets in seconds depend on what else this machine does.
    for spend in outcome.receipt.spends:
        assert spend.verdict is Verdict.KEPT or "time" in spend.name, str(spend)
    assert outcome.model.after["accuracy"] >= 0.9
