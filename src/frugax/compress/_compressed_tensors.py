"""Write 4- or 8-bit weights as compressed-tensors, for vLLM and transformers.

https://github.com/vllm-project/compressed-tensors: `pack-quantized`, which both take
for weights alone (`int-quantized` is for inputs of 8 bits, too). Tools quantise the
weights of `Linear` modules alone; experts that are stored as one tensor become the
modules of each expert.
"""

import dataclasses
import fnmatch
import functools
import json
import re
import shutil
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from frugax.fileio import atomic_folder, write_whole

from ._export_layout import (
    Item,
    Part,
    Rounded,
    round_to_groups,
    split_gate_up,
)
from ._folder import is_index
from ._roles import WEIGHT, ModelConfig, Role, find_roles
from ._tensor_table import TensorReport
from .arrays import pack_nibbles, write_safetensors
from .codecs.groups import Grouping

_GROUPS = (128, 64, 32)
# `Linear` modules that take their matrix from an embedding, so that files lack it:
# tools would look for its integers.
_TIED_HEADS = (
    *("lm_head", "lm_head.decoder", "embed_out", "proj_out"),
    *("cls.predictions.decoder", "predictions.decoder"),
)
_COPIED = (".jinja", ".json", ".model", ".txt")


@dataclasses.dataclass(frozen=True)
class CompressedTensors:
    """A folder of one `.safetensors` file and a `config.json` with its entry.

    Attributes:
        folder: the folder to write to.
        bits: of an integer, 4 or 8.
        keep: patterns of modules that are not quantised; None to go by their roles.
        config: the model's configuration.
        entries: the tensors.
        source: the folder of the model's configuration and tokeniser.
    """

    folder: Path
    bits: int
    keep: Sequence[str] | None
    config: ModelConfig
    entries: Sequence[TensorReport]
    source: Path

    @property
    def file(self) -> Path:
        """The file that the tensors go to."""
        return self.folder / "model.safetensors"

    @functools.cached_property
    def roles(self) -> dict[str, Role]:
        """The role of each tensor by name."""
        return find_roles({e.name: e.shape for e in self.entries}, self.config)

    @functools.cached_property
    def grouping(self) -> Grouping:
        """The longest groups that divide the rows of all matrices; rows for 8 bits."""
        if self.bits == 8:
            return Grouping(8, 0)
        items = self.list_items(self.entries)
        rows = [item.shape[-1] for item in items if not item.why_dense]
        # Rows that no groups divide stay, and must not shorten those of others.
        rows = [row for row in rows if not row % _GROUPS[-1]]
        fitting = (size for size in _GROUPS if not any(row % size for row in rows))
        return Grouping(4, next(fitting))

    def list_items(self, entries: Sequence[TensorReport]) -> list[Item]:
        """Return the tensors of the file."""
        items: list[Item] = []
        for entry in entries:
            role = self.roles[entry.name]
            if self.keep is not None and len(entry.shape) == 2:
                module = entry.name.removesuffix(WEIGHT)
                kept = any(fnmatch.fnmatchcase(module, p) for p in self.keep)
                role = Role.UNNAMED
                if module != entry.name:
                    role = Role.OUTSIDE if kept else Role.LINEAR
            if role is Role.EXPERTS:
                items.extend(_split_experts(entry, self.config))
            else:
                items.append(Item(entry.name, (entry.name,), entry.shape, role.value))
        return items

    def why_not(self, item: Item) -> str:
        """Return why the shape of a tensor does not suit."""
        size = self.grouping.size
        if size and item.shape[-1] % size:
            return f"rows of {item.shape[-1]}, no multiple of {size}"
        return ""

    def round(self, item: Item, array: np.ndarray, place: str) -> Rounded:
        """Round a tensor."""
        dtype = array.dtype if array.dtype.itemsize == 2 else np.dtype(np.float32)
        found = round_to_groups(array, self.grouping, dtype, dtype, place=place)
        integers, steps, decoded = found
        # From 0 up; as many as fit in a word of 32 bits, the first one lowest.
        packed = integers.view(np.uint8) + np.uint8(1 << (self.bits - 1))
        if self.bits == 4:
            packed = pack_nibbles(packed)
        padding = -packed.shape[-1] % 4
        packed = np.ascontiguousarray(np.pad(packed, ((0, 0), (0, padding))))
        words = packed.view("<i4")
        shape = np.array(integers.shape, "<i8")
        parts = [
            Part(f"{item.name}_packed", "int32", words.shape, words.tobytes()),
            Part(f"{item.name}_scale", dtype.name, steps.shape, steps.tobytes()),
            Part(f"{item.name}_shape", "int64", shape.shape, shape.tobytes()),
        ]
        return Rounded(f"int{self.bits}", parts, decoded)

    def write(self, parts: Sequence[Part], dense: set[str], place: str) -> None:
        """Write the file, and the entry into `config.json`, which may be there already.

        The other files of a model, such as its tokeniser's, are copied.

        Args:
            parts: the tensors of the file.
            dense: the names of those that are not quantised.
            place: where they come from, for messages.

        Raises:
            CorruptFileError: the existing file is not a configuration.
            UnsupportedFileError: the file cannot hold a tensor.
        """
        config = ModelConfig.read(self.folder).entries or self.config.entries
        weights = {
            "num_bits": self.bits,
            "type": "int",
            "symmetric": True,
            "strategy": "group" if self.grouping.size else "channel",
            "group_size": self.grouping.size or None,
        }
        kept = [
            part.name.removesuffix(WEIGHT)
            for part in parts
            if part.name in dense
            and part.name.endswith(WEIGHT)
            and len(part.shape) == 2
        ]
        names = {part.name.partition(WEIGHT)[0] for part in parts}
        roles = self.roles
        if Role.EMBEDDING in roles.values() and "lm_head" not in names:
            kept += [head for head in _TIED_HEADS if head not in names]
        nested = (v for v in self.config.entries.values() if isinstance(v, dict))
        if any("model_type" in of_part for of_part in nested):
            # transformers puts the parts of such a model under names of its own.
            kept += [rf"re:.*\.{re.escape(module)}$" for module in kept]
        fused = [n for n, role in roles.items() if role is Role.EXPERTS]
        if fused:
            warnings.warn(
                f"{place}: {fused[0]!r} has all experts in one tensor, and the folder "
                "has a matrix for each: see that your program reads these "
                "(transformers 5 does not for gpt_oss and granitemoe, and goes on with "
                "random ones).",
                stacklevel=3,
            )
        if "_diffusers_version" in self.config.entries:
            warnings.warn(
                f"{place}: diffusers does not read compressed-tensors: write .fxz for "
                "it.",
                stacklevel=3,
            )
        entry = {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
            "ignore": kept,
        }
        whole = {**config, "quantization_config": entry}
        with atomic_folder(self.folder) as made:
            data = {part.name: [part.data] for part in parts}
            write_safetensors(
                made / self.file.name,
                [(part.name, part.kind, part.shape) for part in parts],
                lambda names: map(data.__getitem__, names),
                place,
            )
            if self.config.entries and self.source != self.folder:
                for file in sorted(self.source.iterdir()):
                    if file.suffix in _COPIED and not is_index(file):
                        shutil.copyfile(file, made / file.name)
            write_whole(made / "config.json", json.dumps(whole, indent=2) + "\n")


