"""From nested layers to one flat program.

Places become dotted paths. Equal blocks in a row become one `Repeat` if asked for.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from frugax.models.ops import OPS

from ._connection import Connection, Constant, IOKey, Result, Shape, WeightOf
from ._graph import Graph, Node, Repeat, Step, join
from ._layer import Call, Composite, Layer, Primitive
from ._model import Model
from ._repeats import Run, runs


def flatten(
    layer: Layer, *, inference: bool = False, scan_from: int | None = None
) -> Graph:
    """Lay a model flat.

    Args:
        layer: a model or a single layer.
        inference: leave out or change what only serves training.
        scan_from: how many equal blocks in a row become one loop; None: never.

    Raises:
        ValueError: layers feed each other in a circle, names clash, a layer is wired
            to something outside its model, or the model is empty.
    """
    flat = _Flattener(inference=inference, scan_from=scan_from)
    if isinstance(layer, Primitive):
        results = flat.alone(layer)
    else:
        model = layer.inside(layer.optional) if isinstance(layer, Composite) else layer
        if not isinstance(model, Model):
            raise TypeError(f"a model is made of layers, got {layer!r:.80}.")
        results = flat.model(model, "", None)
    return Graph(flat.inputs, flat.constants, tuple(flat.nodes), results)


class _Flattener:
    def __init__(self, *, inference: bool, scan_from: int | None) -> None:
        self.inference, self.scan_from = inference, scan_from
        self.nodes: list[Step] = []
        self.inputs: dict[str, IOKey] = {}
        self.constants: dict[str, Any] = {}
        self.random = 0

    def alone(self, layer: Primitive) -> dict[str, str]:
        """A single primitive: its ports are the inputs, its weights have no path."""
        needed = [p for p in layer.inputs if p not in layer.optional]
        call = Call(layer, {p: IOKey(p) for p in needed}, {})
        env = {p: self.outer(IOKey(p)) for p in needed}
        made = self.call("", call, env)
        return {layer.outputs[0]: made[layer.outputs[0]]}

    def outer(self, key: IOKey) -> str:
        """The model's own input of that name."""
        before = self.inputs.get(key.name)
        if before is None or (before.shape is None and key.shape is not None):
            self.inputs[key.name] = key
        return key.name

    def constant(self, value: Any) -> str:
        for key, before in self.constants.items():
            if type(before) is type(value) and (
                (isinstance(value, np.ndarray) and before is value)
                or (not isinstance(value, np.ndarray) and before == value)
            ):
                return key
        key = f"/constant_{len(self.constants)}"
        self.constants[key] = value
        return key

    def model(
        self, model: Model, path: str, env: Mapping[str, str] | None
    ) -> dict[str, str]:
        """Lay a model flat; `env` says what its inputs are, None that they are ours."""
        named = _in_order(model, path)
        names = {id(call): name for name, call in named}
        values: dict[tuple[int, str], str] = {}

        def key_of(wire: Connection, reader: str) -> str:
            wire = model.resolve(wire)
            if isinstance(wire, Result):
                found = values.get((id(wire.call), wire.port))
                if found is None:
                    raise ValueError(
                        f"layer {reader!r} reads what {wire.call.layer.title} gives, "
                        "which is not part of the same model."
                    )
                return found
            if isinstance(wire, WeightOf):
                owner = names.get(id(wire.call))
                if owner is None:
                    raise ValueError(
                        f"layer {reader!r} shares a weight of "
                        f"{wire.call.layer.title}, which is not part of the same model."
                    )
                return join(join(path, owner), wire.name)
            if isinstance(wire, Constant):
                return self.constant(wire.value)
            assert isinstance(wire, IOKey)
            if env is None or wire.name not in env:
                return self.outer(wire)
            return env[wire.name]

        def keys_of(name: str, call: Call) -> dict[str, str]:
            return {
                port: key_of(wire, join(path, name))
                for port, wire in call.wires.items()
            }

        for name, call in named:  # what is wired to a key learns its description
            for wire in call.wires.values():
                if env is None and isinstance(model.resolve(wire), IOKey):
                    key_of(wire, name)
        found = runs(model, named, self.scan_from) if self.scan_from else {}
        i = 0
        while i < len(named):
            name, call = named[i]
            run = found.get(i)
            if run is not None:
                last = named[i + run.count - 1][1]
                made = self.repeat(path, run, keys_of(name, call))
                values[id(last), last.layer.outputs[0]] = made
                i += run.count
                continue
            made = self.call(join(path, name), call, keys_of(name, call))
            for port, key in made.items():
                values[id(call), port] = key
            i += 1
        return {
            key: values[id(r.call), r.port] for key, r in model.results.items()
        }

    def call(self, path: str, call: Call, env: dict[str, str]) -> dict[str, str]:
        layer = call.layer
        if self.inference and isinstance(layer, Primitive):
            instead = layer.at_inference()
            if instead is None:
                first = layer.inputs[0]
                return {layer.outputs[0]: env[first]}
            layer = instead
        if isinstance(layer, Composite):
            for port, about in layer.ports().items():
                self.learn(env.get(port, ""), about.shape, about.dtype)
            open_ports = frozenset(p for p in layer.inputs if p not in env)
            return self.model(layer.inside(open_ports), path, env)
        if isinstance(layer, Model):
            return self.model(layer, path, env)
        if not isinstance(layer, Primitive):
            raise TypeError(f"a model is made of layers, got {layer!r:.80}.")
        for port, dtype in layer.port_dtypes.items():
            self.learn(env.get(port, ""), None, dtype)
        op = OPS.get(layer.op_name)
        if op is not None and "key" in op.inputs and "key" not in env:
            env = {**env, "key": self.own_key(path, layer)}
        outputs = tuple(f"{path}/{port}" for port in layer.outputs)
        attrs = tuple(layer.attrs().items())
        self.nodes.append(Node(path, layer, layer.op_name, env, outputs, attrs))
        return dict(zip(layer.outputs, outputs, strict=True))

    def learn(self, key: str, shape: Shape | None, dtype: str | None) -> None:
        """An input is described by the layer that reads it, where nothing else does."""
        before = self.inputs.get(key)
        if before is not None:
            self.inputs[key] = IOKey(
                key, before.shape or shape, before.dtype or dtype, before.expose
            )

    def own_key(self, path: str, layer: Primitive) -> str:
        """A random key for one place, made from the model's input `key`."""
        source = self.outer(IOKey("key", dtype="key"))
        made = f"{path}/key"
        index = (("data", self.random),)
        self.random += 1
        self.nodes.append(
            Node(path, layer, "random_fold_in", {"key": source}, (made,), index)
        )
        return made

    def repeat(self, path: str, run: Run, env: dict[str, str]) -> str:
        """One loop over equal blocks."""
        body = _Flattener(inference=self.inference, scan_from=self.scan_from)
        inner = {port: body.outer(_like(self, port, key)) for port, key in env.items()}
        made = body.call("", Call(run.layer, {}, {}), inner)
        graph = Graph(
            body.inputs,
            body.constants,
            tuple(body.nodes),
            {"output": made[run.layer.outputs[0]]},
        )
        places = tuple(join(path, name) for name in run.names)
        shared = dict(env)
        if "key" in body.inputs and "key" not in shared:
            shared["key"] = self.outer(IOKey("key", dtype="key"))
        common = join(path, common_name(run.names))
        out = f"{common}/output"
        self.nodes.append(Repeat(common, places, graph, run.port, shared, (out,)))
        return out


