"""Acquisition functions, which choose the next experiment, and the value of its answer.

Start at `improvement`, which takes an `Outlook`. Guide: docs/causal_policy.md.
"""

from ._knowledge_gradient import Value, value_of
from ._outlook import PRUDENCE, SURE, Outlook, permitted
from ._policies import (
    DEFAULT,
    OWN,
    Policy,
    expected_improvement,
    gain,
    improvement,
    mean_improvement,
)

__all__ = [
    "DEFAULT",
    "OWN",
    "PRUDENCE",
    "SURE",
    "Outlook",
    "Policy",
    "Value",
    "expected_improvement",
    "gain",
    "improvement",
    "mean_improvement",
    "permitted",
    "value_of",
]
