"""Campaigns of experiments: ask, do, tell, within a budget.

Start at `Campaign`. `drive` runs one to its end, `report_page` shows it, `audit`
replays it. Guide: docs/causal_campaign.md.
"""

from ._audit import Audit, audit
from ._campaign import Campaign
from ._config import CampaignConfig, Simulator, load_campaign_config
from ._doubts import doubts
from ._drive import Experiment, Failed, asked_of, drive, simulated
from ._ledger import Entry, Forecast
from ._page import report_page
from ._results import Advice, Ask, Recommendation
from ._settings import Settings

__all__ = [
    "Advice",
    "Ask",
    "Audit",
    "Campaign",
    "CampaignConfig",
    "Entry",
    "Experiment",
    "Failed",
    "Forecast",
    "Recommendation",
    "Settings",
    "Simulator",
    "asked_of",
    "audit",
    "doubts",
    "drive",
    "load_campaign_config",
    "report_page",
    "simulated",
]
