"""`ModelGraph`: a model as a flat program of ops, in order, between named values."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ._connection import IOKey
from ._layer import Layer
from ._weights import Weight


@dataclasses.dataclass(frozen=True, slots=True)
class Spec:
    """Shape and dtype of an array that does not exist yet.

    Attributes:
        shape: its lengths: ints, or symbolic dimensions where they are free.
        dtype: a NumPy dtype, or that of JAX's random keys, which NumPy does not have.
    """

    shape: tuple[Any, ...]
    dtype: Any

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"


@dataclasses.dataclass(frozen=True, slots=True)
class OpNode:
    """One op at one place of a model.

    Attributes:
        path: its place in the model, such as `"encoder.attention.query"`.
        layer: the primitive it comes from.
        op: the name of the op.
        inputs: the key of the value at each port; after `record` also of the weights.
        outputs: the keys of its results.
        attrs: the attributes of the op, as pairs; `op_attributes` fills in lengths.
    """

    path: str
    layer: Layer
    op: str
    inputs: Mapping[str, str]
    outputs: tuple[str, ...]
    attrs: tuple[tuple[str, Any], ...]

    @property
    def title(self) -> str:
        """Its name in errors."""
        kind = type(self.layer).__name__
        place = f"layer {self.path or kind!r}"
        if kind == "OpLayer":
            return f"{place} (op {self.op})"
        return f"{place} ({kind}, op {self.op})"


@dataclasses.dataclass(frozen=True, slots=True)
class LoopNode:
    """Equal blocks in a row, run as one loop.

    Attributes:
        path: the common place of the blocks, such as `"block_*"`.
        layer: the layer that each block is.
        names: the place of each block, first to last.
        body: the program of one block; it reads `carry` and the shared values.
        carry: the input of the body that takes the output of the block before.
        inputs: the outer key of each input of the body; for `carry` the key of the
            value that the first block takes.
        outputs: the key of the output of the last block.
        stacked: the weights of the body, each with the outer key of the stacked array.
        key_port: the input of the body that takes the random key of each block; None
            if the block draws no random numbers.
    """

    path: str
    layer: Layer
    names: tuple[str, ...]
    body: "ModelGraph"
    carry: str
    inputs: Mapping[str, str]
    outputs: tuple[str, ...]
    stacked: Mapping[str, str] = dataclasses.field(default_factory=dict)
    key_port: str | None = None

    @property
    def needs_index(self) -> bool:
        """Whether the loop runs over the numbers of the blocks as well.

        Random draws need them, and a loop without weights has nothing else to tell it
        how many blocks there are.
        """
        return self.key_port is not None or not self.stacked

    @property
    def title(self) -> str:
        """Its name in errors."""
        return f"blocks {self.path!r}"


GraphNode = OpNode | LoopNode


@dataclasses.dataclass(frozen=True, slots=True)
class ModelGraph:
    """A model as a flat program.

    Attributes:
        inputs: the values from outside that are not weights, by key.
        constants: numbers and arrays that are written into the model, by key.
        nodes: the nodes, in an order in which they can run.
        outputs: the key of the value behind the name of each output.
        named_weights: the weights that the user named; their layers give the shapes.
        weights: the arrays that the layers own, by key; filled by `record`.
        specs: shape and dtype of every value; filled by `record`.
    """

    inputs: Mapping[str, IOKey]
    constants: Mapping[str, Any]
    nodes: tuple[GraphNode, ...]
    outputs: Mapping[str, str]
    named_weights: Mapping[str, IOKey] = dataclasses.field(default_factory=dict)
    weights: Mapping[str, Weight] = dataclasses.field(default_factory=dict)
    specs: Mapping[str, Spec] = dataclasses.field(default_factory=dict)

    def walk(self) -> Iterator[GraphNode]:
        """Every node; those of a loop come after the loop."""
        for node in self.nodes:
            yield node
            if isinstance(node, LoopNode):
                yield from node.body.walk()


def fits_shape(shape: Sequence[Any], declared: Sequence[Any] | None) -> bool:
    """Whether a shape has the lengths that are declared; names and None are free."""
    if declared is None:
        return True
    return len(shape) == len(declared) and all(
        length == wanted or not isinstance(wanted, int)
        for length, wanted in zip(shape, declared, strict=True)
    )


def join(path: str, name: str) -> str:
    """Join a path and a name: `join("a", "b")` is `"a.b"`, `join("", "b")` is `"b"`."""
    if not path:
        return name
    return f"{path}.{name}"
