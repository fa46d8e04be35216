"""Problems with known optima and networks with known graphs.

Start at `environment` and `load_network`. Guide: docs/causal_scm.md.
"""

from ._classic import environment
from ._environment import Environment
from ._networks import load_network
from ._of_model import environment_of

__all__ = ["Environment", "environment", "environment_of", "load_network"]
