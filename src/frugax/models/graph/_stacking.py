"""Stack the weights of blocks that run as a loop into one array, and unstack them."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ._graph import LoopNode, ModelGraph, join

Index = tuple[int, ...]


def block_slices(graph: ModelGraph) -> dict[str, list[tuple[Index, str]]]:
    """The index of each block in a stacked weight, and the name of its own weight.

    Loops inside loops give an index of several numbers.
    """
    found: dict[str, list[tuple[Index, str]]] = {}
    for node in graph.nodes:
        if not isinstance(node, LoopNode):
            continue
        inner = block_slices(node.body)
        for name, key in node.stacked.items():
            found[key] = [
                ((i, *index), join(block, own))
                for i, block in enumerate(node.names)
                for index, own in inner.get(name, [((), name)])
            ]
    return found


def unstack_weights(graph: ModelGraph, values: Mapping[str, Any]) -> dict[str, Any]:
    """Split stacked weights into one array a block, under the block's own name."""
    slices = block_slices(graph)
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if key in slices:
            flat |= {name: value[index] for index, name in slices[key]}
        else:
            flat[key] = value
    return flat


def stack_weights(
    graph: ModelGraph,
    values: Mapping[str, Any],
    stack: Callable[[Sequence[Any]], Any],
) -> dict[str, Any]:
    """The inverse of `unstack_weights`."""
    rest = dict(values)
    stacked: dict[str, Any] = {}
    for key, blocks in block_slices(graph).items():
        missing = [name for _, name in blocks if name not in rest]
        # All missing is legal: these may be the parameters without the state, or the
        # reverse.
        if len(missing) == len(blocks):
            continue
        if missing:
            raise ValueError(
                f"{missing[0]!r} is missing; the weight {key!r} stacks {len(blocks)} "
                f"arrays, {blocks[0][1]!r} to {blocks[-1][1]!r}."
            )
        parts = [rest.pop(name) for _, name in blocks]
        # Blocks are listed with the last index fastest, so the last entry holds the
        # largest index along every axis.
        lengths = tuple(i + 1 for i in blocks[-1][0])
        assert math.prod(lengths) == len(parts)
        whole = stack(parts)
        stacked[key] = whole.reshape(*lengths, *whole.shape[1:])
    return rest | stacked
