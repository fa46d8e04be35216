"""Weights by the name of each block, where a loop holds those of equal blocks stacked.

Files and other libraries name every block; a `LoopNode` reads one for all.
"""

import dataclasses

from frugax.models.graph import GraphNode, LoopNode, ModelGraph, Weight, join


@dataclasses.dataclass(frozen=True, slots=True)
class OwnedWeight:
    """A weight and who owns it.

    Attributes:
        weight: its shape and start, for one block.
        owner: what an error calls the layer.
    """

    weight: Weight
    owner: str


def weights_by_block(graph: ModelGraph, place: str = "") -> dict[str, OwnedWeight]:
    """Every weight of a program, those of blocks in loops one by one.

    Args:
        graph: a program that went through `infer`.
        place: where it stands in a larger one.
    """
    found: dict[str, OwnedWeight] = {}
    stacked: set[str] = set()
    for node in graph.nodes:
        if not isinstance(node, LoopNode):
            continue
        stacked |= set(node.stacked.values())
        for name in node.names:
            inside = weights_by_block(node.body, join(place, name))
            found |= {join(name, key): owned for key, owned in inside.items()}
    for key, weight in graph.weights.items():
        if key not in stacked:
            readers = [n for n in graph.nodes if key in n.inputs.values()]
            found[key] = OwnedWeight(weight, _owner(readers, key, place))
    return found


def _owner(readers: list[GraphNode], key: str, place: str) -> str:
    own = [n for n in readers if key == join(n.path, key.rpartition(".")[2])]
    node = next(iter(own or readers), None)
    if node is None or isinstance(node, LoopNode):
        return f"weight {join(place, key)!r}"
    kind = type(node.layer).__name__
    return f"layer {join(place, node.path) or kind!r} ({kind})"
