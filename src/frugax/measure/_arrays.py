"""Read the shapes and the bytes of arrays from a compiled program's HLO."""

import dataclasses
import math

from ._protobuf import Message

# Field numbers of `ShapeProto`, `LayoutProto` and `TileProto` in xla_data.proto.
_ELEMENT_TYPE, _DIMENSIONS, _TUPLE_SHAPES, _LAYOUT = 2, 3, 4, 5
_MINOR_TO_MAJOR, _TILES, _MEMORY_SPACE = 1, 6, 8
_TILE_DIMENSIONS = 1
# Values of `PrimitiveType`: name and bits.
_TUPLE = 13
_TYPES = {
    1: ("pred", 8), 2: ("s8", 8), 3: ("s16", 16), 4: ("s32", 32), 5: ("s64", 64),
    6: ("u8", 8), 7: ("u16", 16), 8: ("u32", 32), 9: ("u64", 64), 10: ("f16", 16),
    11: ("f32", 32), 12: ("f64", 64), 15: ("c64", 64), 16: ("bf16", 16),
    18: ("c128", 128), 19: ("f8e5m2", 8), 20: ("f8e4m3fn", 8), 21: ("s4", 4),
    22: ("u4", 4),
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Array:
    """One array: its type and shape as text, and its bytes in the device's memory.

    Attributes:
        shape: as XLA writes it, such as `f32[8,16]`.
        bytes: in the device's memory, with padding; 0 for an array elsewhere.
        dtype: as XLA writes it; "" for a tuple.
        dims: sides, without padding.
        order: dimensions, from the one whose elements are neighbours in memory.
    """

    shape: str
    bytes: int
    dtype: str = ""
    dims: tuple[int, ...] = ()
    order: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.dims)


def array_leaves(shape: Message) -> dict[tuple[int, ...], Array]:
    """The arrays of a shape, which may be a tuple, by their index in it."""
    if shape.number(_ELEMENT_TYPE) != _TUPLE:
        return {(): _read_array(shape)}
    return {
        (i, *index): array
        for i, element in enumerate(shape.messages(_TUPLE_SHAPES))
        for index, array in array_leaves(element).items()
    }


def _read_array(shape: Message) -> Array:
    name, bits = _TYPES.get(shape.number(_ELEMENT_TYPE), ("other", 0))
    sides = shape.numbers(_DIMENSIONS)
    text = f"{name}[{','.join(map(str, sides))}]"
    layout = shape.message(_LAYOUT)
    order = tuple(layout.numbers(_MINOR_TO_MAJOR))
    # Other spaces are on-chip memory of a TPU, or the host's memory.
    if layout.number(_MEMORY_SPACE):
        return Array(text, 0, name, sides, order)
    padded = list(sides)
    for tile in layout.messages(_TILES)[:1]:
        # The last side of a tile lies along the dimension that changes fastest.
        for side, dim in zip(
            reversed(tile.numbers(_TILE_DIMENSIONS)), order, strict=False
        ):
            padded[dim] = -(-padded[dim] // side) * side
    return Array(text, math.prod(padded) * bits // 8, name, sides, order)
