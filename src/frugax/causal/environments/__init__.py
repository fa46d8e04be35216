"""Problems with known optima.

Start at `load_environment`. Guide: docs/causal_scm.md.
"""

from ._classic import load_environment
from ._environment import Environment, environment_from_scm

__all__ = ["Environment", "environment_from_scm", "load_environment"]
