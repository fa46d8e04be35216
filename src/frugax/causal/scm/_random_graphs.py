"""Random and textbook directed acyclic graphs (DAGs), many at once, in causal order.

Edges go from earlier to later positions only, so no graph has a cycle. `generate_batch`
shuffles the positions afterwards.
"""

import numpy as np
from jaxtyping import Bool, Float, Int

from frugax.options import check_choice

GRAPHS = (
    "erdos_renyi",
    "scale_free",
    "scale_free_effects",
    "small_world",
    "tree",
    "chain",
    "fork",
    "collider",
    "diamond",
    "butterfly",
    "full",
    "empty",
)
"""The kinds that `generate_scm` and `generate_batch` accept."""


def random_graphs(
    kind: str,
    sizes: Int[np.ndarray, " batch"],
    d: int,
    edges_per_node: Float[np.ndarray, " batch"],
    rng: np.random.Generator,
) -> Bool[np.ndarray, "batch {d} {d}"]:
    """Draw edges `[graph, parent, child]`, parents before children."""
    # Barabási & Albert 1999, Science 286:509-512 (scale-free); Newman & Watts 1999,
    # Phys. Lett. A 263:341-346 (small-world).
    check_choice("graph", kind, GRAPHS)
    at, size = np.arange(d), sizes[:, None, None]
    i, j = at[:, None], at[None]
    last = size - 1
    match kind:
        case "erdos_renyi":
            # Of size * (size - 1) / 2 possible edges, size * edges_per_node are wanted.
            share = 2 * edges_per_node[:, None, None] / np.maximum(last, 1)
            edges = rng.random((len(sizes), d, d), np.float32) < share
        case "scale_free" | "scale_free_effects":
            edges = _preferential_attachment(sizes, d, edges_per_node, rng)
            if kind == "scale_free_effects":
                edges = _reverse(edges, sizes)
        case "small_world":
            edges = _small_world(sizes, d, edges_per_node, rng)
        case "tree":
            # A random recursive tree: the parent is uniform among the earlier
            # variables.
            edges = (rng.random((len(sizes), 1, d)) * j).astype(int) == i
        case "chain":
            edges = j == i + 1
        case "fork":
            edges = (i == 0) & (j > 0)
        case "collider":
            edges = (j == last) & (i < last)
        case "diamond":
            middle = (i > 0) & (i < last) & (j == last)
            edges = ((i == 0) & (j < last)) | middle
        case "butterfly":
            edges = (i < size // 2) & (j >= size // 2)
        case "full":
            edges = np.ones((1, d, d), bool)
        case _:  # "empty"
            edges = np.zeros((1, d, d), bool)
    # This mask makes every kind acyclic, and keeps padding without edges.
    return np.broadcast_to(edges & (i < j) & (j < size), (len(sizes), d, d))


def _preferential_attachment(
    sizes: np.ndarray, d: int, edges_per_node: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Give each variable parents among the earlier ones, in proportion to degree."""
    edges = np.zeros((len(sizes), d, d), bool)
    # Every variable starts with one: without edges it could never be drawn.
    degree = np.ones((len(sizes), d), np.float32)
    # Stochastic rounding: 1.5 parents each are 1 or 2.
    whole = edges_per_node[:, None] + rng.random((len(sizes), d))
    wanted = np.maximum(whole.astype(int), 1)
    for j in range(1, d):
        # Gumbel top-k: sampling without replacement in proportion to the degree.
        gumbel = -np.log(rng.standard_exponential((len(sizes), j), np.float32))
        rank = np.argsort(np.argsort(-(np.log(degree[:, :j]) + gumbel), 1), 1)
        edges[:, :j, j] = rank < wanted[:, j, None]
        degree[:, :j] += edges[:, :j, j]
        degree[:, j] += edges[:, :j, j].sum(1)
    return edges


def _reverse(edges: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Reverse all edges and positions, so that causes still come first."""
    # Position k becomes size - 1 - k. Padding would become negative; it is clipped, and
    # masked by the caller.
    back = np.maximum(sizes[:, None] - 1 - np.arange(edges.shape[1]), 0)
    models = np.arange(len(sizes))[:, None, None]
    flipped = edges[models, back[:, :, None], back[:, None, :]]
    return flipped.swapaxes(1, 2)


def _small_world(
    sizes: np.ndarray, d: int, edges_per_node: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Connect neighbours on a ring; move one edge in five to a random pair."""
    at, size = np.arange(d), sizes[:, None, None]
    gap = np.abs(at[:, None] - at[None])
    near = np.minimum(gap, size - gap) <= np.maximum(edges_per_node, 1)[:, None, None]
    near &= (at[:, None] < size) & (at[None] < size)
    shape = (len(sizes), d, d)
    # Moved edges are spread over all pairs, so the expected number of edges stays.
    share = 0.2 * near.sum((1, 2), keepdims=True) / (size * np.maximum(size - 1, 1))
    draws = rng.random(shape, np.float32)
    undirected = (near & (draws >= 0.2)) | (rng.random(shape, np.float32) < share)
    # The causal order is independent of the positions on the ring.
    ranks = shuffle_positions(sizes, d, rng)
    models = np.arange(len(sizes))[:, None, None]
    upper = np.triu(undirected, 1)
    both = upper | upper.swapaxes(1, 2)
    return both[models, ranks[:, :, None], ranks[:, None, :]]


def shuffle_positions(
    sizes: Int[np.ndarray, " batch"], d: int, rng: np.random.Generator
) -> Int[np.ndarray, "batch {d}"]:
    """Draw a random order of each graph's variables, with the padding last."""
    keys = rng.random((len(sizes), d), np.float32)
    # Above every random key: the sort leaves padding at the end.
    keys[np.arange(d) >= sizes[:, None]] = 2
    return keys.argsort(1).astype(np.int32)