def _like(flat: _Flattener, port: str, key: str) -> IOKey:
    known = flat.inputs.get(key)
    return IOKey(port, dtype=known.dtype if known else None)


def common_name(names: Sequence[str]) -> str:
    """`*` in the place of the numbers in which names differ: `block_*`."""
    first, last = names[0], names[-1]
    stem = re.sub(r"\d+$", "", first)
    if stem != first and all(re.fullmatch(re.escape(stem) + r"\d+", n) for n in names):
        return f"{stem}*"
    return f"{first}..{last}"


def _in_order(model: Model, path: str) -> list[tuple[str, Call]]:
    """The calls, each after those it reads; as they were added where that will do."""
    named = list(model.calls)
    names = {id(call): name for name, call in named}
    done: dict[int, bool] = {}  # False while the call's own inputs are looked at
    order: list[tuple[str, Call]] = []
    for name, call in named:
        # A stack and not a recursion: models may be deeper than Python's stack.
        stack: list[tuple[str, Call]] = [(name, call)]
        while stack:
            name, call = stack[-1]
            if done.get(id(call)):
                stack.pop()
                continue
            first_time = id(call) not in done
            done[id(call)] = False
            before = [
                w.call
                for w in map(model.resolve, call.wires.values())
                if isinstance(w, Result) and id(w.call) in names
            ]
            waiting = [c for c in before if not done.get(id(c))]
            if first_time:
                for c in waiting:
                    if done.get(id(c)) is False:
                        within = [s for s in stack if done.get(id(s[1])) is False]
                        raise ValueError(_circle(within, c, names, path))
                stack += [(names[id(c)], c) for c in waiting]
                if waiting:
                    continue
            done[id(call)] = True
            order.append((name, call))
            stack.pop()
    return order


def _circle(
    stack: list[tuple[str, Call]], back: Call, names: Mapping[int, str], path: str
) -> str:
    start = next(i for i, (_, call) in enumerate(stack) if call is back)
    circle = [join(path, name) for name, _ in stack[start:]]
    circle.append(join(path, names[id(back)]))
    return (
        f"layers feed each other in a circle: {' -> '.join(reversed(circle))}. One of "
        "their keys must have another name."
    )
