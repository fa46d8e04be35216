"""Write 4- or 8-bit weights as compressed-tensors, for vLLM and transformers.

https://github.com/vllm-project/compressed-tensors: `pack-quantized` for 4 bits,
`int-quantized` for 8. Tools quantise the weights of `Linear` modules alone, which by
their names cannot be told from others with two axes.
"""

import dataclasses
import fnmatch
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from frugax.errors import CorruptFileError
from frugax.fileio import write_whole

from ._int8_safetensors import Part, lay_out_int8, write_safetensors
from .arrays import QUANTISABLE
from .codecs.groups import Grouping, pack_nibbles
from .container import Record

_WEIGHT = ".weight"
_GROUPS = (128, 64, 32)
# The words of compressed-tensors for ours.
_FORMATS = {4: "pack-quantized", 8: "int-quantized"}


@dataclasses.dataclass(frozen=True)
class CompressedTensors:
    """A folder of one `.safetensors` file and a `config.json` with its entry.

    Attributes:
        folder: the folder to write to.
        bits: of an integer, 4 or 8.
        keep: patterns of modules that are not quantised.
        records: the tensors.
    """

    folder: Path
    bits: int
    keep: Sequence[str]
    records: Sequence[Record]

    @property
    def file(self) -> Path:
        """The file that the tensors go to."""
        return self.folder / "model.safetensors"

    @property
    def grouping(self) -> Grouping:
        """The longest groups that divide the rows of all matrices; rows for 8 bits."""
        if self.bits == 8:
            return Grouping(8, 0)
        rows = [r.shape[-1] for r in self.records if self.takes(r)]
        fitting = (size for size in _GROUPS if not any(row % size for row in rows))
        return Grouping(4, next(fitting, _GROUPS[-1]))

    def takes(self, record: Record) -> bool:
        """Whether a tensor may be the weight of a `Linear` module that is not kept."""
        name, ending = record.name[: -len(_WEIGHT)], record.name[-len(_WEIGHT) :]
        kept = any(fnmatch.fnmatchcase(name, pattern) for pattern in self.keep)
        return ending == _WEIGHT and len(record.shape) == 2 and not kept

    @property
    def unnamed(self) -> tuple[str, ...]:
        """The names of float matrices that do not end as those of `Linear` modules."""
        return tuple(
            r.name
            for r in self.records
            if len(r.shape) == 2
            and r.dtype in QUANTISABLE
            and not r.name.endswith(_WEIGHT)
        )

    def steps_dtype(self, array: np.ndarray) -> "np.dtype[Any]":
        """Return the dtype of the steps of an array."""
        return array.dtype if array.dtype.itemsize == 2 else np.dtype(np.float32)

    def lay_out(
        self, name: str, integers: np.ndarray, steps: np.ndarray
    ) -> tuple[str, list[Part]]:
        """Return the name of the integers, and the tensors that hold them."""
        whole, of_steps = lay_out_int8(name, integers, steps)
        if self.bits == 8:
            return "int8", [whole, of_steps]
        # From 0 to 15, eight to a word, the first one lowest.
        packed = pack_nibbles(integers + np.int8(8))
        padding = -packed.shape[-1] % 4
        packed = np.ascontiguousarray(np.pad(packed, ((0, 0), (0, padding))))
        words = packed.view("<i4")
        shape = np.array(integers.shape, "<i8")
        return "int4", [
            Part(f"{name}_packed", "int32", words.shape, words.tobytes()),
            of_steps,
            Part(f"{name}_shape", "int64", shape.shape, shape.tobytes()),
        ]

    def write(self, parts: Sequence[Part], dense: set[str], place: str) -> None:
        """Write the file, and the entry into `config.json`, which may be there already.

        Args:
            parts: the tensors of the file.
            dense: the names of those that are not quantised.
            place: where they come from, for messages.

        Raises:
            CorruptFileError: the existing file is not a configuration.
            UnsupportedFileError: the file cannot hold a tensor.
        """
        write_safetensors(self.file, parts, place)
        path = self.folder / "config.json"
        try:
            config: Any = json.loads(path.read_bytes()) if path.exists() else {}
        except ValueError as e:
            raise CorruptFileError(f"{path}: not JSON ({e}): copy it again.") from e
        if not isinstance(config, dict):
            raise CorruptFileError(f"{path}: a configuration is a JSON object.")
        weights = {
            "num_bits": self.bits,
            "type": "int",
            "symmetric": True,
            "strategy": "group" if self.grouping.size else "channel",
            "group_size": self.grouping.size or None,
        }
        kept = [
            r.name.removesuffix(_WEIGHT)
            for r in self.records
            if r.name in dense and r.name.endswith(_WEIGHT) and len(r.shape) == 2
        ]
        entry = {
            "quant_method": "compressed-tensors",
            "format": _FORMATS[self.bits],
            "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
            "ignore": kept,
        }
        whole = {**config, "quantization_config": entry}
        write_whole(path, json.dumps(whole, indent=2) + "\n")
