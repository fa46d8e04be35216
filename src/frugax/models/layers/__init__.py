"""Layers: one op with its weights, or made of layers.

Start at `Linear` and `MLP`.
"""

from ._linear import MLP, Linear

__all__ = ["MLP", "Linear"]
