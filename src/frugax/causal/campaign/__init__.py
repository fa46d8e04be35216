"""Campaigns of experiments: ask, do, tell, within a budget.

Start at `Campaign`. Guide: docs/causal_campaign.md.
"""

from ._campaign import Campaign
from ._ledger import Entry
from ._results import Advice, Ask, Recommendation
from ._settings import Settings

__all__ = ["Advice", "Ask", "Campaign", "Entry", "Recommendation", "Settings"]
