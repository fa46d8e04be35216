"""Run a wired model: the one walk that computes numbers, and shapes without numbers.

`Run` reads the weights that it is given. `record` is the same walk over arrays without
numbers; it creates the weights, and notes the shape of every value. An error is caught
once, where an op is called, and named by the path of its layer.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from frugax.errors import ShapeError
from frugax.models.ops import OPS, Op

from ._graph import (
    GraphNode,
    LoopNode,
    ModelGraph,
    OpNode,
    Spec,
    fits_shape,
    join,
)
from ._hints import suggest_fix
from ._primitive import Primitive
from ._shape_expressions import PORT, compute_lengths
from ._weights import Normal, Weight

# A weight of 4 TiB in float32: drawing it would end the process without an error.
_MAX_WEIGHT_SIZE = 2**40

# The exceptions that JAX and torch raise where shapes or dtypes do not fit.
_SHAPE_EXCEPTIONS = (TypeError, ValueError, RuntimeError)

Results = tuple[Any, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One call of an op, to be repeated on other arrays of equal shapes and dtypes.

    Attributes:
        function: from the tensors to one result or several.
        inputs: the key of each tensor, None where one is left out.
        outputs: the keys of the results.
    """

    function: Callable[..., Any]
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Library:
    """The functions of an array library that a run needs.

    Attributes:
        xp: the array functions that bodies of ops call.
        find: looks an op up by its name.
        float_dtype: the dtype of weights, and of inputs without a dtype.
        spec_of: the shape and dtype of an array or a number.
        failures: exceptions that shapes do not cause, such as a lack of memory.
    """

    xp: Any
    find: Callable[[str], Op]
    float_dtype: np.dtype
    spec_of: Callable[[Any], Spec]
    failures: tuple[type[Exception], ...] = ()


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


def op_attributes(
    node: OpNode, shape_of: Callable[[str], tuple[Any, ...]]
) -> dict[str, Any]:
    """The attributes of a node, those that depend on shapes filled in."""
    ports = {p: k for p, k in node.inputs.items() if p.startswith(PORT)}
    if not ports:
        return dict(node.attrs)
    shapes = {port: shape_of(key) for port, key in ports.items()}
    return dict(compute_lengths(node.attrs, shapes))


