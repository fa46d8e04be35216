"""Weights of looped blocks: stacked under one key, or each block's under its own."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ._graph import LoopNode, ModelGraph, join

Index = tuple[int, ...]


def block_slices(graph: ModelGraph) -> dict[str, list[tuple[Index, str]]]:
    """For each stacked weight where in it each block's own is, and that one's name.

    Loops in loops give an index of several numbers.
    """
    found: dict[str, list[tuple[Index, str]]] = {}
    for node in graph.nodes:
        if not isinstance(node, LoopNode):
            continue
        within = block_slices(node.body)
        for name, key in node.stacked.items():
            found[key] = [
                ((i, *index), join(block, own))
                for i, block in enumerate(node.names)
                for index, own in within.get(name, [((), name)])
            ]
    return found


def unstack_weights(graph: ModelGraph, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by key, those of looped blocks under each block's own name."""
    where = block_slices(graph)
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if key in where:
            flat |= {name: value[index] for index, name in where[key]}
        else:
            flat[key] = value
    return flat


def stack_weights(
    graph: ModelGraph,
    values: Mapping[str, Any],
    stack: Callable[[Sequence[Any]], Any],
) -> dict[str, Any]:
    """The inverse of `unstack_weights`.

    Args:
        graph: the program.
        values: arrays by each block's own names.
        stack: makes one array of many, along a new first axis.

    Raises:
        ValueError: some blocks' arrays are there and others are not.
    """
    rest = dict(values)
    made: dict[str, Any] = {}
    for key, blocks in block_slices(graph).items():
        missing = [name for _, name in blocks if name not in rest]
        if len(missing) == len(blocks):
            continue
        if missing:
            raise ValueError(
                f"{missing[0]!r} is missing; the weight {key!r} is made of "
                f"{len(blocks)} arrays, {blocks[0][1]!r} to {blocks[-1][1]!r}."
            )
        parts = [rest.pop(name) for _, name in blocks]
        lengths = tuple(i + 1 for i in blocks[-1][0])
        assert math.prod(lengths) == len(parts)
        whole = stack(parts)
        made[key] = whole.reshape(*lengths, *whole.shape[1:])
    return rest | made
