"""Passes over a flat program: what nobody reads goes, what is fixed is put in."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from .graph import Graph, Rules


def prune(graph: Graph, discard: set[str]) -> Graph:
    """Leave out unwanted outputs and every step that only they need.

    Args:
        graph: a program as `flatten` lays it.
        discard: names of outputs.

    Raises:
        ValueError: there is no such output, or none would be left.
    """
    unknown = sorted(discard - set(graph.outputs))
    if unknown:
        raise ValueError(
            f"discard_keys: there is no output {unknown[0]!r}; there are: "
            f"{', '.join(graph.outputs)}."
        )
    outputs = {n: k for n, k in graph.outputs.items() if n not in discard}
    if not outputs:
        raise ValueError(
            f"discard_keys leaves no output; there are: {', '.join(graph.outputs)}."
        )
    needed = set(outputs.values())
    nodes = []
    for node in reversed(graph.nodes):
        # A state that is renewed is an output too, though its key is not known yet.
        renews = any("/new_" in key for key in node.outputs)
        if renews or needed & set(node.outputs):
            nodes.append(node)
            needed |= set(node.inputs.values())
    inputs = {k: v for k, v in graph.inputs.items() if k in needed}
    constants = {k: v for k, v in graph.constants.items() if k in needed}
    return dataclasses.replace(
        graph,
        inputs=inputs,
        constants=constants,
        nodes=tuple(reversed(nodes)),
        outputs=outputs,
    )


def bind(
    flat: Graph, graph: Graph, constants: Mapping[str, Any], rules: Rules
) -> tuple[Graph, Graph]:
    """Fix inputs or weights to values.

    Args:
        flat: the program before `infer`.
        graph: the program after it.
        constants: a value for each key.
        rules: the backend's.

    Raises:
        ValueError: a key is unknown, or a value has a wrong shape.
    """
    for key, value in constants.items():
        if key not in graph.inputs and key not in graph.weights:
            known = sorted({*graph.inputs, *graph.weights})
            raise ValueError(
                f"constant_keys: there is no {key!r}; there are: {', '.join(known)}."
            )
        spec = rules.describe(value)
        if key in graph.weights and spec.shape != graph.weights[key].shape:
            raise ValueError(
                f"constant_keys: {key!r} must have shape {graph.weights[key].shape}, "
                f"got {spec.shape}."
            )
    if not constants:
        return flat, graph

    def fixed(g: Graph) -> Graph:
        return dataclasses.replace(
            g,
            inputs={k: v for k, v in g.inputs.items() if k not in constants},
            weights={k: v for k, v in g.weights.items() if k not in constants},
            constants={**g.constants, **constants},
        )

    return fixed(flat), fixed(graph)