class Run:
    """One run of a program, from the arrays that go in to those that come out.

    Attributes:
        graph: the program.
        library: where it runs.
        values: the arrays that are known so far, by key.
        steps: the calls of ops so far, but those in loops.
    """

    def __init__(
        self,
        graph: ModelGraph,
        values: Mapping[str, Any],
        library: Library,
        visit: Callable[[GraphNode, Results], None] | None = None,
    ) -> None:
        """Begin a run; `visit` is called with each node and its results."""
        self.graph, self.library = graph, library
        self.values: dict[str, Any] = {**graph.constants, **values}
        self.visit = visit
        self.steps: list[Step] = []

    def outputs(self) -> dict[str, Any]:
        """Run every node, and return the outputs by name.

        Raises:
            ShapeError: a layer cannot take its inputs.
        """
        dead_keys = find_dead_keys(self.graph)
        for i, node in enumerate(self.graph.nodes):
            with self.library.xp.scope(node.path or "model"):
                results = self.run_node(node)
            # An op may give more results than its layer names: a batch norm at
            # inference.
            self.values.update(zip(node.outputs, results, strict=False))
            if self.visit is not None:
                self.visit(node, results)
            # An eager run would otherwise hold every intermediate result until the end.
            del results
            for key in dead_keys.get(i, ()):
                del self.values[key]
        return {name: self.values[key] for name, key in self.graph.outputs.items()}

    def run_node(self, node: GraphNode) -> Results:
        """The results of one node."""
        if isinstance(node, LoopNode):
            return (self.run_loop(node),)
        return self.run_op(node, self.wire_weights(node))

    def run_op(self, node: OpNode, wired: Mapping[str, str]) -> Results:
        """Call the op of a node; the only place where its errors are named."""
        op = self.find_op(node)
        arguments = op_arguments(op, wired)
        for key in wired.values():
            self.check_known(key, node)
        tensors = [None if key is None else self.values[key] for key in arguments]
        attributes = op_attributes(node, self._shape_in_numbers)
        xp = self.library.xp
        try:
            results = op(xp, *tensors, **attributes)
        except Exception as e:  # whatever JAX, torch or the user's op raises
            given = self._describe(wired, attributes)
            own = node.op not in OPS and not isinstance(e, _SHAPE_EXCEPTIONS)
            if own or isinstance(e, self.library.failures):
                # A bug in the user's own op, or a full device.
                e.add_note(f"in {node.title}, given {given}")
                raise
            specs = [None if t is None else self.library.spec_of(t) for t in tensors]
            reason = suggest_fix(node.op, specs, attributes) or _first_line(e)
            raise ShapeError(f"{node.title} cannot take {given}: {reason}") from e
        # A call that needs no promotion now needs none for arrays of the same dtypes.
        start = op.body if op.is_promoted(xp, tensors) else op
        call = functools.partial(start, xp, **attributes)
        self.steps.append(Step(call, arguments, node.outputs))
        if not isinstance(results, (tuple, list)):
            results = (results,)
        if len(results) < len(node.outputs):
            raise ShapeError(
                f"{node.title}: the op gives {len(results)} results, the layer names "
                f"{len(node.outputs)}."
            )
        return tuple(results)

    def run_loop(self, node: LoopNode) -> Any:
        """The result of the last of equal blocks."""
        for name, weight in node.body.weights.items():
            shape = (len(node.names), *weight.shape)
            whole = dataclasses.replace(weight, shape=shape)
            self.take_weight(name, node.stacked[name], whole, node)
        xp = self.library.xp
        shared = {p: self.values[k] for p, k in node.inputs.items() if p != node.carry}
        stacked = {name: self.values[key] for name, key in node.stacked.items()}
        names = tuple(stacked)
        key = None
        if node.key_port is not None:
            key = shared.pop(node.key_port)

        def step(carry: Any, own: tuple[Any, ...]) -> tuple[Any, tuple[()]]:
            values = {**shared, node.carry: carry}
            if node.needs_index:
                number, own = own[0], own[1:]
                if node.key_port is not None:
                    fold_in = self.library.find("fold_in")
                    values[node.key_port] = fold_in(xp, key, index=number)
            values |= dict(zip(names, own, strict=True))
            return Run(node.body, values, self.library).outputs()["output"], ()

        # Stacked weights are scanned over, not indexed: the backward pass of an index
        # is a scatter into an array of all blocks.
        scanned = tuple(stacked.values())
        if node.needs_index:
            scanned = (xp.arange(len(node.names)), *scanned)
        try:
            out, _ = xp.scan(step, self.values[node.inputs[node.carry]], scanned)
        except ShapeError as e:
            raise ShapeError(f"in {node.title}: {e.what}") from e
        return out

    # --- weights ------------------------------------------------------------------

    def wire_weights(self, node: OpNode) -> dict[str, str]:
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
            self.check_known(key, node)
        shapes = [self._shape(wired.get(port)) for port in ports]
        try:
            weights = layer.weights(*shapes)
        except (ValueError, TypeError) as e:
            given = self._describe(wired, dict(node.attrs))
            raise ShapeError(f"{node.title} cannot take {given}: {e}.") from e
        for name, weight in weights.items():
            key = wired[name] = shared.pop(name, join(node.path, name))
            self.take_weight(name, key, weight, node)
        return wired | shared

    def take_weight(self, name: str, key: str, weight: Weight, node: GraphNode) -> None:
        """Check that a weight that was given has the shape that its layer needs."""
        shape = self._shape(key)
        if shape != weight.shape:
            given = {
                port: k
                for port, k in node.inputs.items()
                if isinstance(node, OpNode) and k not in self.graph.weights
            }
            text = self._describe(given, {})
            raise ShapeError(
                f"{node.title}: {key!r} must have shape {weight.shape}, got {shape}"
                f"{f' (it is given {text})' if text else ''}."
            )

    # --- known values -------------------------------------------------------------

    def find_op(self, node: OpNode) -> Op:
        """The op of a node."""
        try:
            return self.library.find(node.op)
        except KeyError as e:
            raise ValueError(f"{node.title}: {e.args[0]}") from None

    def check_known(self, key: str, node: GraphNode) -> None:
        """Check that a value is known."""
        if key in self.values:
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

    def _shape_in_numbers(self, key: str) -> tuple[Any, ...]:
        return tuple(getattr(self.values[key], "shape", ()))

    def _shape(self, key: str | None) -> tuple[Any, ...]:
        value = None if key is None else self.values[key]
        return self.library.spec_of(value).shape if hasattr(value, "shape") else ()

    def _describe(self, wired: Mapping[str, str], attributes: Mapping[str, Any]) -> str:
        """The inputs and attributes of a node, for an error."""
        parts: list[str] = []
        for port, key in wired.items():
            if key in self.graph.constants:
                parts.append(f"{port} {_format_constant(self.graph.constants[key])}")
            elif key in self.values:
                parts.append(f"{port} {self.library.spec_of(self.values[key])}")
        text = ", ".join(parts)
        attrs = ", ".join(f"{k}={v!r}" for k, v in attributes.items() if v is not None)
        if attrs:
            text += f" with {attrs}"
        return text


