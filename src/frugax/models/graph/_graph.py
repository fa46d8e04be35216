"""A flat program: nodes in the order of running, between named values."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from ._connection import IOKey
from ._layer import Layer
from ._weights import Weight


@dataclasses.dataclass(frozen=True, slots=True)
class Spec:
    """What is known of an array before it is there.

    Attributes:
        shape: its lengths: ints, or symbolic dimensions where free.
        dtype: a NumPy dtype, or that of JAX's random keys, which is none.
    """

    shape: tuple[Any, ...]
    dtype: Any

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"


@dataclasses.dataclass(frozen=True, slots=True)
class OpNode:
    """One op at one place.

    Attributes:
        path: where it is in the model, such as `"encoder.attention.query"`.
        layer: the primitive it comes from.
        op: the op's name.
        inputs: the key of the value at each port; weights among them after `infer`.
        outputs: the keys of its results.
        attrs: the op's attributes, as pairs.
    """

    path: str
    layer: Layer
    op: str
    inputs: Mapping[str, str]
    outputs: tuple[str, ...]
    attrs: tuple[tuple[str, Any], ...]

    @property
    def title(self) -> str:
        """What an error calls it."""
        kind = type(self.layer).__name__
        kind = f"op {self.op}" if kind == "OpLayer" else f"{kind}, op {self.op}"
        return f"layer {self.path or type(self.layer).__name__!r} ({kind})"


@dataclasses.dataclass(frozen=True, slots=True)
class LoopNode:
    """The same block many times in a row, run as one loop.

    Attributes:
        path: the blocks' common place, such as `"block_*"`.
        layer: what each block is.
        names: each block's own place, first to last.
        body: the block; it reads `carry` and the shared values.
        carry: the body's input that takes what the block before gave.
        inputs: the outer key for each input of the body; that of `carry` is what the
            first block takes.
        outputs: the key of what the last block gives.
        stacked: the body's weights, each with the outer key of all blocks' stacked.
        draws: the body's input that takes each block's own random key, if it draws.
    """

    path: str
    layer: Layer
    names: tuple[str, ...]
    body: "ModelGraph"
    carry: str
    inputs: Mapping[str, str]
    outputs: tuple[str, ...]
    stacked: Mapping[str, str] = dataclasses.field(default_factory=dict)
    draws: str | None = None

    @property
    def counts(self) -> bool:
        """Whether the loop needs each block's number: to draw, or to know how many."""
        return self.draws is not None or not self.stacked

    @property
    def title(self) -> str:
        """What an error calls it."""
        return f"blocks {self.path!r}"


GraphNode = OpNode | LoopNode


@dataclasses.dataclass(frozen=True, slots=True)
class ModelGraph:
    """A model laid flat.

    Attributes:
        inputs: what comes from outside and is no weight, by key.
        constants: numbers and arrays written into the model, by key.
        nodes: the steps, in an order in which they can run.
        outputs: the key of the value behind each output's name.
        weights: the arrays the layers own, by key; after `infer`.
        specs: shape and dtype of every value; after `infer`.
    """

    inputs: Mapping[str, IOKey]
    constants: Mapping[str, Any]
    nodes: tuple[GraphNode, ...]
    outputs: Mapping[str, str]
    weights: Mapping[str, Weight] = dataclasses.field(default_factory=dict)
    specs: Mapping[str, Spec] = dataclasses.field(default_factory=dict)

    def walk(self) -> Iterator[GraphNode]:
        """Every step, those inside loops after the loop."""
        for node in self.nodes:
            yield node
            if isinstance(node, LoopNode):
                yield from node.body.walk()


def join(path: str, name: str) -> str:
    """A name inside a place: `join("a", "b")` is `"a.b"`, `join("", "b")` is `"b"`."""
    return f"{path}.{name}" if path else name
