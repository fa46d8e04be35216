"""The network of the surrogate: axial attention over pairs, in NumPy and in JAX."""

from ._flat_weights import Weights, pack_weights, unpack_lazily, unpack_weights
from ._layers import HEADS
from ._network import Prediction, apply_network, initial_weights

__all__ = [
    "HEADS",
    "Prediction",
    "Weights",
    "apply_network",
    "initial_weights",
    "pack_weights",
    "unpack_lazily",
    "unpack_weights",
]
