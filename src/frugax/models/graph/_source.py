"""A flat program as straight-line Python: one line an op, with the shape it gives.

The text is for reading. It runs too, with a backend in the place of `backend`; tests
hold its results against those of `run`.
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

_TAKEN = frozenset({*dir(builtins), *keyword.kwlist, *keyword.softkwlist})


def source(
    graph: ModelGraph,
    *,
    params: frozenset[str],
    find: Callable[[str], Op],
    methods: frozenset[str],
) -> str:
    """The text of `model(params, data, backend)`, for a program after `infer`.

    Args:
        graph: the program.
        params: the keys that are read from `params`; others are read from `data`.
        find: the op of a name.
        methods: names that mean something else than the op on a backend.
    """
    arrays = [k for k, v in graph.constants.items() if hasattr(v, "shape")]
    some = ["constants"] if array_constants(graph) else []
    arguments = ["params", "data", "backend", *some]
    writer = _Writer(find, methods, {*arguments})
    names: dict[str, str] = {}
    lines: list[str] = []
    for key in graph.inputs:
        names[key] = writer.name(key)
        home = "params" if key in params else "data"
        lines.append(
            f"{names[key]} = {home}[{_quoted(key)}]{_comment(graph.specs[key])}"
        )
    for key in graph.weights:
        names[key] = f"{'params' if key in params else 'data'}[{_quoted(key)}]"
    for key in arrays:
        names[key] = f"constants[{_quoted(key)}]"
    for name, key in graph.outputs.items():
        if key not in names and key not in graph.constants:
            names[key] = writer.name(name)
    lines += writer.lines(graph, names)
    results = ", ".join(f"{_quoted(n)}: {names[k]}" for n, k in graph.outputs.items())
    body = [*lines, f"return {{{results}}}"]
    said = [
        f'"""{_count(graph)} steps, {len(graph.weights)} weights; written by frugax.',
        "",
        "Run it as model(params, data, backend); constants are `compiled.constants`.",
        '"""',
        "",
        "",
        f"def model({', '.join(arguments)}):",
    ]
    return "\n".join([*said, *(f"    {line}" if line else "" for line in body)]) + "\n"


class _Writer:
    """Writes steps, and gives every value a name of its own."""

    def __init__(
        self, find: Callable[[str], Op], methods: frozenset[str], used: set[str]
    ) -> None:
        self.find, self.methods, self.used = find, methods, used

    def name(self, wish: str) -> str:
        """A free name like the one wished for."""
        stem = re.sub(r"[\W_]+", "_", wish).strip("_") or "value"
        stem = f"_{stem}" if stem[0].isdigit() else stem
        stem = f"{stem}_" if stem in _TAKEN - {"input"} else stem
        name, number = stem, 1
        while name in self.used:
            number += 1
            name = f"{stem}_{number}"
        self.used.add(name)
        return name

    def lines(self, graph: ModelGraph, names: dict[str, str]) -> Iterator[str]:
        """The steps; `names` says what is known and learns what they give."""
        for key, value in graph.constants.items():
            if key not in names:
                names[key] = _number(value)
        place = ""
        for node in graph.nodes:
            inside = node.path.rpartition(".")[0]
            if inside != place and inside:
                yield f"# {inside}"
            place = inside
            if isinstance(node, LoopNode):
                yield from self.loop(node, graph, names)
            else:
                yield self.step(node, graph, names)

    def step(self, node: OpNode, graph: ModelGraph, names: dict[str, str]) -> str:
        """One line: the op with what it reads, and the shapes it gives."""
        op = self.find(node.op)
        read = [
            "None" if k is None else names[k] for k in op_arguments(op, node.inputs)
        ]
        while read and read[-1] == "None":
            read.pop()
        read += [f"{k}={_number(v)}" for k, v in node.attrs]
        call = f"backend.{node.op}("
        if node.op in self.methods:
            call = f"backend.find({_quoted(node.op)})(backend.xp, "
        for key in node.outputs:
            path, _, port = key.rpartition("/")
            wish = path if port == "output" else f"{path}.{port}"
            names.setdefault(key, self.name(wish or port))
        made = ", ".join(names[key] for key in node.outputs)
        several = len(op.outputs) > len(node.outputs)
        specs = [graph.specs[key] for key in node.outputs]
        return f"{made}{', *_' if several else ''} = {call}{', '.join(read)})" + (
            _comment(*specs)
        )

    def loop(
        self, node: LoopNode, graph: ModelGraph, names: dict[str, str]
    ) -> Iterator[str]:
        """A function for one block, and the scan over all."""
        outer = {p: names[k] for p, k in node.inputs.items() if p != node.carry}
        step, carry = self.name(f"{node.path}_step"), self.name(node.carry)
        own = {name: self.name(name) for name in node.stacked}
        number = self.name("number") if node.counts else None
        taken = [*([number] if number else []), *own.values()]
        yield f"def {step}({carry}, own):  # {node.names[0]} ... {node.names[-1]}"
        yield "    ("
        yield from (f"        {name}," for name in taken)
        yield "    ) = own"
        inner = {**outer, **own, node.carry: carry}
        if node.draws is not None:
            inner[node.draws] = self.name("key")
            before = outer[node.draws]
            yield f"    {inner[node.draws]} = backend.fold_in({before}, index={number})"
        for key, value in node.body.constants.items():
            if hasattr(value, "shape"):
                inner[key] = f"constants[{_quoted(constant_label(node.path, key))}]"
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
    """The arrays that are written into a program, by their names in its text."""
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
    """What the text calls an array: its key, in a loop behind the loop's path."""
    return f"{path}{key}" if key.startswith("/") or not path else f"{path}/{key}"


def _count(graph: ModelGraph) -> int:
    return sum(1 for _ in graph.walk())


def _comment(*specs: Spec) -> str:
    return f"  # {', '.join(map(str, specs))}"


def _number(value: Any) -> str:
    """A plain value as Python text; `inf` and `nan` have no literals."""
    if isinstance(value, tuple):
        inside = ", ".join(map(_number, value))
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if isinstance(value, float) and (not math.isfinite(value)):
        return f'float("{value}")'
    return _quoted(value) if isinstance(value, str) else repr(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
