"""From nested layers to one flat program.

Places become dotted paths. Equal blocks in a row become one `LoopNode` if asked for.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from frugax.models.ops import OPS

from ._calls import merged
from ._composite import Composite
from ._connection import Connection, Constant, Dim, IOKey
from ._graph import GraphNode, LoopNode, ModelGraph, OpNode, join
from ._layer import Layer, LayerCall, LayerOutput, WeightRef, hash_key
from ._model import Model
from ._order import topological_order
from ._primitive import Primitive
from ._repeats import Run, runs


def flatten(
    layer: Layer,
    *,
    inference: bool = False,
    scan_from: int | None = None,
    excluded: frozenset[str] = frozenset(),
) -> ModelGraph:
    """Lay a model flat.

    Args:
        layer: a model or a single layer.
        inference: leave out or change what only serves training.
        scan_from: how many equal blocks in a row become one loop; None: never.
        excluded: places of blocks that must not be in a loop.

    Raises:
        TypeError: something in the model is no layer.
        ValueError: layers feed each other in a circle, names clash, a layer is wired
            to something outside its model, or the model is empty.
    """
    flat = _Flattener(inference=inference, scan_from=scan_from, excluded=excluded)
    made = flat.lay(layer, "", None)
    lost = flat.lost_ties()
    if lost and any(isinstance(node, LoopNode) for node in flat.nodes):
        # A weight that is shared has to stay one of its own.
        places = {key.rpartition(".")[0] for key in lost}
        wider = {p[: i or None] for p in places for i in _dots(p)} | excluded
        if wider != excluded:
            return flatten(
                layer,
                inference=inference,
                scan_from=scan_from,
                excluded=frozenset(wider),
            )
    flat.refuse(lost)
    results = {k: v for k, v in made.items() if not k.startswith("new_")}
    return ModelGraph(flat.inputs, flat.constants, tuple(flat.nodes), results)


class _Flattener:
    def __init__(
        self, *, inference: bool, scan_from: int | None, excluded: frozenset[str]
    ) -> None:
        self.inference, self.scan_from = inference, scan_from
        self.excluded = excluded
        self.nodes: list[GraphNode] = []
        self.inputs: dict[str, IOKey] = {}
        self.constants: dict[str, Any] = {}
        self.marks: dict[Any, str] = {}
        self.ties: dict[str, str] = {}
        self.random = 0

    # --- layers -----------------------------------------------------------------

    def lay(
        self, layer: Layer, path: str, env: Mapping[str, str] | None
    ) -> dict[str, str]:
        """Lay a layer flat; `env` says what its inputs are, None that they are ours.

        Raises:
            TypeError: it is no layer.
        """
        if isinstance(layer, Model):
            return self.model(layer, path, env)
        if isinstance(layer, Composite):
            ports = layer.ports()
            for port, key in (env or {}).items():
                if port in ports:
                    self.learn(key, ports[port].shape, ports[port].dtype)
            given = layer.needed if env is None else env
            open_ports = frozenset(p for p in layer.inputs if p not in given)
            return self.model(layer.inside(open_ports), path, env)
        if isinstance(layer, Primitive):
            if env is None:  # a model of one op: its ports are the inputs
                env = {port: self.outer(IOKey(port)) for port in layer.needed}
            return self.primitive(layer, path, env)
        raise TypeError(f"a model is made of layers, got {layer!r:.80}.")

    def model(
        self, model: Model, path: str, env: Mapping[str, str] | None
    ) -> dict[str, str]:
        """Lay a model flat, a layer at a time."""
        named = topological_order(model, path)
        wiring = _Wiring(self, model, path, env)
        if env is None:  # the inputs in their own order, each fully described
            for key in model.keys.values():
                self.outer(key)
        found: dict[int, Run] = {}
        if self.scan_from is not None:
            found = runs(model, named, self.scan_from, path, self.excluded)
        i = 0
        while i < len(named):
            name, call = named[i]
            keys = wiring.keys_of(name, call)
            run = found.get(i)
            if run is None:
                wiring.add(call, self.lay(call.layer, join(path, name), keys))
                i += 1
            else:
                i += len(run.names)
                wiring.add(named[i - 1][1], self.repeat(path, run, keys))
        return {name: wiring.values[r.place] for name, r in model.results.items()}

    def primitive(self, layer: Primitive, path: str, env: Mapping[str, str]) -> Any:
        """One op, after a random key for it if it draws."""
        if self.inference:
            instead = layer.inference_layer()
            if instead is None:
                return {layer.outputs[0]: env[layer.inputs[0]]}
            assert isinstance(instead, Primitive)
            layer = instead
        env = {p: env[p] for p in (*layer.inputs, *env) if p in env}
        for port, dtype in layer.port_dtypes.items():
            if port in env:
                self.learn(env[port], None, dtype)
        op = OPS.get(layer.op_name)
        if op is not None and op.is_random:
            if "key" in env:
                self.learn(env["key"], None, "key")
            else:
                env["key"] = self.own_key(path, layer)
        outputs = tuple(f"{path}/{port}" for port in layer.outputs)
        attrs = tuple(layer.attrs().items())
        self.nodes.append(OpNode(path, layer, layer.op_name, env, outputs, attrs))
        return dict(zip(layer.outputs, outputs, strict=True))

    # --- values that come from outside ------------------------------------------

    def outer(self, key: IOKey) -> str:
        """The program's own input of that name."""
        before = self.inputs.get(key.name)
        self.inputs[key.name] = key if before is None else merged(before, key)
        return key.name

    def learn(self, key: str, shape: Sequence[Dim] | None, dtype: str | None) -> None:
        """An input is described by the layer that reads it, where nothing else does."""
        before = self.inputs.get(key)
        if before is not None:
            shape = shape if before.shape is None else before.shape
            self.inputs[key] = IOKey(key, shape, before.dtype or dtype)

    def constant(self, value: Any) -> str:
        """The key of a constant, one for equal ones."""
        key = self.marks.setdefault(hash_key(value), f"/constant_{len(self.marks)}")
        self.constants[key] = value
        return key

    def own_key(self, path: str, layer: Layer) -> str:
        """A random key for one place, made from the program's input `key`.

        Raises:
            ValueError: there is another input of that name.
        """
        before = self.inputs.get("key")
        if before is not None and before.shape:
            raise ValueError(
                f"the input 'key' of shape {before.shape} cannot be the random key "
                f"that layer {path!r} draws from: give that input another name."
            )
        source = self.outer(IOKey("key", dtype="key"))
        made = f"{path}/key"
        index = (("index", self.random),)
        self.random += 1
        wires = {"key": source}
        self.nodes.append(OpNode(path, layer, "fold_in", wires, (made,), index))
        return made

    # --- loops and shared weights -----------------------------------------------

    def repeat(self, path: str, run: Run, env: Mapping[str, str]) -> dict[str, str]:
        """One loop over equal blocks."""
        common = join(path, run.common)
        places = tuple(join(path, name) for name in run.names)
        body = _Flattener(
            inference=self.inference,
            scan_from=self.scan_from,
            excluded=frozenset(
                place.removeprefix(f"{block}.")
                for block in places
                for place in self.excluded
                if place.startswith(f"{block}.")
            ),
        )
        wires: dict[str, str] = {}
        for port, key in env.items():
            if key in self.constants:
                body.constants[port] = self.constants[key]
                continue
            about = self.inputs.get(key)
            body.outer(IOKey(port, dtype=None if about is None else about.dtype))
            wires[port] = key
        made = body.lay(run.layer, "", {port: port for port in env})
        body.refuse(body.lost_ties())
        draws = None
        for key, about in body.inputs.items():
            if key in wires:
                self.learn(wires[key], about.shape, about.dtype)
            elif about.dtype == "key" and key == "key":
                draws, wires[key] = key, self.own_key(common, run.layer)
            else:
                wires[key] = self.outer(about)
        port = run.layer.outputs[0]
        graph = ModelGraph(
            body.inputs, body.constants, tuple(body.nodes), {"output": made[port]}
        )
        out = f"{common}/output"
        node = LoopNode(
            common, run.layer, places, graph, run.port, wires, (out,), draws=draws
        )
        self.nodes.append(node)
        return {port: out}

    def lost_ties(self) -> dict[str, str]:
        """Shared weights that no layer owns, each with who reads it."""
        owned = {
            join(node.path, name)
            for node in self.nodes
            if isinstance(node, OpNode) and isinstance(node.layer, Primitive)
            for name in node.layer.weight_names
        }
        return {k: reader for k, reader in self.ties.items() if k not in owned}

    def refuse(self, lost: Mapping[str, str]) -> None:
        """Say that a weight which should be shared is not there.

        Raises:
            ValueError: there is one.
        """
        for key, reader in lost.items():
            paths = list(dict.fromkeys(node.path for node in self.nodes if node.path))
            raise ValueError(
                f"layer {reader!r} shares the weight {key!r}, but no layer owns one of "
                f"that name; there are the layers {', '.join(paths[:12])}."
            )