def _split_experts(entry: TensorReport, config: ModelConfig) -> Iterator[Item]:
    """Yield the matrices of each expert, `(outputs, inputs)` as Linear modules are.

    Gate and up projections that are stored as one become two: halves of the outputs,
    or every other one in models of the type gpt_oss.
    """
    before, _, last = entry.name.removesuffix(WEIGHT).rpartition(".")
    transposed = is_transposed(entry, config)
    count = entry.shape[0]
    rows, columns = entry.shape[:0:-1] if transposed else entry.shape[1:]
    is_interleaved = config.model_type == "gpt_oss"
    pieces = split_gate_up(last, rows, is_interleaved=is_interleaved)
    for expert in range(count):
        for name, piece in pieces.items():
            path = f"{before}.{expert}.{name}" if before else f"{expert}.{name}"
            yield Item(
                f"{path}{WEIGHT}",
                (entry.name,),
                (len(range(rows)[piece]), columns),
                make=functools.partial(_take, expert, piece, transposed=transposed),
            )


def _take(
    expert: int, piece: slice, sources: list[np.ndarray], *, transposed: bool
) -> np.ndarray:
    matrix = sources[0][expert]
    return np.ascontiguousarray((matrix.T if transposed else matrix)[piece])


def is_transposed(entry: TensorReport, config: ModelConfig) -> bool:
    """Whether experts are stored as (inputs, outputs), by type or the hidden length."""
    if config.transposed_experts:
        return True
    _, first, last = entry.shape
    if first == last or not ({first, last} & config.hidden):
        return False
    # The hidden states go in, but for the projection down.
    is_down = "down" in entry.name or "w2" in entry.name or "output" in entry.name
    return (last if is_down else first) in config.hidden
