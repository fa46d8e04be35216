"""Ways to choose the next experiment, and what its answer is worth.

Start at `POLICIES`; each takes an `Outlook`. Guide: docs/causal_campaign.md.
"""

from ._outlook import PRUDENCE, SURE, Outlook, permitted
from ._policies import OWN, POLICIES, Policy
from ._value import Value, value_of

__all__ = [
    "OWN",
    "POLICIES",
    "PRUDENCE",
    "SURE",
    "Outlook",
    "Policy",
    "Value",
    "permitted",
    "value_of",
]
