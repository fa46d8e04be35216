"""Worlds that agree with the data: graphs, functions, and what interventions do.

Start at `believe`, which draws worlds, and `answers`, which asks them. Exact sums over
graphs: `ExactLinearPosterior`. Guide: docs/causal_campaign.md.
"""

from ._basis import Basis
from ._belief import Belief, believe
from ._best_graph import LinearModel, best_linear_model
from ._effects import (
    Deviation,
    Outcomes,
    Points,
    answers,
    corrected,
    deviation,
    doubt,
)
from ._evidence import coarsened
from ._exact import ExactLinearPosterior
from ._orders import MOST_VARIABLES
from ._settled import settled
from ._shape import Shape
from ._shapes import Shapes
from ._surprise import surprise
from ._weighing import misfits, weighed
from ._world import World

__all__ = [
    "MOST_VARIABLES",
    "Basis",
    "Belief",
    "Deviation",
    "ExactLinearPosterior",
    "LinearModel",
    "Outcomes",
    "Points",
    "Shape",
    "Shapes",
    "World",
    "answers",
    "believe",
    "best_linear_model",
    "coarsened",
    "corrected",
    "deviation",
    "doubt",
    "misfits",
    "settled",
    "surprise",
    "weighed",
]
