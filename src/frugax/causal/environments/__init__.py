"""Problems with known optima, to measure regret against the truth.

Start at `environment`. Guide: docs/causal_scm.md.
"""

from ._classic import environment
from ._environment import Environment
from ._of_model import environment_of

__all__ = ["Environment", "environment", "environment_of"]
