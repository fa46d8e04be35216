"""Worlds that agree with the data: graphs, functions, and what interventions do.

Start at `believe`, which draws worlds, and `answers`, which asks them. Exact sums over
graphs: `ExactLinearPosterior`. Guide: docs/causal_campaign.md.
"""

from ._basis import Basis
from ._belief import Belief, believe
from ._effects import (
    Deviation,
    Outcomes,
    Points,
    answers,
    corrected,
    deviation,
)
from ._world import World

__all__ = [
    "Basis",
    "Belief",
    "Deviation",
    "Outcomes",
    "Points",
    "World",
    "answers",
    "believe",
    "corrected",
    "deviation",
]
