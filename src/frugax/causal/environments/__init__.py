"""Problems with known optima, and Bayesian networks with known graphs.

Start at `load_environment` and `load_network`. Guide: docs/causal_scm.md.
"""

from ._classic import load_environment
from ._environment import Environment, environment_from_scm
from ._networks import load_network

__all__ = ["Environment", "environment_from_scm", "load_environment", "load_network"]
