"""`Int8Safetensors`: a `.safetensors` file of int8 weights with a step for each row."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ._export_layout import Entry, Item, Part, Rounded, round_to_groups, write_parts
from .codecs.groups import Grouping


@dataclasses.dataclass(frozen=True)
class Int8Safetensors:
    """A `.safetensors` file of int8 tensors, and float32 steps of their rows.

    Attributes:
        file: the file to write.
    """

    file: Path

    def list_items(self, entries: Sequence[Entry]) -> list[Item]:
        """Return the tensors of the file: all of two axes or more may be rounded."""
        return [
            Item(e.name, (e.name,), e.shape, "" if len(e.shape) > 1 else "no matrix")
            for e in entries
        ]

    def why_not(self, item: Item) -> str:
        """Return why the shape of a tensor does not suit; rows have any length."""
        return ""

    def round(self, item: Item, array: np.ndarray, place: str) -> Rounded:
        """Round a tensor."""
        float32 = np.dtype(np.float32)
        found = round_to_groups(array, Grouping(8, 0), float32, place=place)
        integers, steps, decoded = found
        parts = [
            Part(item.name, "int8", integers.shape, integers.tobytes()),
            Part(f"{item.name}_scale", "float32", steps.shape, steps.tobytes()),
        ]
        return Rounded("int8", parts, decoded)

    def write(self, parts: Sequence[Part], dense: set[str], place: str) -> None:
        """Write the file."""
        write_parts(self.file, parts, place)
