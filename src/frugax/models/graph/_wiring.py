"""`explain_wiring`: a table of each name in a model, its source and its readers."""

from collections.abc import Iterable

from ._connection import Connection, Constant, IOKey
from ._flatten import flatten
from ._layer import LayerOutput, WeightRef
from ._model import Model


def explain_wiring(model: Model) -> str:
    """A table of every name in the model: input, weight or result, and its readers.

    A key without a producer is a weight if a layer reads it as one, else an input.

    Example:
        >>> from frugax.models import Linear, Model
        >>> model = Model()
        >>> model |= Linear(4)(input="x", weight="w", output="y")
        >>> print(model.explain_wiring())
        name  role    comes from       read by
        x     input   data             linear_0.input
        w     weight  params           linear_0.weight
        y     result  linear_0.output  the caller
    """
    named_weights = flatten(model).named_weights
    names = {id(call): name for name, call in model.calls}
    titles = {output.place: key for key, output in model._named.items()}
    rows: dict[str, tuple[str, str, list[str]]] = {}

    def row_of(wire: Connection) -> tuple[str, str, str]:
        """The name of a value, its role and its producer."""
        if isinstance(wire, LayerOutput):
            place = f"{names[id(wire.call)]}.{wire.port}"
            return titles.get(wire.place, place), "result", place
        if isinstance(wire, WeightRef):
            owner = names[id(wire.call)]
            return f"{owner}.{wire.name}", "weight", "params"
        if isinstance(wire, Constant):
            return f"{wire.value!r:.20}", "constant", "the model"
        assert isinstance(wire, IOKey)
        if wire.name in named_weights:
            return wire.name, "weight", "params"
        return wire.name, "input", "data"

    def add(wire: Connection, reader: str) -> None:
        name, role, source = row_of(wire)
        rows.setdefault(name, (role, source, []))[2].append(reader)

    for key in model.keys.values():
        name, role, source = row_of(key)
        rows[name] = (role, source, [])
    for name, call in model.calls:
        for port, wire in model.wires(call).items():
            add(wire, f"{name}.{port}")
    for output in model.results.values():
        add(output, "the caller")
    order = {"input": 0, "weight": 1, "constant": 2, "result": 3}
    table = [
        (name, role, source, ", ".join(readers))
        for name, (role, source, readers) in rows.items()
    ]
    table.sort(key=lambda row: order[row[1]])
    return _align([("name", "role", "comes from", "read by"), *table])


def _align(rows: Iterable[tuple[str, ...]]) -> str:
    lines = list(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(t.ljust(w) for t, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


Model.explain_wiring = explain_wiring
