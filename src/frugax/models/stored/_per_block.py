"""Weights by the name of each block, where a loop holds those of equal blocks stacked.

Files and other libraries name every block; a `Repeat` reads one array for all of them.
"""

import dataclasses

from frugax.models.graph import Graph, Repeat, Step, Weight, join


@dataclasses.dataclass(frozen=True, slots=True)
class Owned:
    """A weight and who owns it.

    Attributes:
        weight: its shape and start, for one block.
        owner: what an error calls the layer.
    """

    weight: Weight
    owner: str


def per_block(graph: Graph, place: str = "") -> dict[str, Owned]:
    """Every weight of a program, those of blocks in loops one by one.

    Args:
        graph: a program that went through `infer`.
        place: where it stands in a larger one.
    """
    found: dict[str, Owned] = {}
    stacked: set[str] = set()
    for node in graph.nodes:
        if not isinstance(node, Repeat):
            continue
        stacked |= set(node.stacked.values())
        for name in node.names:
            inside = per_block(node.body, join(place, name))
            found |= {join(name, key): owned for key, owned in inside.items()}
    for key, weight in graph.weights.items():
        if key not in stacked:
            readers = [n for n in graph.nodes if key in n.inputs.values()]
            found[key] = Owned(weight, _owner(readers, key, place))
    return found


def _owner(readers: list[Step], key: str, place: str) -> str:
    own = [n for n in readers if key == join(n.path, key.rpartition(".")[2])]
    node = next(iter(own or readers), None)
    if node is None or isinstance(node, Repeat):
        return f"weight {join(place, key)!r}"
    kind = type(node.layer).__name__
    return f"layer {join(place, node.path) or kind!r} ({kind})"
