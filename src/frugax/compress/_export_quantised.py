"""Export an `.fxz` file with integers of a fixed rate, for tools that compute so."""

import dataclasses
import json
import math
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from frugax.budget import Receipt, SizeBudget, Spend, Verdict, check_budget
from frugax.errors import UnsupportedFileError
from frugax.fileio import atomic_write

from ._arguments import check_path
from ._compressed_tensors import (
    add_to_config,
    choose_grouping,
    is_linear,
    lay_out,
)
from ._load import SAFETENSORS
from ._table import show_error, tensor_table
from .arrays import Distortion, dtype_from_name, relative_error
from .codecs.groups import Grouping, decode_groups, quantise_groups
from .container import Record, open_file
from .search import Source

# Types of github.com/ggml-org/ggml/blob/master/docs/gguf.md, by dtype and by bits.
_GGML_TYPES = {
    "float32": 0,
    "float16": 1,
    "float64": 28,
    "bfloat16": 30,
    "int8": 24,
    "int16": 25,
    "int32": 26,
    "int64": 27,
}
_GGML_BLOCKS = {4: 2, 8: 8}  # Q4_0 and Q8_0
_GGML_GROUP = 32
_ALIGNMENT = 32


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExportedTensor:
    """One tensor of an exported file.

    Attributes:
        name: its name.
        dtype: its dtype in the `.fxz` file.
        shape: its shape.
        codec: how it stands in the new file.
        bytes: its bytes there.
        rel_error: ||exported - decoded|| / ||decoded||, of the export alone.
        max_abs: largest |exported - decoded|.
        total_rel_error: the most that ||exported - original|| / ||original|| can be,
            with the error that the `.fxz` file states.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    codec: str
    bytes: int
    rel_error: float
    max_abs: float
    total_rel_error: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """An exported file, and the error that its format costs.

    Attributes:
        tensors: one entry for each tensor.
        receipt: the relative error of the export, and the bytes if they are limited.
        file_bytes: length of the file.
        rel_error: ||exported - decoded|| / ||decoded|| over all finite float tensors.
    """

    tensors: tuple[ExportedTensor, ...]
    receipt: Receipt
    file_bytes: int
    rel_error: float

    @property
    def verdict(self) -> Verdict:
        """Whether the limits were kept."""
        return self.receipt.verdict

    def __str__(self) -> str:
        columns: dict[str, Callable[[ExportedTensor], str]] = {
            "error of the export": lambda t: show_error(t.rel_error, 2),
            "in all, at most": lambda t: show_error(t.total_rel_error, 2),
        }
        return f"{tensor_table(self.tensors, columns)}\n{self.receipt}"


def export_quantised(
    file: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    bits: int = 8,
    keep: Sequence[str] = ("*embed*", "*lm_head*"),
    budget: SizeBudget | None = None,
) -> ExportReport:
    """Write the weights of a `.fxz` file as integers that other tools compute with.

    Args:
        file: the compressed weights.
        to: the file to write, whole or not at all; one that is there is replaced.
            A `.gguf` file has float16 steps for groups of 32 (Q4_0 or Q8_0), where
            rows are a multiple of 32 long. A `.safetensors` file has int8 tensors, and
            beside each `NAME` float32 steps `NAME_scale`, one for each row. A name
            without a suffix is a folder in the layout of compressed-tensors, whose
            entry goes into the folder's `config.json`: matrices `X.weight` of 4 bits
            have steps for groups of 128 (64 or 32, where rows need it), those of 8 bits
            for rows. Other tensors, and those with one axis, stay as they are.
        bits: of an integer, 8, or 4 but in `.safetensors`.
        keep: patterns of modules that a folder does not quantise, such as embeddings,
            which are no `Linear` modules.
        budget: a relative error or a size to hold the file against; it changes nothing
            but the verdict.

    Returns:
        The report, with the error against the weights of the `.fxz` file, which has
        errors of its own.

    Raises:
        CorruptFileError: `file` is damaged.
        FileNotFoundError: there is no such file.
        OutputError: `to` cannot be written.
        UnsupportedFileError: the format cannot hold a tensor.
        ValueError: `to` is of another kind, or the format has no integers of so many
            bits.
    """
    check_path(to)
    if budget is not None:
        check_budget(budget, SizeBudget)
    suffix = Path(to).suffix
    if suffix not in ("", ".gguf", ".safetensors"):
        raise ValueError(
            f"{os.fspath(to)}: name a .gguf or a .safetensors file, or a folder."
        )
    if bits not in ((8,) if suffix == ".safetensors" else (4, 8)):
        takes = "8" if suffix == ".safetensors" else "4 or 8"
        raise ValueError(f"{bits} bits: {suffix or 'a folder'} takes {takes}.")
    if not suffix and [*Path(to).glob("*.safetensors")]:
        raise ValueError(f"{os.fspath(to)}: weights are in this folder: name another.")
    if os.path.exists(to) and os.path.samefile(file, to):
        raise ValueError(f"{os.fspath(to)}: write the weights to another file.")
    parts: list[tuple[str, str, tuple[int, ...], bytes]] = []
    tensors: list[ExportedTensor] = []
    total, lost = 0.0, 0.0
    with open_file(file) as compressed:
        records = compressed.header.tensors
        grouping = Grouping(bits, _GGML_GROUP if suffix == ".gguf" else 0)
        if not suffix:
            grouping = choose_grouping(records, bits, keep)
        for name in compressed:
            record, array = compressed.record(name), compressed[name]
            source = Source(name, array)
            codec, error = record.dtype, Distortion()
            wanted = bool(suffix) or is_linear(record, keep)
            if wanted and _is_quantised(source, grouping):
                dtype = np.dtype(np.float16 if suffix == ".gguf" else np.float32)
                if not suffix and array.dtype.itemsize == 2:
                    dtype = array.dtype
                integers, steps = quantise_groups(array, grouping, dtype)
                decoded = decode_groups(integers, steps, grouping, array.dtype)
                error = Distortion.between(decoded.reshape(-1), array.reshape(-1))
                if suffix == ".gguf":
                    codec = f"Q{bits}_0"
                    blocks = _pack_blocks(integers, steps, bits)
                    entries = [(name, codec, array.shape, blocks)]
                else:
                    codec = f"int{bits}"
                    entries = lay_out(name, integers, steps, bits)
            else:
                entries = [(name, record.dtype, array.shape, array.tobytes())]
            parts += entries
            rel_error = relative_error(error.energy, source.energy)
            total, lost = total + source.energy, lost + error.energy
            tensors.append(
                ExportedTensor(
                    name=name,
                    dtype=record.dtype,
                    shape=record.shape,
                    codec=codec,
                    bytes=sum(len(data) for *_, data in entries),
                    rel_error=rel_error,
                    max_abs=error.max_abs,
                    total_rel_error=record.rel_error
                    + rel_error * (1 + record.rel_error),
                )
            )
        place = compressed.place
        if suffix != ".gguf":
            parts.sort(key=_width, reverse=True)  # the widest first: all are aligned
        head = _gguf_head if suffix == ".gguf" else _safetensors_head
        start, padding = head(parts, place)
        written = to if suffix else Path(to) / "model.safetensors"
        with atomic_write(written) as out:
            out.write(start)
            for *_, data in parts:
                out.write(data + bytes(-len(data) % padding))
        if not suffix:
            dense = {t.name for t in tensors if t.codec == t.dtype}
            add_to_config(Path(to) / "config.json", records, dense, grouping)
    file_bytes = os.stat(written).st_size
    rel_error = relative_error(lost, total)
    receipt = _make_receipt(compressed.header.tensors, budget, rel_error, file_bytes)
    return ExportReport(
        tensors=tuple(tensors),
        receipt=receipt,
        file_bytes=file_bytes,
        rel_error=rel_error,
    )


def _width(part: tuple[str, str, tuple[int, ...], bytes]) -> int:
    return dtype_from_name(part[1]).itemsize


def _is_quantised(source: Source, grouping: Grouping) -> bool:
    shape = source.array.shape
    fits = len(shape) >= 2 and (not grouping.size or shape[-1] % grouping.size == 0)
    return fits and 0 < source.max_abs < 1e37


def _pack_blocks(integers: np.ndarray, steps: np.ndarray, bits: int) -> bytes:
    """Return the blocks of Q4_0 or Q8_0: a step, then 32 integers."""
    groups = integers.reshape(-1, _GGML_GROUP)
    if bits == 4:
        # The integers plus 8; the second half of a group in the high nibbles.
        plain = (groups + 8).astype(np.uint8)
        half = _GGML_GROUP // 2
        packed = plain[:, :half] | (plain[:, half:] << 4)
    else:
        packed = groups.view(np.uint8)
    of_groups = steps.astype("<f2").reshape(-1, 1).view(np.uint8)
    return np.concatenate([of_groups, packed], axis=1).tobytes()


def _gguf_head(
    parts: list[tuple[str, str, tuple[int, ...], bytes]], place: str
) -> tuple[bytes, int]:
    """Return what stands before the data of a GGUF file, and its alignment."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    head = b"GGUF" + struct.pack("<IQQ", 3, len(parts), 1)
    head += text("general.architecture") + struct.pack("<I", 8) + text("frugax")
    at = 0
    blocks = {f"Q{bits}_0": kind for bits, kind in _GGML_BLOCKS.items()}
    kinds = _GGML_TYPES | blocks
    for name, kind, shape, data in parts:
        if kind not in kinds or len(shape) > 4 or not name:
            raise UnsupportedFileError(
                f"{place}: tensor {name!r} of {kind} with {len(shape)} axes cannot "
                "stand in a .gguf file: write a .safetensors file."
            )
        sizes = shape[::-1] or (1,)
        head += text(name) + struct.pack("<I", len(sizes))
        head += struct.pack(f"<{len(sizes)}QIQ", *sizes, kinds[kind], at)
        at += len(data) + -len(data) % _ALIGNMENT
    return head + bytes(-len(head) % _ALIGNMENT), _ALIGNMENT


