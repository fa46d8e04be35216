"""Shapes and dtypes of everything in a flat program, node by node.

The backend's own library says what an op makes of shapes (JAX by `eval_shape`, torch
on its meta device); here is the walk, and the error that names the layer.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from frugax.errors import ShapeError
from frugax.models.ops import Op

from ._fits import what_fits
from ._graph import Graph, Node, Repeat, Spec, join
from ._layer import Weight

# From an op, its tensors (specs, or constants as they are; None where left out) and its
# attributes to the specs of its results. Raises what its library raises.
Abstract = Callable[[Op, tuple[Any, ...], tuple[tuple[str, Any], ...]], tuple[Spec, ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class Rules:
    """What a backend knows that shapes depend on.

    Attributes:
        abstract: what an op makes of shapes.
        find: the op of a name.
        float_dtype: dtype of weights and of inputs whose dtype is not said.
        describe: the spec of a constant.
    """

    abstract: Abstract
    find: Callable[[str], Op]
    float_dtype: np.dtype
    describe: Callable[[Any], Spec]


def infer(graph: Graph, inputs: Mapping[str, Spec], rules: Rules) -> Graph:
    """Find the shape of every value and of every weight.

    Args:
        graph: a program as `flatten` lays it.
        inputs: what is known of each input.
        rules: the backend's.

    Returns:
        The same program with its weights and specs, the weights wired to the nodes.

    Raises:
        ShapeError: a layer cannot take what it is given; it is named, with the shapes
            and with what would fit.
        ValueError: an input's shape is not known, or two layers disagree on a weight.
    """
    specs: dict[str, Spec] = {}
    for key in graph.inputs:
        if key in inputs:
            specs[key] = inputs[key]
    weights: dict[str, Weight] = {}
    outputs = dict(graph.outputs)
    nodes: list[Node | Repeat] = []
    # A tied weight may be read before the layer that owns it has been seen.
    for node in graph.nodes:
        if isinstance(node, Repeat):
            nodes.append(_repeat(node, graph, specs, weights, rules))
        else:
            nodes.append(_node(node, graph, specs, weights, outputs, rules))
    return Graph(
        graph.inputs, graph.constants, tuple(nodes), outputs, weights, specs
    )


def _node(
    node: Node,
    graph: Graph,
    specs: dict[str, Spec],
    weights: dict[str, Weight],
    outputs: dict[str, str],
    rules: Rules,
) -> Node:
    layer: Any = node.layer
    try:
        op = rules.find(node.op)
    except KeyError as e:
        raise ValueError(f"{node.title}: {e.args[0]}") from None
    wired = dict(node.inputs)
    for key in wired.values():
        _check_known(key, node, graph, specs, weights)
    if node.op != "random_fold_in":
        shapes = [
            specs[wired[port]].shape
            if port in wired and wired[port] in specs
            else _constant_shape(graph, wired.get(port))
            for port in layer.inputs
            if port in wired or port not in layer.optional
        ]
        try:
            own = layer.weights(*shapes) if layer.weight_names else {}
        except (ValueError, TypeError) as e:
            raise ShapeError(
                f"{node.title} cannot take {_given(node, wired, graph, specs)}: {e}."
            ) from e
        for name, weight in own.items():
            key = wired.setdefault(name, join(node.path, name))
            _add_weight(key, weight, node, weights, specs, rules)
            if weight.kind == "state":
                new = f"new_{name}"
                if new in layer.outputs:
                    outputs[key] = node.outputs[layer.outputs.index(new)]
    tensors = tensors_of(op, wired)
    given = tuple(
        None if key is None else graph.constants.get(key, specs.get(key))
        for key in tensors
    )
    try:
        results = rules.abstract(op, given, node.attrs)
    except Exception as e:  # whatever JAX, torch or the user's op raises
        fits = what_fits(node.op, given, dict(node.attrs))
        reason = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
        raise ShapeError(
            f"{node.title} cannot take {_given(node, wired, graph, specs)}: "
            f"{fits or reason}"
        ) from e
    if len(results) != len(node.outputs):
        raise ShapeError(
            f"{node.title}: the op gives {len(results)} results, the layer names "
            f"{len(node.outputs)}."
        )
    specs.update(zip(node.outputs, results, strict=True))
    return dataclasses.replace(node, inputs=wired)


def tensors_of(op: Op, wired: Mapping[str, str]) -> tuple[str | None, ...]:
    """The key of each tensor an op takes, in the order it takes them."""
    if op.variadic:
        return tuple(wired.values())
    if not set(wired) <= set(op.inputs):  # a user's own op: by place
        return tuple(wired.values())
    return tuple(wired.get(port) for port in op.inputs)


def _check_known(
    key: str,
    node: Node,
    graph: Graph,
    specs: Mapping[str, Spec],
    weights: Mapping[str, Weight],
) -> None:
    if key in specs or key in graph.constants or key in weights:
        return
    if key in graph.inputs:
        raise ValueError(
            f"the shape of {key!r}, which {node.title} reads, is not known: say it, "
            f'as in compile(..., shapes={{"{key}": [32, 128]}}).'
        )
    raise ValueError(
        f"{node.title} shares the weight {key!r}, which no layer before it owns."
    )


def _add_weight(
    key: str,
    weight: Weight,
    node: Node,
    weights: dict[str, Weight],
    specs: dict[str, Spec],
    rules: Rules,
) -> None:
    spec = Spec(weight.shape, rules.float_dtype)
    before = specs.get(key)
    if before is not None and before.shape != spec.shape:
        raise ShapeError(
            f"{node.title} needs {key!r} of shape {spec.shape}, but it is "
            f"{before.shape} elsewhere."
        )
    if before is None:
        weights[key] = weight
        specs[key] = spec


def _constant_shape(graph: Graph, key: str | None) -> tuple[int, ...]:
    return tuple(np.shape(graph.constants[key])) if key in graph.constants else ()


def _given(
    node: Node, wired: Mapping[str, str], graph: Graph, specs: Mapping[str, Spec]
) -> str:
    said: list[str] = []
    for port, key in wired.items():
        if key in specs:
            said.append(f"{port} {specs[key]}")
        elif key in graph.constants:
            said.append(f"{port} {graph.constants[key]!r:.40}")
    attrs = ", ".join(f"{k}={v!r}" for k, v in node.attrs if v is not None)
    return ", ".join(said) + (f" with {attrs}" if attrs else "")


def _repeat(
    node: Repeat,
    graph: Graph,
    specs: dict[str, Spec],
    weights: dict[str, Weight],
    rules: Rules,
) -> Repeat:
    inner: dict[str, Spec] = {}
    for port, key in node.inputs.items():
        if key in specs:
            inner[port] = specs[key]
        elif key in graph.constants:
            inner[port] = rules.describe(graph.constants[key])
        else:
            raise ValueError(
                f"the shape of {key!r}, which {node.title} read, is not known: say "
                f'it, as in compile(..., shapes={{"{key}": [32, 128]}}).'
            )
    try:
        body = infer(node.body, inner, rules)
    except ShapeError as e:
        raise ShapeError(f"in {node.title}: {e.what}") from e
    made = body.specs[body.outputs["output"]]
    if made != inner[node.carry]:
        raise ShapeError(
            f"{node.title} are the same block {len(node.names)} times, which turns "
            f"{inner[node.carry]} into {made}: a block must keep shape and dtype."
        )
    stacked: dict[str, str] = {}
    for name, weight in body.weights.items():
        key = join(node.path, name)
        stacked[name] = key
        weights[key] = dataclasses.replace(
            weight, shape=(len(node.names), *weight.shape)
        )
        specs[key] = Spec(weights[key].shape, rules.float_dtype)
    specs[node.outputs[0]] = made
    return dataclasses.replace(node, body=body, stacked=stacked)
