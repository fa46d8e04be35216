"""Shapes and dtypes of everything in a flat program, node by node.

The backend's own library says what an op makes of shapes (JAX by `eval_shape`, torch
on its meta device); here is the walk, and the error that names the layer.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from frugax.errors import ShapeError
from frugax.models.ops import OPS, Op

from ._fits import suggest_fix
from ._graph import GraphNode, LoopNode, ModelGraph, OpNode, Spec, join
from ._primitive import Primitive
from ._weights import Weight

_MOST_NUMBERS = 2**40  # a weight of 4 TiB: to draw it would end the process

Attributes = tuple[tuple[str, Any], ...]
# From an op, its tensors (specs, or constants as they are; None where left out) and its
# attributes to the specs of its results. Raises what its library raises.
Abstract = Callable[[Op, tuple[Any, ...], Attributes], tuple[Spec, ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class BackendRules:
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


class LoopShapeError(ShapeError):
    """Blocks cannot be one loop, because one of them changes shape or dtype.

    Attributes:
        places: the blocks, first to last.
    """

    def __init__(self, what: str, places: tuple[str, ...]) -> None:
        super().__init__(what)
        self.places = places


def infer(
    graph: ModelGraph, inputs: Mapping[str, Spec], rules: BackendRules
) -> ModelGraph:
    """Find the shape of every value and of every weight.

    Args:
        graph: a program as `flatten` lays it, or as this function gave it.
        inputs: what is known of each input.
        rules: the backend's.

    Returns:
        The same program with its weights and specs, the weights wired to the nodes.

    Raises:
        ShapeError: a layer cannot take what it is given; it is named, with the shapes
            and with what would fit.
        ValueError: an input's shape is not known, or two layers disagree on a weight.
    """
    walk = _Walk(graph, inputs, rules)
    nodes = tuple(
        walk.repeat(node) if isinstance(node, LoopNode) else walk.node(node)
        for node in graph.nodes
    )
    return dataclasses.replace(
        graph,
        nodes=nodes,
        outputs=walk.outputs,
        weights=walk.weights,
        specs=walk.specs,
    )


# What JAX and torch raise where shapes or dtypes do not go together.
_MAY_BE_SHAPES = (TypeError, ValueError, RuntimeError)


def op_arguments(op: Op, wired: Mapping[str, str]) -> tuple[str | None, ...]:
    """The key of each tensor an op takes, in the order it takes them."""
    known = OPS.get(op.name)
    if op.variadic or known is None:  # any number, or a user's own: by place
        return tuple(wired.values())
    # An op of the table keeps its ports though a user's own may stand in for it; a
    # layer may call them otherwise, which then is their order.
    if set(wired) <= set(known.inputs):
        return tuple(wired.get(port) for port in known.inputs)
    return tuple(wired.values())


class _Walk:
    """What is known so far, on the way through a program."""

    def __init__(
        self, graph: ModelGraph, inputs: Mapping[str, Spec], rules: BackendRules
    ) -> None:
        self.graph, self.rules = graph, rules
        self.specs = {key: inputs[key] for key in graph.inputs if key in inputs}
        self.weights: dict[str, Weight] = {}
        self.outputs = dict(graph.outputs)

    def node(self, node: OpNode) -> OpNode:
        """One op: the weights it owns, then the shapes of what it gives.

        Raises:
            ShapeError: it cannot take what it is given.
            ValueError: there is no such op.
        """
        try:
            op = self.rules.find(node.op)
        except KeyError as e:
            raise ValueError(f"{node.title}: {e.args[0]}") from None
        wired = self.with_weights(node)
        for key in wired.values():
            self.check_known(key, node)
        tensors = op_arguments(op, wired)
        given = tuple(None if key is None else self.value(key) for key in tensors)
        try:
            results = self.rules.abstract(op, given, node.attrs)
        except Exception as e:  # whatever JAX, torch or the user's op raises
            if node.op not in OPS and not isinstance(e, _MAY_BE_SHAPES):
                e.add_note(f"in {node.title}, given {self.said(node, wired)}")
                raise  # a bug in an op of one's own: no matter of shapes
            reason = suggest_fix(node.op, given, dict(node.attrs)) or _first_line(e)
            raise ShapeError(
                f"{node.title} cannot take {self.said(node, wired)}: {reason}"
            ) from e
        if len(results) < len(node.outputs):
            raise ShapeError(
                f"{node.title}: the op gives {len(results)} results, the layer names "
                f"{len(node.outputs)}."
            )
        self.specs.update(zip(node.outputs, results, strict=False))
        return dataclasses.replace(node, inputs=wired)

    def with_weights(self, node: OpNode) -> dict[str, str]:
        """Its inputs, with the weights that the layer owns or is lent.

        Raises:
            ShapeError: the layer has no weights for such inputs.
        """
        layer, wired = node.layer, dict(node.inputs)
        if not isinstance(layer, Primitive) or node.op != layer.op_name:
            return wired  # a random key is made for the layer
        if not layer.weight_names:
            return wired
        lent = {p: wired.pop(p) for p in list(wired) if p in layer.weight_names}
        ports = [p for p in layer.inputs if p in wired or p not in layer.optional]
        for key in wired.values():
            self.check_known(key, node)
        shapes = [self.shape(wired.get(port)) for port in ports]
        try:
            own = layer.weights(*shapes)
        except (ValueError, TypeError) as e:
            raise ShapeError(
                f"{node.title} cannot take {self.said(node, wired)}: {e}."
            ) from e
        for name, weight in own.items():
            key = wired[name] = lent.pop(name, join(node.path, name))
            self.add_weight(key, weight, node, is_own=key == join(node.path, name))
            new = f"new_{name}"
            if weight.kind == "state" and new in layer.outputs:
                self.outputs[key] = node.outputs[layer.outputs.index(new)]
        return wired | lent

    def add_weight(
        self, key: str, weight: Weight, node: GraphNode, *, is_own: bool
    ) -> None:
        """Note a weight; the layer that owns it says how it starts.

        Raises:
            ShapeError: another layer needs it in another shape, or no memory holds it.
        """
        if math.prod(weight.shape) > _MOST_NUMBERS:
            raise ShapeError(
                f"{node.title}: its weight {key!r} of shape {weight.shape} would hold "
                f"{math.prod(weight.shape):.1e} numbers, more than any memory does; is "
                "one of its lengths mistyped?"
            )
        before = self.specs.get(key)
        if key in self.graph.constants:
            before = self.rules.describe(self.graph.constants[key])
        if before is not None and before.shape != weight.shape:
            raise ShapeError(
                f"{node.title} needs {key!r} of shape {weight.shape}, but it is "
                f"{before.shape} elsewhere."
            )
        if before is None:
            self.specs[key] = Spec(weight.shape, self.rules.float_dtype)
            self.weights[key] = weight
        if is_own and key in self.weights:
            self.weights[key] = weight

    def repeat(self, node: LoopNode) -> LoopNode:
        """Blocks in a loop: the shapes in one of them, and all their weights stacked.

        Raises:
            LoopShapeError: a block changes shape or dtype.
            ShapeError: a layer in it cannot take what it is given.
        """
        inner: dict[str, Spec] = {}
        for port, key in node.inputs.items():
            self.check_known(key, node)
            known = self.value(key)
            is_spec = isinstance(known, Spec)
            inner[port] = known if is_spec else self.rules.describe(known)
        try:
            body = infer(node.body, inner, self.rules)
        except LoopShapeError as e:
            places = tuple(join(node.names[0], place) for place in e.places)
            raise LoopShapeError(e.what, places) from e
        except ShapeError as e:
            raise ShapeError(f"in {node.title}: {e.what}") from e
        made = body.specs[body.outputs["output"]]
        if made != inner[node.carry]:
            raise LoopShapeError(
                f"{node.title} are the same block {len(node.names)} times, which turns "
                f"{inner[node.carry]} into {made}: a loop must keep shape and dtype.",
                node.names,
            )
        stacked: dict[str, str] = {}
        for name, weight in body.weights.items():
            shape = (len(node.names), *weight.shape)
            key = stacked[name] = join(node.path, name)
            of_all = dataclasses.replace(weight, shape=shape)
            self.add_weight(key, of_all, node, is_own=True)
        self.specs[node.outputs[0]] = made
        return dataclasses.replace(node, body=body, stacked=stacked)

    # --- what is known ----------------------------------------------------------

    def value(self, key: str) -> Any:
        """The constant of that key, or the spec of the value."""
        constants = self.graph.constants
        return constants[key] if key in constants else self.specs[key]

    def shape(self, key: str | None) -> tuple[Any, ...]:
        if key is None:
            return ()
        value = self.value(key)
        return tuple(getattr(value, "shape", ()))

    def check_known(self, key: str, node: GraphNode) -> None:
        """See that something is known of a value.

        Raises:
            ValueError: it is an input without a shape, or a weight without an owner.
        """
        if key in self.specs or key in self.graph.constants:
            return
        if key in self.graph.inputs:
            raise ValueError(
                f"the shape of {key!r}, which {node.title} reads, is not known: say "
                f'it, as in compile(..., shapes={{"{key}": [32, 128]}}).'
            )
        raise ValueError(
            f"{node.title} shares the weight {key!r}, which no layer before it has."
        )

    def said(self, node: OpNode, wired: Mapping[str, str]) -> str:
        """What a node is given, for an error."""
        given: list[str] = []
        for port, key in wired.items():
            if key in self.graph.constants:
                given.append(f"{port} {_short(self.graph.constants[key])}")
            elif key in self.specs:
                given.append(f"{port} {self.specs[key]}")
        attrs = ", ".join(f"{k}={v!r}" for k, v in node.attrs if v is not None)
        return ", ".join(given) + (f" with {attrs}" if attrs else "")


def _short(value: Any) -> str:
    if hasattr(value, "shape"):
        return f"a constant of shape {tuple(value.shape)}"
    return f"{value!r:.40}"


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
