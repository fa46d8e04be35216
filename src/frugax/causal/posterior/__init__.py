"""Posterior samples of structural causal models, and their effects of interventions.

Start at `sample_posterior`, which draws an ensemble of models that agree with the data,
and `predict_means`, which predicts the effects of interventions in each of them. For
variables of a few values: `DiscretePosterior`. Guide: docs/causal_campaign.md.
"""

from ._action_process import ActionProcess, ActionSpace
from ._basis import Domain
from ._ensemble import PosteriorEnsemble, sample_posterior
from ._evidence import NOISE_SCALE, log_evidence, tempering_power
from ._mechanism import fit_mechanism
from ._orders import (
    MAX_VARIABLES,
    adjacency,
    sample_graphs,
    sum_over_orders,
)
from ._parent_scores import ParentScores, score_parent_sets
from ._points import Outcomes, Points, predict_means, rbf_kernel
from .discrete import DiscretePosterior

__all__ = [
    "MAX_VARIABLES",
    "NOISE_SCALE",
    "ActionProcess",
    "ActionSpace",
    "DiscretePosterior",
    "Domain",
    "Outcomes",
    "ParentScores",
    "Points",
    "PosteriorEnsemble",
    "adjacency",
    "fit_mechanism",
    "log_evidence",
    "predict_means",
    "rbf_kernel",
    "sample_graphs",
    "sample_posterior",
    "score_parent_sets",
    "sum_over_orders",
    "tempering_power",
]
