"""Bundle the small outputs of a loop's step into few arrays, which is faster.

Each output of a step is written by an operation of its own: on CPU two norms of 512
numbers made a step of 11 us 15 % slower, and 3 % slower as one array (measured once, on
a busy machine).
"""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Shaped

# Larger values are written alone: bundling would copy them once more.
_MAX_BUNDLED = 64
# Numbers that one kernel joins: its work grows with the square of their number.
_MAX_SELECTED = 32


class Bundle:
    """Concatenates the small leaves of a tree by dtype, and splits them again.

    `pack` stores the layout that `unpack` needs, so both are calls of one object.
    """

    def __init__(self) -> None:
        self._tree: Any = None
        self._shapes: list[tuple[int, ...]] = []
        self._groups: list[list[int]] = []

    def pack(self, tree: Any) -> list[jax.Array]:
        """Pack the leaves into few arrays."""
        leaves, self._tree = jax.tree.flatten(tree)
        self._shapes = [x.shape for x in leaves]
        small: dict[Any, list[int]] = {}
        for i, x in enumerate(leaves):
            # By dtype, since concatenating different ones would convert the values.
            key = x.dtype if is_small(x, max_size=_MAX_BUNDLED) else i
            small.setdefault(key, []).append(i)
        self._groups = list(small.values())
        return [
            leaves[group[0]]
            if len(group) == 1
            else join([leaves[i].ravel() for i in group])
            for group in self._groups
        ]

    def unpack(self, arrays: list[jax.Array]) -> Any:
        """Unpack the tree from arrays that `scan` stacked along a new first axis."""
        leaves: list[Any] = [None] * len(self._shapes)
        for group, array in zip(self._groups, arrays, strict=True):
            if len(group) == 1:
                leaves[group[0]] = array
                continue
            start = 0
            for i in group:
                size = int(np.prod(self._shapes[i]))
                part = array[:, start : start + size]
                leaves[i] = part.reshape(array.shape[0], *self._shapes[i])
                start += size
        return jax.tree.unflatten(self._tree, leaves)


def is_small(value: jax.Array, *, max_size: int) -> bool:
    """Whether an array has few elements and is not sharded over devices."""
    # Under a mesh with explicit axes the type of a value names its sharding.
    spec = getattr(getattr(jax.typeof(value), "sharding", None), "spec", ())
    return value.size <= max_size and all(part is None for part in spec)


def join(vectors: Sequence[Shaped[jax.Array, " _"]]) -> Shaped[jax.Array, " n"]:
    """Concatenate vectors of one dtype, many of which may hold a single number.

    XLA's CPU compiler fuses no concatenation of more than a few operands, so each
    number becomes a kernel of its own, and a program of many small kernels is
    scheduled differently as a whole: ten numbers cost 140 us of a step of 200 us. A
    chain of selections is one kernel, and costs 5 us.
    """
    parts: list[jax.Array] = []
    for is_number, group in itertools.groupby(vectors, lambda v: v.size == 1):
        run = list(group)
        if not is_number:
            parts += run
            continue
        for start in range(0, len(run), _MAX_SELECTED):
            parts.append(_select(run[start : start + _MAX_SELECTED]))
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts)


def _select(numbers: Sequence[jax.Array]) -> jax.Array:
    index = lax.iota(jnp.uint32, len(numbers))
    joined = jnp.broadcast_to(numbers[0], (len(numbers),))
    for i, number in enumerate(numbers[1:], 1):
        joined = jnp.where(index == i, number, joined)
    return joined
