"""Shape inference: the shape and dtype of every value in a model's flat program.

The backend's own library computes what an op does to shapes (JAX by `eval_shape`, torch
on its meta device). This module walks the program, and raises the errors that name a
layer.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from frugax.errors import ShapeError
from frugax.models.ops import OPS, Op

from ._graph import GraphNode, LoopNode, ModelGraph, OpNode, Spec, join
from ._primitive import Primitive
from ._shape_expressions import PORT, compute_lengths, ports_of
from ._weights import Normal, Weight

# A weight of 4 TiB in float32: drawing it would end the process without an error.
_MAX_WEIGHT_SIZE = 2**40

# The exceptions that JAX and torch raise where shapes or dtypes do not fit.
_SHAPE_EXCEPTIONS = (TypeError, ValueError, RuntimeError)

Attributes = tuple[tuple[str, Any], ...]
# From an op, its tensors (specs, or constants as they are; None where a port is open)
# and its attributes to the specs of its results. Raises what its library raises.
AbstractEval = Callable[[Op, tuple[Any, ...], Attributes], tuple[Spec, ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class BackendRules:
    """Functions and settings of a backend that shapes depend on.

    Attributes:
        abstract: computes the specs of the results of an op.
        find: looks an op up by its name.
        float_dtype: the dtype of weights, and of inputs without a dtype.
        describe: the spec of a constant.
    """

    abstract: AbstractEval
    find: Callable[[str], Op]
    float_dtype: np.dtype
    describe: Callable[[Any], Spec]


class LoopShapeError(ShapeError):
    """Blocks cannot be one loop, because one of them changes shape or dtype.

    Attributes:
        places: the paths of the blocks, first to last.
    """

    def __init__(self, what: str, places: tuple[str, ...]) -> None:
        super().__init__(what)
        self.places = places


def infer(
    graph: ModelGraph, inputs: Mapping[str, Spec], rules: BackendRules
) -> ModelGraph:
    """Infer the shape of every value and of every weight."""
    walk = _InferWalk(graph, inputs, rules)
    nodes: list[GraphNode] = []
    waiting = list(graph.nodes)
    while waiting:
        node = waiting.pop(
            next((i for i, n in enumerate(waiting) if walk.is_ready(n)), 0)
        )
        if isinstance(node, LoopNode):
            nodes.append(walk.infer_loop(node))
        else:
            nodes.append(walk.infer_op(node))
    return dataclasses.replace(
        graph,
        nodes=tuple(nodes),
        outputs=walk.outputs,
        weights=walk.weights,
        specs=walk.specs,
    )


def op_arguments(op: Op, wired: Mapping[str, str]) -> tuple[str | None, ...]:
    """The key of each tensor of an op, in the order of its arguments."""
    wired = {p: k for p, k in wired.items() if not p.startswith(PORT)}
    known = OPS.get(op.name)
    if op.variadic or known is None:  # any number, or a user's own: by position
        return tuple(wired.values())
    # An op of the table keeps its ports even where a user's own replaces it. A layer
    # may name them differently; then their order counts.
    if set(wired) <= set(known.inputs):
        return tuple(wired.get(port) for port in known.inputs)
    return tuple(wired.values())


class _InferWalk:
    """The specs and weights that are known so far on the way through a program."""

    def __init__(
        self, graph: ModelGraph, inputs: Mapping[str, Spec], rules: BackendRules
    ) -> None:
        self.graph, self.rules = graph, rules
        self.specs = {key: inputs[key] for key in graph.inputs if key in inputs}
        for key, about in graph.named_weights.items():
            shape = about.known_shape
            if shape is not None and all(isinstance(n, int) for n in shape):
                self.specs[key] = Spec(shape, rules.float_dtype)
        self.weights: dict[str, Weight] = {
            # As torch starts a Linear layer; a layer that reads it as its own decides.
            key: Weight(self.specs[key].shape, Normal(_fan_in_std(self.specs[key])))
            for key, about in graph.named_weights.items()
            if about.trainable
        }
        self.unowned = set(self.weights)
        self.outputs = dict(graph.outputs)

    def is_ready(self, node: GraphNode) -> bool:
        """Whether a node can be inferred before the others that wait.

        A penalty may read a named weight before the layer that gives it a shape.
        """
        if not self.graph.named_weights:
            return True
        own = node.layer.weight_names if isinstance(node.layer, Primitive) else ()
        known = (self.specs, self.graph.constants, self.graph.inputs)
        return all(
            port in own or any(key in k for k in known)
            for port, key in node.inputs.items()
        )

    def infer_op(self, node: OpNode) -> OpNode:
        """Add the weights of one op and the shapes of its results."""
        try:
            op = self.rules.find(node.op)
        except KeyError as e:
            raise ValueError(f"{node.title}: {e.args[0]}") from None
        node = self._fill_lengths(node)
        # Weights first: their shapes follow from the inputs, and the op reads them.
        wired = self._wire_weights(node)
        for key in wired.values():
            self._check_known(key, node)
        arguments = op_arguments(op, wired)
        tensors = [None if key is None else self._value(key) for key in arguments]
        try:
            results = self.rules.abstract(op, tuple(tensors), node.attrs)
        except Exception as e:  # whatever JAX, torch or the user's op raises
            if node.op not in OPS and not isinstance(e, _SHAPE_EXCEPTIONS):
                # A bug in the user's own op and not a matter of shapes.
                e.add_note(f"in {node.title}, given {self._describe(node, wired)}")
                raise
            reason = suggest_fix(node.op, tensors, dict(node.attrs)) or _first_line(e)
            raise ShapeError(
                f"{node.title} cannot take {self._describe(node, wired)}: {reason}"
            ) from e
        if len(results) < len(node.outputs):
            raise ShapeError(
                f"{node.title}: the op gives {len(results)} results, the layer names "
                f"{len(node.outputs)}."
            )
        # An op may give more results than its layer names: a batch norm at inference.
        self.specs.update(zip(node.outputs, results, strict=False))
        return dataclasses.replace(node, inputs=wired)

    def _fill_lengths(self, node: OpNode) -> OpNode:
        """Compute the attributes that depend on the shapes of arrays."""
        formulas = node.formulas or node.attrs
        ports = ports_of(formulas)
        if not ports:
            return node
        for port in ports:
            self._check_known(node.inputs[port], node)
        shapes = {port: self._shape(node.inputs[port]) for port in ports}
        attrs = compute_lengths(formulas, shapes)
        return dataclasses.replace(node, attrs=attrs, formulas=formulas)

    def _wire_weights(self, node: OpNode) -> dict[str, str]:
        """The inputs of a node, with the weights that its layer owns or shares."""
        layer, wired = node.layer, dict(node.inputs)
        if not isinstance(layer, Primitive) or node.op != layer.op_name:
            return wired  # the node derives a random key for the layer
        if not layer.weight_names:
            return wired
        # Shared weights are taken out first: the layer computes the shapes of its
        # weights from its inputs alone.
        shared = {p: wired.pop(p) for p in list(wired) if p in layer.weight_names}
        ports = [p for p in layer.inputs if p in wired or p not in layer.optional]
        for key in wired.values():
            self._check_known(key, node)
        shapes = [self._shape(wired.get(port)) for port in ports]
        try:
            weights = layer.weights(*shapes)
        except (ValueError, TypeError) as e:
            raise ShapeError(
                f"{node.title} cannot take {self._describe(node, wired)}: {e}."
            ) from e
        for name, weight in weights.items():
            own_key = join(node.path, name)
            key = wired[name] = shared.pop(name, own_key)
            self._add_weight(key, weight, node, is_own=key == own_key)
            # The new state is an output under the key of the old one, so that a
            # training loop can feed outputs back as data.
            updated = f"new_{name}"
            if weight.kind == "state" and updated in layer.outputs:
                self.outputs[key] = node.outputs[layer.outputs.index(updated)]
        return wired | shared

    def _add_weight(
        self, key: str, weight: Weight, node: GraphNode, *, is_own: bool
    ) -> None:
        """Note a weight; the layer that owns it decides how it is initialised."""
        size = math.prod(weight.shape)
        if size > _MAX_WEIGHT_SIZE:
            raise ShapeError(
                f"{node.title}: its weight {key!r} of shape {weight.shape} would hold "
                f"{size:.1e} numbers, more than any memory does; is one of its lengths "
                "mistyped?"
            )
        before = self.specs.get(key)
        if key in self.graph.constants:
            before = self.rules.describe(self.graph.constants[key])
        # Two readers of one weight must agree on its shape, whichever comes first.
        named = self.graph.named_weights.get(key)
        if named is not None and not _matches(weight.shape, named.known_shape):
            raise ShapeError(
                f"{node.title} needs {key!r} of shape {weight.shape}, but it is "
                f"declared as {named.known_shape}."
            )
        if before is not None and before.shape != weight.shape:
            raise ShapeError(
                f"{node.title} needs {key!r} of shape {weight.shape}, but it is "
                f"{before.shape} elsewhere."
            )
        unowned = named is not None and (key in self.unowned or key not in self.weights)
        if before is None or unowned:
            self.unowned.discard(key)
            self.specs[key] = Spec(weight.shape, self.rules.float_dtype)
            self.weights[key] = weight
        # A reader of a shared weight may come before its owner in the program, but the
        # owner's initializer counts: an embedding and an output layer draw differently.
        if is_own and key in self.weights:
            self.weights[key] = weight

    def infer_loop(self, node: LoopNode) -> LoopNode:
        """Infer the shapes in one block, and stack the weights of all blocks."""
        inner: dict[str, Spec] = {}
        for port, key in node.inputs.items():
            self._check_known(key, node)
            value = self._value(key)
            if not isinstance(value, Spec):
                value = self.rules.describe(value)
            inner[port] = value
        try:
            body = infer(node.body, inner, self.rules)
        except LoopShapeError as e:
            # Of equal blocks the first stands for all: its inner loop is excluded.
            places = tuple(join(node.names[0], place) for place in e.places)
            raise LoopShapeError(e.what, places) from e
        except ShapeError as e:
            raise ShapeError(f"in {node.title}: {e.what}") from e
        result = body.specs[body.outputs["output"]]
        # The carry of `lax.scan` must keep its shape and dtype. The caller lays the
        # model out again without this loop.
        if result != inner[node.carry]:
            raise LoopShapeError(
                f"{node.title} are the same block {len(node.names)} times, which turns "
                f"{inner[node.carry]} into {result}: a loop must keep shape and dtype.",
                node.names,
            )
        stacked: dict[str, str] = {}
        for name, weight in body.weights.items():
            # The blocks are the first axis, along which `scan` runs.
            shape = (len(node.names), *weight.shape)
            key = stacked[name] = join(node.path, name)
            of_all = dataclasses.replace(weight, shape=shape)
            self._add_weight(key, of_all, node, is_own=True)
        self.specs[node.outputs[0]] = result
        return dataclasses.replace(node, body=body, stacked=stacked)

    # --- known values -------------------------------------------------------------

    def _value(self, key: str) -> Any:
        """The constant of that key, or the spec of the value."""
        constants = self.graph.constants
        if key in constants:
            return constants[key]
        return self.specs[key]

    def _shape(self, key: str | None) -> tuple[Any, ...]:
        if key is None:
            return ()
        return tuple(getattr(self._value(key), "shape", ()))

    def _check_known(self, key: str, node: GraphNode) -> None:
        """Check that the shape of a value is known."""
        if key in self.specs or key in self.graph.constants:
            return
        if key in self.graph.inputs:
            raise ValueError(
                f"the shape of {key!r}, which {node.title} reads, is not known: state "
                f'it, as in compile(..., shapes={{"{key}": [32, 128]}}).'
            )
        if key in self.graph.named_weights:
            raise ValueError(
                f"{node.title} reads the weight {key!r}, whose shape no layer gives: "
                f'state it, as in compile(..., shapes={{"{key}": [32, 128]}}).'
            )
        raise ValueError(
            f"{node.title} shares the weight {key!r}, which no layer before it has."
        )

    def _describe(self, node: OpNode, wired: Mapping[str, str]) -> str:
        """The inputs and attributes of a node, for an error."""
        parts: list[str] = []
        for port, key in wired.items():
            if key in self.graph.constants:
                parts.append(f"{port} {_format_constant(self.graph.constants[key])}")
            elif key in self.specs:
                parts.append(f"{port} {self.specs[key]}")
        text = ", ".join(parts)
        attrs = ", ".join(f"{k}={v!r}" for k, v in node.attrs if v is not None)
        if attrs:
            text += f" with {attrs}"
        return text


def _fan_in_std(spec: Spec) -> float:
    return 1 / math.sqrt(max(math.prod(spec.shape[1:]), 1))


def _matches(shape: tuple[int, ...], declared: Any) -> bool:
    """Whether a shape has the lengths that are declared; names stand for any."""
    if declared is None:
        return True
    pairs = zip(shape, declared, strict=False)
    return len(shape) == len(declared) and all(
        n == d or not isinstance(d, int) for n, d in pairs
    )


def _format_constant(value: Any) -> str:
    if hasattr(value, "shape"):
        return f"a constant of shape {tuple(value.shape)}"
    return f"{value!r:.40}"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return next(iter(lines), type(error).__name__)


# --- hints for the most common mistakes -------------------------------------------


def suggest_fix(op: str, tensors: list[Any], attrs: dict[str, Any]) -> str:
    """A sentence on what would fit; empty where the library's own words are better."""
    # Only for ops whose errors users meet most. The messages of the libraries name
    # primitives such as dot_general, which a user never wrote.
    hint = _HINTS.get(op)
    if hint is None:
        return ""
    shapes = [getattr(t, "shape", ()) for t in tensors if t is not None]
    return hint(*shapes, **attrs)


