"""Structural causal models: who causes whom, how, and what interventions do.

Start at `SCM` and `sample`. Guide: docs/causal_scm.md.
"""

from ._batch import GeneratedBatch, generate_batch
from ._expectation import expectation
from ._generate import generate, generate_scm_for_difficulty
from ._intervention import (
    Change,
    Intervention,
    imperfect,
    intervene,
    scale,
    shift,
)
from ._mechanisms import Mechanisms
from ._sample import collect_observational_data, sample, standardised
from ._scm import SCM
from ._simulate import simulate, stack

__all__ = [
    "SCM",
    "Change",
    "GeneratedBatch",
    "Intervention",
    "Mechanisms",
    "collect_observational_data",
    "expectation",
    "generate",
    "generate_batch",
    "generate_scm_for_difficulty",
    "imperfect",
    "intervene",
    "sample",
    "scale",
    "shift",
    "simulate",
    "stack",
    "standardised",
]