def record(
    graph: ModelGraph, inputs: Mapping[str, Any], library: Library
) -> ModelGraph:
    """Run a program on arrays without numbers, and record its operations.

    Args:
        graph: the program.
        inputs: an array for each input whose shape is known, such as a tracer of
            `jax.eval_shape` or a tensor on torch's meta device; also in place of
            constants.
        library: where it runs.

    Returns:
        The program, its nodes in an order in which they can run and wired to their
        weights, with the shape of every value and weight.
    """
    return _Recording(graph, inputs, library).record()


class _Recording(Run):
    """A run that creates the weights instead of reading them."""

    def __init__(
        self, graph: ModelGraph, inputs: Mapping[str, Any], library: Library
    ) -> None:
        super().__init__(graph, inputs, library)
        self.nodes: list[GraphNode] = []
        self.weights: dict[str, Weight] = {}
        self.results = dict(graph.outputs)
        self.specs = {
            k: library.spec_of(inputs[k]) for k in graph.inputs if k in inputs
        }
        for key, about in graph.named_weights.items():
            shape = about.known_shape
            if shape is None or not all(isinstance(n, int) for n in shape):
                continue
            self._create(key, shape)
            if about.trainable:
                # As torch starts a Linear layer; a layer that reads it as its own
                # decides.
                init = Normal(1 / math.sqrt(max(math.prod(shape[1:]), 1)))
                self.weights[key] = Weight(shape, init)
        self.unowned = set(self.weights)

    def record(self) -> ModelGraph:
        """Run every node, and return the program with all that is known now."""
        waiting = list(self.graph.nodes)
        while waiting:
            ready = (i for i, node in enumerate(waiting) if self._is_ready(node))
            node = waiting.pop(next(ready, 0))
            for key, value in zip(node.outputs, self.run_node(node), strict=False):
                self.values[key] = value
                self.specs[key] = self.library.spec_of(value)
        return dataclasses.replace(
            self.graph,
            nodes=tuple(self.nodes),
            outputs=self.results,
            weights=self.weights,
            specs=self.specs,
        )

    def _is_ready(self, node: GraphNode) -> bool:
        """Whether a node can run before the others that wait.

        A penalty may read a named weight before the layer that gives it a shape.
        """
        if not self.graph.named_weights:
            return True
        own = node.layer.weight_names if isinstance(node.layer, Primitive) else ()
        return all(
            port in own or key in self.values or key in self.graph.inputs
            for port, key in node.inputs.items()
        )

    def wire_weights(self, node: OpNode) -> dict[str, str]:
        wired = super().wire_weights(node)
        self.nodes.append(dataclasses.replace(node, inputs=wired))
        return wired

    def take_weight(self, name: str, key: str, weight: Weight, node: GraphNode) -> None:
        """Create a weight; the layer that owns it decides how it is initialised."""
        size = math.prod(weight.shape)
        if size > _MAX_WEIGHT_SIZE:
            raise ShapeError(
                f"{node.title}: its weight {key!r} of shape {weight.shape} would hold "
                f"{size:.1e} numbers, more than any memory does; is one of its lengths "
                "mistyped?"
            )
        # Two readers of one weight must agree on its shape, whichever comes first.
        named = self.graph.named_weights.get(key)
        if named is not None and not fits_shape(weight.shape, named.known_shape):
            raise ShapeError(
                f"{node.title} needs {key!r} of shape {weight.shape}, but it is "
                f"declared as {named.known_shape}."
            )
        if key in self.values and self._shape(key) != weight.shape:
            raise ShapeError(
                f"{node.title} needs {key!r} of shape {weight.shape}, but it is "
                f"{self._shape(key)} elsewhere."
            )
        unowned = named is not None and (key in self.unowned or key not in self.weights)
        if key not in self.values or unowned:
            self.unowned.discard(key)
            self._create(key, weight.shape)
            self.weights[key] = weight
        # A reader of a shared weight may come before its owner in the program, but the
        # owner's initializer counts: an embedding and an output layer draw differently.
        if key == join(node.path, name) and key in self.weights:
            self.weights[key] = weight
        # The new state is an output under the key of the old one, so that a training
        # loop can feed outputs back as data.
        updated = f"new_{name}"
        if weight.kind == "state" and updated in node.layer.outputs:
            at = node.layer.outputs.index(updated)
            self.results[key] = node.outputs[at]

    def _create(self, key: str, shape: tuple[int, ...]) -> None:
        dtype = self.library.float_dtype
        self.values[key] = self.library.xp.zeros(shape, dtype)
        self.specs[key] = Spec(shape, dtype)

    def run_loop(self, node: LoopNode) -> Any:
        """Run one block for all, and stack its weights."""
        for key in node.inputs.values():
            self.check_known(key, node)
        values = {port: self.values[key] for port, key in node.inputs.items()}
        block = _Recording(node.body, values, self.library)
        try:
            body = block.record()
        except ShapeError as e:
            raise ShapeError(f"in {node.title}: {e.what}") from e
        result = block.values[body.outputs["output"]]
        before, after = map(self.library.spec_of, (values[node.carry], result))
        # The carry of `lax.scan` must keep its shape and dtype.
        if before != after:
            raise ShapeError(
                f"{node.title} are the same block {len(node.names)} times, which turns "
                f"{before} into {after}: a loop keeps shape and dtype; compile with "
                "scan_from=None."
            )
        stacked = {name: join(node.path, name) for name in body.weights}
        node = dataclasses.replace(node, body=body, stacked=stacked)
        for name, weight in body.weights.items():
            # The blocks are the first axis, along which `scan` runs.
            shape = (len(node.names), *weight.shape)
            whole = dataclasses.replace(weight, shape=shape)
            self.take_weight(name, stacked[name], whole, node)
        self.nodes.append(node)
        return result


def find_dead_keys(graph: ModelGraph) -> dict[int, list[str]]:
    """The values that nothing reads after each node, by the number of the node."""
    kept = {*graph.outputs.values()}
    computed = {key for node in graph.nodes for key in node.outputs}
    last_use: dict[str, int] = {}
    for i, node in enumerate(graph.nodes):
        for key in (*node.inputs.values(), *node.outputs):
            if key in computed and key not in kept:
                last_use[key] = i
    dead: dict[int, list[str]] = {}
    for key, i in last_use.items():
        dead.setdefault(i, []).append(key)
    return dead


def _format_constant(value: Any) -> str:
    if hasattr(value, "shape"):
        return f"a constant of shape {tuple(value.shape)}"
    return f"{value!r:.40}"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return next(iter(lines), type(error).__name__)
