"""Causes before effects, or the cycle that forbids it."""

import numpy as np
from jaxtyping import Bool


def topological_order(
    parents: Bool[np.ndarray, "D D"], names: tuple[str, ...]
) -> list[int]:
    """The variables by index, each after its parents; ties as given.

    Args:
        parents: `[parent, child]`.
        names: what the variables are called, for the message.

    Raises:
        ValueError: there is a cycle; the message shows it.
    """
    waiting = parents.sum(0)
    ready = [j for j in range(len(names)) if not waiting[j]]
    order: list[int] = []
    while ready:
        j = ready.pop(0)
        order.append(j)
        for child in np.flatnonzero(parents[j]):
            waiting[child] -= 1
            if not waiting[child]:
                ready.append(int(child))
    if len(order) < len(names):
        # Every variable left has a parent that is left: going up must come round.
        left = sorted(set(range(len(names))) - set(order))
        path = [left[0]]
        while path[-1] not in path[:-1]:
            path.append(next(i for i in left if parents[i, path[-1]]))
        cycle = [names[j] for j in path[path.index(path[-1]) :]][::-1]
        raise ValueError(
            f"the edges run in a cycle: {' -> '.join(cycle)}. Take one of them out."
        )
    return order
