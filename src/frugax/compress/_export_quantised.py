"""Export an `.fxz` file as int4 or int8: GGUF, safetensors or compressed-tensors."""

import dataclasses
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from frugax.budget import Receipt, SizeBudget, Verdict, check_budget
from frugax.errors import UnsupportedFileError

from ._arguments import check_path
from ._compressed_tensors import CompressedTensors
from ._gguf import GGUF
from ._int8_safetensors import Int8Safetensors, Part
from ._limits import Limit, make_receipt
from ._tensor_table import Columns, TensorRow, show_error, tensor_table
from .arrays import Distortion, relative_error
from .codecs.groups import Grouping, decode_groups, quantise_groups
from .container import CompressedFile, Record, open_file
from .search import Source


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExportedTensor(TensorRow):
    """One tensor of an exported file; its errors are those of the export alone.

    Attributes:
        total_rel_error: the most that ||exported - original|| / ||original|| can be,
            with the error that the `.fxz` file states.
    """

    total_rel_error: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """An exported file, and the error that its format costs.

    Attributes:
        tensors: one entry for each tensor.
        receipt: the relative error of the export, and the bytes if they are limited.
        file_bytes: length of the file.
        rel_error: ||exported - decoded|| / ||decoded|| over all finite float tensors.
        unnamed: the matrices that a folder keeps as they are because their names do
            not end in `.weight`.
    """

    tensors: tuple[ExportedTensor, ...]
    receipt: Receipt
    file_bytes: int
    rel_error: float
    unnamed: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Whether the limits were kept."""
        return self.receipt.verdict

    def __str__(self) -> str:
        columns: Columns = {
            "error of the export": lambda t: show_error(t.rel_error, 2),
            "in all, at most": lambda t: show_error(t.total_rel_error, 2),
        }
        note = ""
        if self.unnamed:
            note = (
                f"\n{len(self.unnamed)} matrices stay as they are, such as "
                f"{self.unnamed[0]!r}: a folder's quantised ones end in '.weight'."
            )
        return f"{tensor_table(self.tensors, columns)}{note}\n{self.receipt}"


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
    check_path(to, local=True)
    if budget is not None:
        check_budget(budget, SizeBudget)
    suffix = Path(to).suffix
    if suffix not in ("", ".gguf", ".safetensors"):
        raise ValueError(
            f"{os.fspath(to)}: name a .gguf or a .safetensors file, or a folder."
        )
    if bits not in ((8,) if suffix == ".safetensors" else (4, 8)):
        takes = "8" if suffix == ".safetensors" else "4 or 8"
        raise ValueError(f"bits={bits!r}: {suffix or 'a folder'} takes {takes}.")
    if not suffix and [*Path(to).glob("*.safetensors")]:
        raise ValueError(f"{os.fspath(to)}: weights are in this folder: name another.")
    if os.path.exists(to) and os.path.samefile(file, to):
        raise ValueError(f"{os.fspath(to)}: write the weights to another file.")
    with open_file(file) as compressed:
        records = compressed.header.tensors
        writer: _Writer
        unnamed: tuple[str, ...] = ()
        match suffix:
            case ".gguf":
                writer = GGUF(Path(to), bits)
            case ".safetensors":
                writer = Int8Safetensors(Path(to))
            case _:
                writer = CompressedTensors(Path(to), bits, keep, records)
                unnamed = writer.unnamed
        grouping = writer.grouping
        exported = [_export(compressed, r, writer, grouping) for r in records]
        parts = [part for each in exported for part in each.parts]
        dense = {e.tensor.name for e in exported if e.tensor.codec == e.tensor.dtype}
        writer.write(parts, dense, compressed.place)
    file_bytes = os.stat(writer.file).st_size
    rel_error = relative_error(
        math.fsum(each.lost for each in exported),
        math.fsum(each.energy for each in exported),
    )
    return ExportReport(
        tensors=tuple(each.tensor for each in exported),
        receipt=_make_receipt(records, budget, rel_error, file_bytes),
        file_bytes=file_bytes,
        rel_error=rel_error,
        unnamed=unnamed,
    )


@runtime_checkable
class _Writer(Protocol):
    """One format to export to; `GGUF` and its like say what each member is."""

    @property
    def file(self) -> Path: ...
    @property
    def grouping(self) -> Grouping: ...
    def takes(self, record: Record) -> bool: ...
    def steps_dtype(self, array: np.ndarray) -> "np.dtype[Any]": ...
    def lay_out(
        self, name: str, integers: np.ndarray, steps: np.ndarray
    ) -> tuple[str, list[Part]]: ...
    def write(self, parts: Sequence[Part], dense: set[str], place: str) -> None: ...


@dataclasses.dataclass(frozen=True)
class _Exported:
    """A tensor ready to be written, and the squared norms of it and of its error."""

    tensor: ExportedTensor
    parts: list[Part]
    energy: float
    lost: float


def _export(
    compressed: CompressedFile, record: Record, writer: _Writer, grouping: Grouping
) -> _Exported:
    array = compressed[record.name]
    source, error = Source(record.name, array), Distortion()
    if writer.takes(record) and _is_quantised(source, grouping):
        integers, steps = quantise_groups(array, grouping, writer.steps_dtype(array))
        if not np.isfinite(steps.astype(np.float32)).all():
            raise UnsupportedFileError(
                f"{compressed.place}: tensor {record.name!r} has numbers up to "
                f"{source.max_abs:.3g}, whose steps are beyond {steps.dtype.name}: "
                "scale its weights down."
            )
        decoded = decode_groups(integers, steps, grouping, array.dtype)
        error = Distortion.between(decoded.reshape(-1), array.reshape(-1))
        codec, parts = writer.lay_out(record.name, integers, steps)
    else:
        codec = record.dtype
        parts = [Part(record.name, codec, array.shape, array.tobytes())]
    rel_error = relative_error(error.energy, source.energy)
    tensor = ExportedTensor.measure(
        *(record.name, array, source.energy, error),
        codec=codec,
        bytes=sum(len(part.data) for part in parts),
        total_rel_error=record.rel_error + rel_error * (1 + record.rel_error),
    )
    return _Exported(tensor, parts, source.energy, error.energy)


def _is_quantised(source: Source, grouping: Grouping) -> bool:
    shape = source.array.shape
    fits = len(shape) >= 2 and (not grouping.size or shape[-1] % grouping.size == 0)
    return fits and 0 < source.max_abs < 1e37


def _make_receipt(
    records: Sequence[Record],
    budget: SizeBudget | None,
    rel_error: float,
    file_bytes: int,
) -> Receipt:
    source = "of the export, against the weights of the .fxz file"
    # Without a limit the verdict is "cannot tell". A size alone says nothing of errors.
    limit, most = math.nan, None
    if budget is not None:
        limit = budget.rel_error
        most = budget.limit_bytes(
            original_bytes=sum(r.nbytes for r in records),
            weights=sum(math.prod(r.shape) for r in records),
        )
    return make_receipt(
        Limit("relative error", "", limit, None, rel_error, source),
        Limit("file", "bytes", most, None, file_bytes, "length of the file"),
    )
