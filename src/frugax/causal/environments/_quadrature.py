"""Nodes and weights to average over noise without chance.

Reads: how many nodes. Gives: nodes, and weights that add up to 1.
"""

import numpy as np
from jaxtyping import Float


def normal_nodes(
    n: int = 401, reach: float = 8.5
) -> tuple[Float[np.ndarray, " {n}"], Float[np.ndarray, " {n}"]]:
    """For a standard normal variable: equal steps, weighted by the density.

    For smooth functions the error falls faster than any power of the step. A fine step
    also follows those that oscillate fast, where Gauss-Hermite nodes are far apart.

    Args:
        n: nodes.
        reach: how far out they go; beyond is less than 1e-16 of the weight.
    """
    nodes = np.linspace(-reach, reach, n)
    weights = np.exp(-(nodes**2) / 2)
    return nodes, weights / weights.sum()


def uniform_nodes(
    low: float, high: float, n: int = 96
) -> tuple[Float[np.ndarray, " {n}"], Float[np.ndarray, " {n}"]]:
    """For a uniform variable: Gauss-Legendre.

    Args:
        low: where it begins.
        high: where it ends.
        n: nodes.
    """
    nodes, weights = np.polynomial.legendre.leggauss(n)
    return low + (high - low) * (nodes + 1) / 2, weights / 2
