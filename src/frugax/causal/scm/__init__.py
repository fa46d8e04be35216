"""Structural causal models (SCMs), interventions on them, and samples from both.

Start at `SCM` and `sample`. Guide: docs/causal_scm.md.

References:
    Pearl 2009, "Causality" (2nd ed.): SCMs and interventions, the do-operator.
"""

from ._generate import (
    FAMILIES,
    GeneratedBatch,
    generate_batch,
    generate_scm,
    generate_scm_for_difficulty,
)
from ._intervention import (
    Intervention,
    VariableIntervention,
    intervene,
    intervene_imperfectly,
    scale,
    shift,
)
from ._interventional_mean import interventional_mean
from ._mechanisms import Mechanisms
from ._noise import NOISES, noise_from_uniform, sample_noise
from ._random_graphs import GRAPHS, random_graphs
from ._sample import collect_observational_data, evaluate, sample, standardize
from ._scm import SCM

__all__ = [
    "FAMILIES",
    "GRAPHS",
    "NOISES",
    "SCM",
    "GeneratedBatch",
    "Intervention",
    "Mechanisms",
    "VariableIntervention",
    "collect_observational_data",
    "evaluate",
    "generate_batch",
    "generate_scm",
    "generate_scm_for_difficulty",
    "intervene",
    "intervene_imperfectly",
    "interventional_mean",
    "noise_from_uniform",
    "random_graphs",
    "sample",
    "sample_noise",
    "scale",
    "shift",
    "standardize",
]
