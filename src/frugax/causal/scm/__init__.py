"""Structural causal models: who causes whom, how, and what interventions do.

Start at `SCM` and `sample`. Guide: docs/causal_scm.md.
"""

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

__all__ = [
    "SCM",
    "Change",
    "Intervention",
    "Mechanisms",
    "collect_observational_data",
    "imperfect",
    "intervene",
    "sample",
    "scale",
    "shift",
    "standardised",
]
