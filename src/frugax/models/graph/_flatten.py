"""Flatten nested layers into one program of ops.

Places become dotted paths. Many blocks of a `Repeat` become one `LoopNode`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from frugax.models.ops import OPS

from ._composite import Composite
from ._connection import Connection, Constant, Dim, IOKey
from ._graph import GraphNode, LoopNode, ModelGraph, OpNode, join
from ._layer import Layer, LayerCall, LayerOutput, WeightRef, hash_key
from ._model import Model, merge_keys
from ._primitive import Primitive
from ._repeat import Repeat


def flatten(
    layer: Layer, *, inference: bool = False, scan_from: int | None = None
) -> ModelGraph:
    """Flatten a model into a program without shapes.

    Args:
        layer: a model or a layer.
        inference: leave out layers that act in training only.
        scan_from: how many blocks of a `Repeat` become one loop; None: never.

    Raises:
        ValueError: the layers cannot be put in an order, or names clash.
    """
    flat = _Flattener(inference=inference, scan_from=scan_from)
    outputs = flat.add_layer(layer, "", None)
    flat.reject_dangling_ties()
    # Updated state leaves the model as well, but under the keys of the weights;
    # `record` adds it.
    results = {k: v for k, v in outputs.items() if not k.startswith("new_")}
    # The one place that decides between input and weight: a key without a producer is
    # a weight if any layer reads it as one, and then never an input.
    named = {
        k: v for k, v in flat.inputs.items() if k in flat.weight_names or v.trainable
    }
    inputs = {k: v for k, v in flat.inputs.items() if k not in named}
    nodes = tuple(flat.nodes)
    return ModelGraph(inputs, flat.constants, nodes, results, named_weights=named)


class _Flattener:
    """A program that grows node by node.

    Attributes:
        nodes: the nodes so far.
        inputs: the inputs of the program by key.
        constants: numbers and arrays of the model by key.
        ties: the keys of shared weights, each with the path of a reader.
        weight_names: the keys that a layer reads as a weight.
    """

    def __init__(self, *, inference: bool, scan_from: int | None) -> None:
        self.inference, self.scan_from = inference, scan_from
        self.nodes: list[GraphNode] = []
        self.inputs: dict[str, IOKey] = {}
        self.constants: dict[str, Any] = {}
        self.ties: dict[str, str] = {}
        self.weight_names: set[str] = set()
        self._places: set[str] = set()
        self._constant_keys: dict[Any, str] = {}
        self._num_random_layers = 0

    # --- layers -----------------------------------------------------------------

    def add_layer(
        self, layer: Layer, path: str, env: Mapping[str, str] | None
    ) -> dict[str, str]:
        """Add a layer; `env` has its inputs' keys, None if they are the program's."""
        if isinstance(layer, Model):
            return self._add_model(layer, path, env)
        if isinstance(layer, Composite):
            ports = layer.input_keys()
            # A composite may know more about its inputs than the ops inside, such as
            # the dtype of token ids.
            for port, key in (env or {}).items():
                if port in ports:
                    self.refine_input(key, ports[port].known_shape, ports[port].dtype)
            wired = layer.required
            if env is not None:
                wired = env
            open_ports = frozenset(p for p in layer.inputs if p not in wired)
            return self._add_model(layer.expand(open_ports), path, env)
        if isinstance(layer, Repeat):
            return self._add_repeat(layer, path, env)
        if isinstance(layer, Primitive):
            if env is None:  # a model of one op: its ports are the inputs
                env = {port: self.program_input(IOKey(port)) for port in layer.required}
            return self._add_primitive(layer, path, env)
        raise TypeError(f"a model is made of layers, got {layer!r:.80}.")

    def _add_model(
        self, model: Model, path: str, env: Mapping[str, str] | None
    ) -> dict[str, str]:
        # Calls may be added before the layers that they read, by `|=` with the names of
        # keys.
        calls = _topological_order(model, path)
        scope = _ModelScope(self, model, path, env)
        if env is None:
            # Inputs first, in the order of the model and not in that of execution.
            for key in model.keys.values():
                self.program_input(key)
        for name, call in calls:
            keys = scope.input_keys(name, call)
            scope.add_outputs(call, self.add_layer(call.layer, join(path, name), keys))
        return {name: scope.values[r.place] for name, r in model.results.items()}

    def _add_primitive(
        self, layer: Primitive, path: str, env: Mapping[str, str]
    ) -> Any:
        """Add one op, after a random key for it if it draws random numbers."""
        if self.inference:
            replacement = layer.inference_layer()
            if replacement is None:
                # A dropout at inference: its result is its input, without a node.
                return {layer.outputs[0]: env[layer.inputs[0]]}
            assert isinstance(replacement, Primitive)
            layer = replacement
        if path in self._places:
            raise ValueError(
                f"two layers are called {path!r}: give one of them another name."
            )
        self._places.add(path)
        # In the order of the ports, since ops that take any number of tensors read them
        # by position.
        env = {p: env[p] for p in (*layer.inputs, *env) if p in env}
        self.weight_names |= {env[p] for p in layer.weight_names if p in env}
        for port, dtype in layer.port_dtypes.items():
            if port in env:
                self.refine_input(env[port], None, dtype)
        # Every random layer derives its own key from its number, so adding a layer at
        # the end of a model does not change the draws of those before.
        op = OPS.get(layer.op_name)
        if op is not None and op.is_random:
            if "key" in env:
                self.refine_input(env["key"], None, "key")
            else:
                env["key"] = self._add_random_key(path, layer)
        # A slash cannot occur in the name of an input or of a layer, so keys of results
        # never clash with them.
        outputs = tuple(f"{path}/{port}" for port in layer.outputs)
        attrs = tuple(layer.attrs().items())
        self.nodes.append(OpNode(path, layer, layer.op_name, env, outputs, attrs))
        return dict(zip(layer.outputs, outputs, strict=True))

    # --- values from outside ----------------------------------------------------

    def program_input(self, key: IOKey) -> str:
        """The input of the program with the name of `key`; added if it is new."""
        self.inputs[key.name] = merge_keys(self.inputs.get(key.name, key), key)
        return key.name

    def refine_input(
        self, key: str, shape: Sequence[Dim] | None, dtype: str | None
    ) -> None:
        """Describe an input by the layer that reads it, as far as nothing else does."""
        before = self.inputs.get(key)
        if before is None:
            return
        if before.known_shape is not None:
            shape = before.known_shape
        dtype = before.dtype or dtype
        self.inputs[key] = IOKey(key, shape, dtype, trainable=before.trainable)

    def constant_key(self, value: Any) -> str:
        """The key of a constant; equal constants have one key."""
        # An array that is read in many places is one array on the device.
        new = f"/constant_{len(self._constant_keys)}"
        key = self._constant_keys.setdefault(hash_key(value), new)
        self.constants[key] = value
        return key

    def _add_random_key(self, path: str, layer: Layer) -> str:
        """Derive a random key for one place from the input `key` of the program."""
        before = self.inputs.get("key")
        if before is not None and before.known_shape:
            raise ValueError(
                f"the input 'key' of shape {before.known_shape} cannot be the random "
                f"key that layer {path!r} draws from: give that input another name."
            )
        source = self.program_input(IOKey("key", dtype="key"))
        key = f"{path}/key"
        index = (("index", self._num_random_layers),)
        self._num_random_layers += 1
        wires = {"key": source}
        self.nodes.append(OpNode(path, layer, "fold_in", wires, (key,), index))
        return key

    # --- loops and shared weights -----------------------------------------------

    def _add_repeat(
        self, layer: Repeat, path: str, env: Mapping[str, str] | None
    ) -> dict[str, str]:
        """Add the blocks of a `Repeat`: a loop, or one by one."""
        if env is None:
            env = {port: self.program_input(IOKey(port)) for port in layer.required}
        path = path or layer.kind
        names = tuple(f"{path}_{i}" for i in range(layer.depth))
        carry, outputs = layer.inputs[0], {}
        if layer.is_loop(self.scan_from) and env[carry] not in self.constants:
            return self._add_loop(layer, path, names, env)
        # As in the body of a loop, where a block that is a `Repeat` is at the root.
        inner = layer.block.kind if isinstance(layer.block, Repeat) else ""
        for name in names:
            place = join(name, inner) if inner else name
            outputs = self.add_layer(layer.block, place, env)
            env = {**env, carry: outputs[layer.outputs[0]]}
        return outputs

    def _add_loop(
        self,
        layer: Repeat,
        path: str,
        names: tuple[str, ...],
        env: Mapping[str, str],
    ) -> dict[str, str]:
        common = f"{path}_*"
        # The body has a program of its own, with keys from its own root, because the
        # same text runs for every block.
        body = _Flattener(inference=self.inference, scan_from=self.scan_from)
        wires: dict[str, str] = {}
        for port, key in env.items():
            # Constants go into the body as they are. As an input of the body a Python
            # number would be an array, and its dtype no longer weak.
            if key in self.constants:
                body.constants[port] = self.constants[key]
                continue
            dtype = None
            if key in self.inputs:
                dtype = self.inputs[key].dtype
            body.program_input(IOKey(port, dtype=dtype))
            wires[port] = key
        # Every port is wired in the body, so its inputs are the ports of the block.
        outputs = body.add_layer(layer.block, "", {port: port for port in env})
        body.reject_dangling_ties()
        key_port = None
        for key, inner in body.inputs.items():
            if key in wires:
                self.refine_input(wires[key], inner.known_shape, inner.dtype)
            # Each step of the loop folds its number into this key, so that blocks draw
            # different numbers.
            elif inner.dtype == "key" and key == "key":
                key_port, wires[key] = key, self._add_random_key(common, layer.block)
            else:
                wires[key] = self.program_input(inner)
        self.weight_names |= {wires[key] for key in body.weight_names if key in wires}
        port = layer.outputs[0]
        graph = ModelGraph(
            body.inputs, body.constants, tuple(body.nodes), {"output": outputs[port]}
        )
        output = f"{common}/output"
        node = LoopNode(
            common,
            layer.block,
            names,
            graph,
            layer.inputs[0],
            wires,
            (output,),
            key_port=key_port,
        )
        self.nodes.append(node)
        return {port: output}

    def reject_dangling_ties(self) -> None:
        """Refuse shared weights without an owner among the nodes."""
        owned = {
            join(node.path, name)
            for node in self.nodes
            if isinstance(node, OpNode) and isinstance(node.layer, Primitive)
            for name in node.layer.weight_names
        }
        for key, reader in self.ties.items():
            if key in owned:
                continue
            for node in self.nodes:
                if isinstance(node, LoopNode) and key.startswith(
                    tuple(f"{name}." for name in node.names)
                ):
                    raise ValueError(
                        f"layer {reader!r} shares the weight {key!r} of a block in a "
                        f"loop, where the weights of {node.path!r} are one array: "
                        "compile with scan_from=None."
                    )
            paths = list(dict.fromkeys(node.path for node in self.nodes if node.path))
            raise ValueError(
                f"layer {reader!r} shares the weight {key!r}, but no layer owns one of "
                f"that name; there are the layers {', '.join(paths[:12])}."
            )


class _ModelScope:
    """The keys of the values inside one model."""

    def __init__(
        self, flat: _Flattener, model: Model, path: str, env: Mapping[str, str] | None
    ) -> None:
        self.flat, self.model, self.path, self.env = flat, model, path, env
        # By identity and not by equality: a layer used twice has two sets of weights.
        self.names = {id(call): name for name, call in model.calls}
        self.values: dict[tuple[int, str], str] = {}

    def add_outputs(self, call: LayerCall, outputs: Mapping[str, str]) -> None:
        """Note the keys of the outputs of a call."""
        for port, key in outputs.items():
            self.values[id(call), port] = key

    def input_keys(self, name: str, call: LayerCall) -> dict[str, str]:
        """The key of the value at each input port of a call."""
        reader = join(self.path, name)
        wires = self.model.wires(call)
        return {port: self._key_of(wire, reader) for port, wire in wires.items()}

    def _key_of(self, wire: Connection, reader: str) -> str:
        """The key of the value that a connection carries."""
        if isinstance(wire, LayerOutput):
            found = self.values.get(wire.place)
            if found is None:
                raise ValueError(
                    f"layer {reader!r} reads the output of {wire.call.layer.title}, "
                    "which is not part of the same model."
                )
            return found
        if isinstance(wire, WeightRef):
            owner = self.names.get(id(wire.call))
            if owner is None:
                raise ValueError(
                    f"layer {reader!r} shares a weight of {wire.call.layer.title}, "
                    "which is not part of the same model."
                )
            key = join(join(self.path, owner), wire.name)
            self.flat.ties.setdefault(key, reader)
            return key
        if isinstance(wire, Constant):
            return self.flat.constant_key(wire.value)
        assert isinstance(wire, IOKey)
        if self.env is None or wire.name not in self.env:
            return self.flat.program_input(wire)
        return self.env[wire.name]


# --- the order of execution -------------------------------------------------------


def _topological_order(model: Model, path: str) -> list[tuple[str, LayerCall]]:
    """Order calls by their dependencies; the order of adding breaks ties."""
    # With the owner of a shared weight first, `record` knows its shape when it comes to
    # the reader. That is not always possible, and not always needed.
    try:
        return _order_calls(model, path, ties=True)
    except ValueError:
        return _order_calls(model, path, ties=False)


def _order_calls(model: Model, path: str, *, ties: bool) -> list[tuple[str, LayerCall]]:
    """Order calls; with `ties` also after the owners of weights that they share."""
    names = {id(call): name for name, call in model.calls}
    done: set[int] = set()
    order: list[tuple[str, LayerCall]] = []
    for _, start in model.calls:
        # A stack and not a recursion: models may be deeper than Python's stack. The
        # open calls are those whose inputs are being visited: meeting one is a circle.
        stack: list[LayerCall] = [start]
        opened: dict[int, LayerCall] = {}
        while stack:
            call = stack[-1]
            if id(call) in done:
                stack.pop()
                continue
            missing = [
                c
                for c in _dependencies(model, call, ties=ties)
                if id(c) in names and id(c) not in done
            ]
            if not missing:
                done.add(id(call))
                opened.pop(id(call), None)
                order.append((names[id(call)], stack.pop()))
                continue
            opened[id(call)] = call
            for c in missing:
                if id(c) in opened:
                    raise ValueError(_describe_circle(opened.values(), c, names, path))
            stack += reversed(missing)
    return order


def _dependencies(model: Model, call: LayerCall, *, ties: bool) -> list[LayerCall]:
    kinds: tuple[type, ...] = (LayerOutput,)
    if ties:
        kinds = (LayerOutput, WeightRef)
    wires = model.wires(call).values()
    return [wire.call for wire in wires if isinstance(wire, kinds)]


def _describe_circle(
    opened: Iterable[LayerCall], back: LayerCall, names: Mapping[int, str], path: str
) -> str:
    calls = list(opened)
    circle = [join(path, names[id(c)]) for c in calls[calls.index(back) :]]
    circle.append(circle[0])
    return (
        f"layers feed each other in a circle: {' -> '.join(reversed(circle))}. One of "
        "their keys must have another name."
    )
