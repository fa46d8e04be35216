"""Every leaf of a model in the order it runs: its place, shapes, parameters, cost."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from frugax.budget import format_bytes, table

from ._containers import Chain, Residual
from ._layers import Layer, Leaf, Parameter, Shape

A = TypeVar("A")


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """A leaf in its place.

    Attributes:
        path: its place in the model, such as `"3.residual.1"`; empty for a model of
            one leaf.
        layer: the layer.
        before: shape of one example that goes in.
        after: shape of one example that comes out.
    """

    path: str
    layer: Leaf
    before: Shape
    after: Shape

    @property
    def parameters(self) -> dict[str, Parameter]:
        """Its parameters by full name, such as `"3.residual.1.weight"`."""
        own = self.layer.parameters(self.before)
        return {join(self.path, name): p for name, p in own.items()}

    @property
    def flops(self) -> int:
        """Floating-point operations for one example, forwards."""
        return self.layer.flops(self.before)


def join(path: str, name: str) -> str:
    """A place inside a place: `"3"` and `"weight"` give `"3.weight"`."""
    return f"{path}.{name}" if path else name


def fold(
    layer: Layer,
    x: A,
    *,
    leaf: Callable[[str, Leaf, A], A],
    add: Callable[[str, A, A], A],
    path: str = "",
) -> A:
    """Send `x` through a model, whatever `x` is: an array, or just its shape.

    Args:
        layer: the model.
        x: what goes in.
        leaf: what a leaf makes of its input, given its path.
        add: what a short cut makes of its input and its body's output.
        path: where `layer` stands.

    Returns:
        What comes out.
    """
    if isinstance(layer, Chain):
        for i, part in enumerate(layer.layers):
            x = fold(part, x, leaf=leaf, add=add, path=join(path, str(i)))
        return x
    if isinstance(layer, Residual):
        inside = join(path, "residual")
        return add(path, x, fold(layer.body, x, leaf=leaf, add=add, path=inside))
    assert isinstance(layer, Leaf)  # there is no other kind
    return leaf(path, layer, x)


def walk(model: Layer, input_shape: Sequence[int]) -> tuple[Node, ...]:
    """Infer every shape of a model.

    Args:
        model: the model.
        input_shape: shape of one example, without the batch.

    Returns:
        The leaves in the order they run.

    Raises:
        ValueError: a shape does not suit a layer; the message names its place.

    Example:
        >>> from frugax.models.graph import Chain, Linear, Relu
        >>> [n.after for n in walk(Chain(Linear(8), Relu(), Linear(2)), (64,))]
        [(8,), (8,), (2,)]
    """
    if any(isinstance(n, bool) or n < 1 for n in input_shape):
        raise ValueError(f"input_shape must be whole numbers >= 1, got {input_shape}.")
    nodes: list[Node] = []

    def leaf(path: str, layer: Leaf, shape: Shape) -> Shape:
        after = layer.shape_after(shape, _at(path))
        nodes.append(Node(path, layer, shape, after))
        return after

    def add(path: str, shape: Shape, after: Shape) -> Shape:
        if shape != after:
            raise ValueError(
                f"{_at(path)} (Residual) adds its input of shape {shape} to its body's "
                f"output of shape {after}. The body must keep the shape."
            )
        return shape

    fold(model, tuple(input_shape), leaf=leaf, add=add)
    return tuple(nodes)


def check_input(expected: Shape, got: Sequence[int]) -> None:
    """Refuse a batch of another shape than the model was compiled for.

    Raises:
        ValueError: it differs.
    """
    if len(got) != len(expected) + 1 or tuple(got[1:]) != expected:
        wanted = ", ".join(["batch", *map(str, expected)])
        raise ValueError(
            f"the input has shape {tuple(got)}, but the model was compiled for "
            f"({wanted}). Compile it again with another input_shape."
        )


def check_parameters(nodes: Sequence[Node], got: Mapping[str, Any]) -> None:
    """Refuse parameters that are not the model's.

    Args:
        nodes: the model.
        got: arrays by name, of any library.

    Raises:
        ValueError: one is missing, unknown, no array, or of a wrong shape.
    """
    known = {
        name: (node, parameter)
        for node in nodes
        for name, parameter in node.parameters.items()
    }
    for name, (node, parameter) in known.items():
        if name not in got:
            raise ValueError(f"parameter {name!r} of {_at(node.path)} is missing.")
        if not hasattr(got[name], "shape"):
            raise ValueError(
                f"parameter {name!r} must be an array, got {got[name]!r:.99}."
            )
        shape = tuple(got[name].shape)
        if shape != parameter.shape:
            raise ValueError(
                f"parameter {name!r} has shape {shape}, but {_at(node.path)}"
                f" ({type(node.layer).__name__}), which takes {node.before} to "
                f"{node.after}, needs {parameter.shape}."
            )
    for name in got:
        if name not in known:
            raise ValueError(
                f"there is no parameter {name!r}; the model has {', '.join(known)}."
            )


def summary(nodes: Sequence[Node]) -> str:
    """A table of the model: shapes, parameters, their bytes as float32, and flops."""
    rows = [
        [
            node.path,
            type(node.layer).__name__,
            str(node.after),
            sum(p.size for p in node.parameters.values()),
            node.flops,
        ]
        for node in nodes
    ]
    totals = [sum(row[column] for row in rows) for column in (3, 4)]
    return table(
        ["layer", "kind", "output", "parameters", "bytes", "flops"],
        [
            [*text, f"{size:,}", format_bytes(4 * size), f"{flops:,}"]
            for *text, size, flops in [*rows, ["total", "", "", *totals]]
        ],
    )


def _at(path: str) -> str:
    return f"layer {path!r}" if path else "the model's only layer"