def _hint_linear(input: Any = (), weight: Any = (), bias: Any = (), **_: Any) -> str:
    if not input:
        return "input needs at least one axis."
    if len(weight) != 2:
        return f"weight must be (features, {input[-1]}), got {tuple(weight)}."
    if weight[1] != input[-1]:
        return f"weight must be ({weight[0]}, {input[-1]}), got {tuple(weight)}."
    if bias and tuple(bias) != (weight[0],):
        return f"bias must be ({weight[0]},), got {tuple(bias)}."
    return ""


def _hint_matmul(left: Any = (), right: Any = (), **_: Any) -> str:
    if not left or not right:
        return "both need at least one axis."
    inner, which = right[0], "only one"
    if len(right) > 1:
        inner, which = right[-2], "second last"
    if left[-1] != inner:
        return (
            f"left's last dimension is {left[-1]} and right's {which} is {inner}; they "
            "must be equal."
        )
    return ""


def _hint_broadcast(*shapes: Any, **_: Any) -> str:
    longest = max(map(len, shapes), default=0)
    for i in range(1, longest + 1):
        # From the last dimension on, as broadcasting aligns shapes.
        lengths = [s[-i] for s in shapes if len(s) >= i and s[-i] != 1]
        if any(n != lengths[0] for n in lengths[1:]):
            return (
                f"dimension {-i} is {' and '.join(map(str, lengths))}; it must be the "
                "same or 1."
            )
    return ""


def _hint_concat(*shapes: Any, axis: int = 0, **_: Any) -> str:
    ranks = {len(s) for s in shapes}
    if len(ranks) > 1:
        return f"all must have as many axes, got {sorted(ranks)}."
    rank = ranks.pop()
    for i in range(rank):
        if i != axis % rank and len({s[i] for s in shapes}) > 1:
            return (
                f"dimension {i} is {' and '.join(str(s[i]) for s in shapes)}; all but "
                f"dimension {axis} must be the same."
            )
    return ""


def _hint_embedding(input: Any = (), weight: Any = (), **_: Any) -> str:
    rows = next(iter(weight), "the table")
    return f"indices must be integers below {rows}, such as int32."


_ELEMENTWISE = """
    add subtract multiply divide floor_divide remainder power maximum minimum equal
    not_equal less less_equal greater greater_equal where logical_and logical_or
    logical_xor arctan2 logaddexp
"""

_HINTS: dict[str, Callable[..., str]] = {
    "embedding": _hint_embedding,
    "linear": _hint_linear,
    "matmul": _hint_matmul,
    "concat": _hint_concat,
    **dict.fromkeys(_ELEMENTWISE.split(), _hint_broadcast),
}