class _Wiring:
    """The keys of values inside one model."""

    def __init__(
        self, flat: _Flattener, model: Model, path: str, env: Mapping[str, str] | None
    ) -> None:
        self.flat, self.model, self.path, self.env = flat, model, path, env
        self.names = {id(call): name for name, call in model.calls}
        self.values: dict[tuple[int, str], str] = {}

    def add(self, call: LayerCall, made: Mapping[str, str]) -> None:
        for port, key in made.items():
            self.values[id(call), port] = key

    def keys_of(self, name: str, call: LayerCall) -> dict[str, str]:
        """The key of what goes in at each port of a call."""
        reader = join(self.path, name)
        wires = self.model.wires(call)
        return {port: self.key_of(wire, reader) for port, wire in wires.items()}

    def key_of(self, wire: Connection, reader: str) -> str:
        if isinstance(wire, LayerOutput):
            found = self.values.get(wire.place)
            if found is None:
                raise ValueError(
                    f"layer {reader!r} reads what {wire.call.layer.title} gives, which "
                    "is not part of the same model."
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
            return self.flat.constant(wire.value)
        assert isinstance(wire, IOKey)
        if self.env is None or wire.name not in self.env:
            return self.flat.outer(wire)
        return self.env[wire.name]


def _dots(path: str) -> list[int]:
    """Where a path can be cut: behind each part; 0 stands for its end."""
    return [*(m.start() for m in re.finditer(r"\.", path)), 0]
