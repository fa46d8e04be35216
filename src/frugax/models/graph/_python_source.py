"""Print a model's flat program as Python source: one line an op, with its shape.

It also runs, with a backend as `backend`; tests compare its results with `run`'s.
"""

import builtins
import json
import keyword
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

from frugax.models.ops import Op

from ._graph import LoopNode, ModelGraph, OpNode, Spec
from ._infer import op_arguments

_RESERVED = frozenset({*dir(builtins), *keyword.kwlist, *keyword.softkwlist})


def source(
    graph: ModelGraph,
    *,
    params: frozenset[str],
    find: Callable[[str], Op],
    methods: frozenset[str],
) -> str:
    """Write the function `model(params, data, backend)` of a program after `infer`."""
    arrays = [k for k, v in graph.constants.items() if hasattr(v, "shape")]
    arguments = ["params", "data", "backend"]
    if array_constants(graph):
        arguments.append("constants")
    writer = _Writer(find, methods, {*arguments})
    names: dict[str, str] = {}
    lines: list[str] = []
    for key in graph.inputs:
        names[key] = writer.name(key)
        item = _item(key, params)
        lines.append(f"{names[key]} = {item}{_comment(graph.specs[key])}")
    # Weights are read where they are used: one line for each would bury the program
    # under its parameters.
    for key in graph.weights:
        names[key] = _item(key, params)
    for key in arrays:
        names[key] = f"constants[{_quote(key)}]"
    for name, key in graph.outputs.items():
        if key not in names and key not in graph.constants:
            names[key] = writer.name(name)
    lines += writer.lines(graph, names)
    results = ", ".join(f"{_quote(n)}: {names[k]}" for n, k in graph.outputs.items())
    body = [*lines, f"return {{{results}}}"]
    header = [
        f'"""{_count(graph)} steps, {len(graph.weights)} weights; written by frugax.',
        "",
        "Run it as model(params, data, backend); constants are `compiled.constants`.",
        '"""',
        "",
        "",
        f"def model({', '.join(arguments)}):",
    ]
    indented = [f"    {line}".rstrip() for line in body]
    return "\n".join([*header, *indented]) + "\n"


def _item(key: str, params: frozenset[str]) -> str:
    if key in params:
        return f"params[{_quote(key)}]"
    return f"data[{_quote(key)}]"


class _Writer:
    """Writes the lines of nodes, and gives every value a unique name."""

    def __init__(
        self, find: Callable[[str], Op], methods: frozenset[str], used: set[str]
    ) -> None:
        self.find, self.methods, self.used = find, methods, used

    def name(self, request: str) -> str:
        """A name that is not used yet, similar to the requested one."""
        stem = re.sub(r"[\W_]+", "_", request).strip("_") or "value"
        if stem[0].isdigit():
            stem = f"_{stem}"
        if stem in _RESERVED - {"input"}:  # `input` is what most models call their data
            stem = f"{stem}_"
        name, number = stem, 1
        while name in self.used:
            number += 1
            name = f"{stem}_{number}"
        self.used.add(name)
        return name

    def lines(self, graph: ModelGraph, names: dict[str, str]) -> Iterator[str]:
        """The lines of all nodes; `names` grows by the results."""
        for key, value in graph.constants.items():
            if key not in names:
                names[key] = _literal(value)
        place = ""
        for node in graph.nodes:
            parent = node.path.rpartition(".")[0]
            if parent != place and parent:
                yield f"# {parent}"
            place = parent
            if isinstance(node, LoopNode):
                yield from self.loop_lines(node, graph, names)
            else:
                yield self.op_line(node, graph, names)

    def op_line(self, node: OpNode, graph: ModelGraph, names: dict[str, str]) -> str:
        """One line: the op with its arguments, and the shapes of its results."""
        op = self.find(node.op)
        read = [
            "None" if k is None else names[k] for k in op_arguments(op, node.inputs)
        ]
        # Open ports at the end are the defaults of the op.
        while read and read[-1] == "None":
            read.pop()
        read += [f"{k}={_literal(v)}" for k, v in node.attrs]
        call = f"backend.{node.op}("
        if node.op in self.methods:  # such as `backend.ones`, which makes an array
            call = f"backend.find({_quote(node.op)})(backend.xp, "
        for key in node.outputs:
            path, _, port = key.rpartition("/")
            request = f"{path}.{port}"
            if port == "output":
                request = path or port
            names.setdefault(key, self.name(request))
        targets = [names[key] for key in node.outputs]
        if len(op.outputs) > len(node.outputs):
            targets.append("*_")
        comment = _comment(*(graph.specs[key] for key in node.outputs))
        return f"{', '.join(targets)} = {call}{', '.join(read)}){comment}"

    def loop_lines(
        self, node: LoopNode, graph: ModelGraph, names: dict[str, str]
    ) -> Iterator[str]:
        """A function for one block, and the scan over all blocks."""
        outer = {p: names[k] for p, k in node.inputs.items() if p != node.carry}
        step, carry = self.name(f"{node.path}_step"), self.name(node.carry)
        own = {name: self.name(name) for name in node.stacked}
        unpacked = list(own.values())
        number = ""
        if node.needs_index:
            number = self.name("number")
            unpacked.insert(0, number)
        yield f"def {step}({carry}, own):  # {node.names[0]} ... {node.names[-1]}"
        yield "    ("
        # A line each and a comma after the last, so that a tuple of one is still a
        # tuple.
        yield from (f"        {name}," for name in unpacked)
        yield "    ) = own"
        inner = {**outer, **own, node.carry: carry}
        if node.key_port is not None:
            inner[node.key_port] = self.name("key")
            key, before = inner[node.key_port], outer[node.key_port]
            yield f"    {key} = backend.fold_in({before}, index={number})"
        for key, value in node.body.constants.items():
            if hasattr(value, "shape"):
                inner[key] = f"constants[{_quote(constant_label(node.path, key))}]"
        for line in self.lines(node.body, inner):
            yield f"    {line}"
        yield f"    return {inner[node.body.outputs['output']]}, ()"
        names.setdefault(node.outputs[0], self.name(node.path))
        yield f"{names[node.outputs[0]]}, _ = backend.xp.scan("
        yield f"    {step},"
        yield f"    {names[node.inputs[node.carry]]},"
        yield "    ("
        if number:
            yield f"        backend.xp.arange({len(node.names)}),"
        for key in node.stacked.values():
            yield f"        {names[key]},{_comment(graph.specs[key])}"
        yield "    ),"
        yield f"){_comment(graph.specs[node.outputs[0]])}"


def array_constants(graph: ModelGraph, path: str = "") -> dict[str, Any]:
    """The arrays that are written into a program, by their names in its source."""
    found = {
        constant_label(path, k): v
        for k, v in graph.constants.items()
        if hasattr(v, "shape")
    }
    for node in graph.nodes:
        if isinstance(node, LoopNode):
            found |= array_constants(node.body, node.path)
    return found


def constant_label(path: str, key: str) -> str:
    """The name of an array constant: its key, in a loop behind the path of the loop."""
    if key.startswith("/") or not path:
        return f"{path}{key}"
    return f"{path}/{key}"


def _count(graph: ModelGraph) -> int:
    return sum(1 for _ in graph.walk())


def _comment(*specs: Spec) -> str:
    return f"  # {', '.join(map(str, specs))}"


def _literal(value: Any) -> str:
    """A plain value as Python source; `inf` and `nan` have no literals."""
    if isinstance(value, tuple):
        entries = ", ".join(map(_literal, value))
        if len(value) == 1:
            entries += ","
        return f"({entries})"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, str):
        return _quote(value)
    return repr(value)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
