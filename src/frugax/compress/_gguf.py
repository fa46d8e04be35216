"""`GGUF`: write weights as a `.gguf` file, in ggml's block formats Q4_0 and Q8_0."""

import dataclasses
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from frugax.errors import UnsupportedFileError
from frugax.fileio import atomic_write

from ._export_layout import Entry, Item, Part, Rounded, round_to_groups
from ._roles import ModelConfig, Role, find_roles
from .codecs.groups import Grouping

# Types of github.com/ggml-org/ggml/blob/master/docs/gguf.md, by dtype and by bits.
_TYPES = {
    "float32": 0,
    "float16": 1,
    "float64": 28,
    "bfloat16": 30,
    "int8": 24,
    "int16": 25,
    "int32": 26,
    "int64": 27,
    "Q4_0": 2,
    "Q8_0": 8,
}
_GROUP = 32
_DENSE = (Role.VECTOR, Role.ROUTER, Role.BIAS)
_ALIGNMENT = 32
_MAX_NAME = 63  # bytes, of ggml's 64 with the NUL behind


@dataclasses.dataclass(frozen=True)
class GGUF:
    """A `.gguf` file with Q4_0 or Q8_0.

    Attributes:
        file: the file to write.
        bits: of an integer, 4 or 8.
    """

    file: Path
    bits: int

    def list_items(self, entries: Sequence[Entry]) -> list[Item]:
        """Return the tensors of the file: routers and tables of biases stay."""
        roles = find_roles({e.name: e.shape for e in entries}, ModelConfig())
        return [
            Item(
                *(e.name, (e.name,), e.shape),
                roles[e.name].value if roles[e.name] in _DENSE else "",
            )
            for e in entries
        ]

    def why_not(self, item: Item) -> str:
        """Return why the shape of a tensor does not suit."""
        if item.shape[-1] % _GROUP:
            return f"rows of {item.shape[-1]}, no multiple of {_GROUP}"
        return ""

    def round(self, item: Item, array: np.ndarray, place: str) -> Rounded:
        """Round a tensor."""
        grouping, float16 = Grouping(self.bits, _GROUP), np.dtype(np.float16)
        integers, steps, decoded = round_to_groups(
            array, grouping, float16, place=place
        )
        groups = integers.reshape(-1, _GROUP)
        if self.bits == 4:
            # The integers plus 8; the second half of a group in the high nibbles.
            plain = (groups + 8).astype(np.uint8)
            half = _GROUP // 2
            packed = plain[:, :half] | (plain[:, half:] << 4)
        else:
            packed = groups.view(np.uint8)
        # A block is a step, then 32 integers.
        of_groups = steps.astype("<f2").reshape(-1, 1).view(np.uint8)
        blocks = np.concatenate([of_groups, packed], axis=1).tobytes()
        codec = f"Q{self.bits}_0"
        part = Part(item.name, codec, integers.shape, blocks)
        return Rounded(codec, [part], decoded)

    def write(self, parts: Sequence[Part], dense: set[str], place: str) -> None:
        """Write the file."""
        head = b"GGUF" + struct.pack("<IQQ", 3, len(parts), 1)
        head += _text("general.architecture") + struct.pack("<I", 8) + _text("frugax")
        at = 0
        for name, kind, shape, data in parts:
            if kind not in _TYPES or len(shape) > 4 or not name:
                raise UnsupportedFileError(
                    f"{place}: tensor {name!r} of {kind} with {len(shape)} axes cannot "
                    "stand in a .gguf file: write a .safetensors file."
                )
            if len(name.encode()) > _MAX_NAME:
                raise UnsupportedFileError(
                    f"{place}: the name {name!r} has {len(name.encode())} bytes, and "
                    f"llama.cpp reads at most {_MAX_NAME}: rename the tensor."
                )
            sizes = shape[::-1] or (1,)
            head += _text(name) + struct.pack("<I", len(sizes))
            head += struct.pack(f"<{len(sizes)}QIQ", *sizes, _TYPES[kind], at)
            at += len(data) + -len(data) % _ALIGNMENT
        with atomic_write(self.file) as out:
            for data in (head, *(part.data for part in parts)):
                out.write(data + bytes(-len(data) % _ALIGNMENT))


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()
