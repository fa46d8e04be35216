"""The network of the surrogate: axial attention over pairs, in NumPy and in JAX."""

from ._flat_weights import Weights, opened, packed, unpacked
from ._layers import HEADS, attend, normal
from ._network import Answer, apply_network, initial_weights, set_scores

__all__ = [
    "HEADS",
    "Answer",
    "Weights",
    "apply_network",
    "attend",
    "initial_weights",
    "normal",
    "opened",
    "packed",
    "set_scores",
    "unpacked",
]