def _safetensors_head(
    parts: list[tuple[str, str, tuple[int, ...], bytes]], place: str
) -> tuple[bytes, int]:
    """Return what stands before the data of a `.safetensors` file, and 1."""
    kinds = {ours: theirs for theirs, ours in SAFETENSORS.items()}
    header: dict[str, object] = {}
    at = 0
    for name, kind, shape, data in parts:
        if kind not in kinds or name in header or name == "__metadata__":
            raise UnsupportedFileError(
                f"{place}: tensor {name!r} of {kind} cannot stand in a .safetensors "
                "file, or has the name of another's steps: rename it."
            )
        header[name] = {
            "dtype": kinds[kind],
            "shape": list(shape),
            "data_offsets": [at, at + len(data)],
        }
        at += len(data)
    plain = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    plain += b" " * (-len(plain) % 8)
    return len(plain).to_bytes(8, "little") + plain, 1


def _make_receipt(
    records: tuple[Record, ...],
    budget: SizeBudget | None,
    rel_error: float,
    file_bytes: int,
) -> Receipt:
    source = "of the export, against the weights of the .fxz file"
    limit = None if budget is None else budget.rel_error
    if limit is None:
        # Without a limit there is nothing to keep: the verdict is "cannot tell".
        limit = math.nan
        source += "; no limit was stated"
    spends: list[Spend] = []
    # A size alone leaves the error without a limit, and says nothing of it.
    if budget is None or budget.rel_error is not None:
        spends.append(
            Spend(
                name="relative error",
                unit="",
                limit=limit,
                measured=rel_error,
                source=source,
            )
        )
    if budget is not None:
        most = budget.limit_bytes(
            original_bytes=sum(r.nbytes for r in records),
            weights=sum(math.prod(r.shape) for r in records),
        )
        if most is not None:
            spends.append(
                Spend(
                    name="file",
                    unit="bytes",
                    limit=most,
                    measured=file_bytes,
                    source="length of the file",
                )
            )
    return Receipt(tuple(spends))
