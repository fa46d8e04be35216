"""Acquisition policies, which choose the next experiment, and the value of its answer.

Start at `POLICIES`; each takes an `Outlook`. Guide: docs/causal_policy.md.
"""

from ._knowledge_gradient import Value, value_of
from ._outlook import PRUDENCE, SURE, Outlook, permitted
from ._policies import OWN, POLICIES, Policy, expected_improvement

__all__ = [
    "OWN",
    "POLICIES",
    "PRUDENCE",
    "SURE",
    "Outlook",
    "Policy",
    "Value",
    "expected_improvement",
    "permitted",
    "value_of",
]
