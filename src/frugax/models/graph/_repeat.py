"""`Repeat`: the same block several times in a row, one loop where there are many."""

import dataclasses

from frugax.models.ops import Count

from ._composite import Composite
from ._layer import Layer
from ._model import Model
from ._primitive import Primitive


@dataclasses.dataclass(frozen=True)
class Repeat(Layer):
    """The same block several times in a row, each time with weights of its own.

    The first input of a block is the output of the block before; the others are the
    same for all. The blocks of a `Repeat` called "block" are `block_0`, `block_1`, ...
    On JAX eight or more are one loop (`scan_from` of `compile`): the block is compiled
    once, it must keep the shape and dtype of its first input, and its weights are
    stacked under one key, `block_*`. Blocks that update state are never a loop.

    Attributes:
        block: the layer.
        depth: how often it comes.

    Raises:
        TypeError: the block is not a layer, or the depth not a whole number.
        ValueError: the depth is below 1, or the block has no input.

    Example:
        >>> import frugax as ml
        >>> from frugax.models import Linear, Model, Repeat
        >>> model = Model(Repeat(Linear(16), depth=12, name="block"))
        >>> shapes = {"input": ("batch", 16)}
        >>> ml.compile(model, ml.JaxBackend(), shapes=shapes).shapes["block_*.weight"]
        (12, 16, 16)
    """

    block: Layer
    depth: Count

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.block.inputs:
            raise ValueError(f"Repeat.block {self.block.title} has no input.")

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.block.inputs

    @property
    def optional(self) -> frozenset[str]:
        # A weight can be wired to one block, but not to all of them.
        return self.block.optional & frozenset(self.block.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.block.outputs[:1]

    def is_loop(self, scan_from: int | None) -> bool:
        """Whether the blocks run as one loop, where loops have so many at least."""
        many = scan_from is not None and self.depth >= max(scan_from, 2)
        return many and not _has_state(self.block)


def _has_state(layer: Layer) -> bool:
    """Whether a layer inside updates state, which a loop could not return."""
    if isinstance(layer, Primitive):
        return any(port.startswith("new_") for port in layer.outputs)
    if isinstance(layer, Repeat):
        return _has_state(layer.block)
    inner = layer
    if isinstance(layer, Composite):
        inner = layer.expand(layer.optional)
    assert isinstance(inner, Model)
    return any(_has_state(call.layer) for _, call in inner.calls)
