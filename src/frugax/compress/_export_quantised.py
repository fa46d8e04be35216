"""Export weights as integers: GGUF or a folder of compressed-tensors."""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from frugax.budget import Receipt, SizeBudget, SpendName, Verdict, check_budget

from ._arguments import MonotonicProgress, Progress, check_path
from ._compressed_tensors import CompressedTensors
from ._export_layout import Item, Part, Rounded, keep as keep_dense, open_weights
from ._gguf import GGUF
from ._roles import ModelConfig, Role, find_roles
from ._rounded_before import refuse_rounded
from ._tensor_table import (
    Columns,
    TensorReport,
    limited,
    show_error,
    show_spends,
    summary_table,
    tensor_table,
)
from .arrays import QUANTISABLE, Distortion, Tensor, relative_error


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExportedTensor(TensorReport):
    """One tensor of an exported file; its errors are those of the export alone.

    Attributes:
        total_rel_error: the most that ||exported - original|| / ||original|| can be,
            with the error that the `.fxz` file states.
        why_dense: why it stays as it is; empty where it is rounded.
    """

    total_rel_error: float
    why_dense: str = ""


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

    @property
    def quantised(self) -> int:
        """How many tensors are rounded, at least in part."""
        return sum(not (t.why_dense or t.tied) for t in self.tensors)

    @property
    def dense_share(self) -> float:
        """The share of the float weights, by number, that stay as they are."""
        floats = [t for t in self.tensors if t.dtype in QUANTISABLE]
        total = sum(t.own_size for t in floats)
        return sum(t.own_size for t in floats if t.why_dense) / max(1, total)

    def summary(self) -> str:
        """Return one table with a row for each kind of tensor, and what stays."""
        whole = {"file_bytes": self.file_bytes, "rel_error": self.rel_error}
        return (
            f"{summary_table(self.tensors, **whole)}\n{self._shares}"
            f"{show_spends(self.receipt)}"
        )

    def __str__(self) -> str:
        columns: Columns = {
            "error of the export": lambda t: show_error(t.rel_error, 2),
            "in all, at most": lambda t: show_error(t.total_rel_error, 2),
            "stays, being": lambda t: t.why_dense,
        }
        return f"{tensor_table(self.tensors, columns)}\n{self._shares}\n{self.receipt}"

    @property
    def _shares(self) -> str:
        weights = sum(t.own_size for t in self.tensors)
        return (
            f"{self.quantised} of {len(self.tensors)} tensors are rounded, and "
            f"{100 * self.dense_share:.3g}% of the weights stay as they are; "
            f"{8 * self.file_bytes / max(1, weights):.3g} bits per weight in all"
        )


def export_quantised(
    file: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    bits: int = 8,
    keep: Sequence[str] | None = None,
    config: str | os.PathLike[str] | None = None,
    budget: SizeBudget | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Write weights as integers that other tools compute with.

    Args:
        file: the compressed weights, or what `load_weights` reads.
        to: the file to write, whole or not at all; one that is there is replaced.
            A `.gguf` file has blocks of ggml: Q4_K (with Q6_K for an output head),
            Q6_K or Q8_0. Rows whose length is not a multiple of 256 have Q4_0 or Q8_0;
            where it is not a multiple of 32, they stay. With a configuration of a known
            model type, the file has the names and metadata llama.cpp loads, and the
            vocabulary of a `tokenizer.json` beside. A name without a suffix is a folder
            in the layout of compressed-tensors, whose entry goes into the folder's
            `config.json`: matrices `X.weight` of 4 bits have steps for groups of 128
            (64 or 32, where rows need it), those of 8 bits for rows, and experts stored
            as one tensor become matrices of each. Embeddings, output heads, routers and
            tensors with one axis stay as they are.
        bits: of an integer: 4, 6 or 8 in `.gguf`, 4 or 8 in a folder.
        keep: patterns of modules that a folder does not quantise, in place of those
            that are embeddings, heads and routers by the configuration, their shapes
            and places.
        config: the model's `config.json`, or the folder that has one; by default that
            in `to`, or beside `file`.
        budget: a relative error, a size or both to hold the file against; it changes
            nothing but the verdict.
        progress: called with the share that is done, in [0, 1], and the name of the
            work.

    Returns:
        The report, with the error against the weights of `file`, which may have errors
        of their own.

    Raises:
        CorruptFileError: `file` is damaged, or the configuration is.
        FileNotFoundError: there is no such file.
        OutputError: `to` cannot be written.
        UnsupportedFileError: the format cannot hold a tensor, or the weights are
            integers beside their steps already.
        ValueError: `to` is of another kind, the format has no integers of so many
            bits, or the budget limits another error.
    """
    check_path(to, local=True)
    if budget is not None:
        check_budget(budget, SizeBudget)
        for name in ("max_abs", "output_error"):
            if getattr(budget, name) is not None:
                raise ValueError(
                    f"{name} is not measured of integers: state rel_error or a size."
                )
    suffix = Path(to).suffix if not Path(to).is_dir() else ""
    if suffix not in ("", ".gguf"):
        raise ValueError(f"{os.fspath(to)}: name a .gguf file or a folder.")
    takes = {".gguf": (4, 6, 8), "": (4, 8)}[suffix]
    if bits not in takes:
        raise ValueError(
            f"bits={bits!r}: {suffix or 'a folder'} takes "
            f"{' or '.join(map(str, takes))}."
        )
    if not suffix and [*Path(to).glob("*.safetensors")]:
        raise ValueError(f"{os.fspath(to)}: weights are in this folder: name another.")
    if os.path.exists(to) and os.path.samefile(file, to):
        raise ValueError(f"{os.fspath(to)}: write the weights to another file.")
    report = MonotonicProgress(progress)
    place = os.fspath(file)
    with open_weights(file) as (weights, every):
        refuse_rounded((e.name, e.dtype, len(e.shape)) for e in every)
        folder = _find_folder(file, to, config)
        known = ModelConfig.read(folder)
        left_out = _find_tied_heads(every, known)
        entries = tuple(e for e in every if e.name not in left_out)
        writer: _Writer = GGUF(Path(to), bits, known, folder, place)
        if not suffix:
            writer = CompressedTensors(Path(to), bits, keep, known, entries, folder)
        exported = _Exported(weights, every, writer, place)
        items = writer.list_items(entries)
        for i, item in enumerate(items):
            report(i / len(items), f"rounding {item.name or 'the array'}")
            exported.add(item)
        writer.write(exported.parts, exported.dense, place)
    report.finish()
    file_bytes = os.stat(writer.file).st_size
    tensors = exported.list_tensors(left_out)
    rel_error = exported.rel_error
    return ExportReport(
        tensors=tensors,
        receipt=_make_receipt(every, budget, rel_error, file_bytes),
        file_bytes=file_bytes,
        rel_error=rel_error,
    )


@runtime_checkable
class _Writer(Protocol):
    """One format to export to; `GGUF` and its like say what each member is."""

    @property
    def file(self) -> Path: ...
    def list_items(self, entries: Sequence[TensorReport]) -> list[Item]: ...
    def why_not(self, item: Item) -> str: ...
    def round(self, item: Item, array: np.ndarray, place: str) -> Rounded: ...
    def write(self, parts: Sequence[Part], dense: set[str], place: str) -> None: ...


def _find_folder(
    file: str | os.PathLike[str],
    to: str | os.PathLike[str],
    config: str | os.PathLike[str] | None,
) -> Path:
    """Return the folder of the model's configuration and tokeniser."""
    if config is not None:
        path = Path(config)
        return path if path.is_dir() else path.parent
    if Path(to).is_dir() and (Path(to) / "config.json").exists():
        return Path(to)
    return Path(file) if Path(file).is_dir() else Path(file).parent


def _find_tied_heads(
    entries: Sequence[TensorReport], config: ModelConfig
) -> dict[str, str]:
    """Return the originals of tied heads, which files of the model leave out."""
    if not config.has_tied_head():
        return {}
    roles = find_roles({e.name: e.shape for e in entries}, config)
    copies: dict[str, list[str]] = {}
    for entry in entries:
        copies.setdefault(entry.tied or entry.name, []).append(entry.name)
    heads: dict[str, str] = {}
    for names in copies.values():
        kept = [name for name in names if roles[name] is not Role.HEAD]
        if kept:
            heads |= {name: kept[0] for name in names if name not in kept}
    return heads


class _Exported:
    """Tensors that are ready to be written, and their errors against the originals.

    A row of the report is a tensor of the weights; of the file where several were put
    together.
    """

    def __init__(
        self,
        weights: Mapping[str, np.ndarray],
        entries: Sequence[TensorReport],
        writer: _Writer,
        place: str,
    ) -> None:
        self.parts: list[Part] = []
        self.dense: set[str] = set()
        self._weights, self._writer, self._place = weights, writer, place
        self._entries = {entry.name: entry for entry in entries}
        self._rows: dict[str, list[tuple[Rounded, Distortion, float, str]]] = {}
        self._rows_of: dict[str, Item] = {}
        self._last: tuple[tuple[str, ...], list[np.ndarray]] = ((), [])

    def add(self, item: Item) -> None:
        """Read, round and measure one tensor of the file."""
        if self._last[0] != item.sources:  # an expert of the same tensor
            arrays = [self._weights[name] for name in item.sources]
            self._last = item.sources, arrays
        arrays = self._last[1]
        array = arrays[0] if item.make is None else item.make(arrays)
        source, error = Tensor(item.name, array), Distortion()
        why = item.why_dense or self._why_not(item, source)
        if why:
            rounded = keep_dense(item.name, array)
            self.dense.add(item.name)
        else:
            place = f"{self._place}: tensor {item.name!r}"
            rounded = self._writer.round(item, array, place)
            error = Distortion.between(rounded.decoded, array)
        self.parts.extend(rounded.parts)
        row = item.sources[0] if len(item.sources) == 1 else item.name
        kept = rounded._replace(decoded=np.empty(0))  # its bytes are enough
        self._rows.setdefault(row, []).append((kept, error, source.energy, why))
        self._rows_of[row] = item

    def _why_not(self, item: Item, source: Tensor) -> str:
        if source.array.dtype.name not in QUANTISABLE:
            return f"of {source.array.dtype.name}"
        if not 0 < source.max_abs < 1e37:
            return "not finite" if source.count_not_finite() else "zeros, or too large"
        return self._writer.why_not(item)

    def list_tensors(self, tied: Mapping[str, str]) -> tuple[ExportedTensor, ...]:
        """Return the rows of the report, and those of tensors that are tied."""
        rows = {name: self._row(name, self._rows_of[name]) for name in self._rows}
        for name, other in tied.items():
            # The other one may have another name in the file, and be in parts there.
            of = {"name": name, "codec": "tied", "tied": other, "bytes": 0}
            rows[name] = dataclasses.replace(rows[other], **of, why_dense="")
        return tuple(rows.values())

    def _row(self, name: str, item: Item) -> ExportedTensor:
        pieces = self._rows[name]
        first = self._entries[item.sources[0]]
        error = sum((error for _, error, _, _ in pieces), Distortion())
        rel_error = relative_error(error.energy, math.fsum(p[2] for p in pieces))
        before = max(self._entries[source].rel_error for source in item.sources)
        dense = [why for *_, why in pieces if why]
        return ExportedTensor(
            name=name,
            dtype=first.dtype,
            shape=first.shape if name == first.name else item.shape,
            codec=next((p[0].codec for p in pieces if not p[3]), pieces[0][0].codec),
            bytes=sum(len(part.data) for p in pieces for part in p[0].parts),
            rel_error=rel_error,
            max_abs=error.max_abs,
            total_rel_error=before + rel_error * (1 + before),
            why_dense=dense[0] if len(dense) == len(pieces) else "",
        )

    @property
    def rel_error(self) -> float:
        """The error over all finite float tensors."""
        pieces = [piece for row in self._rows.values() for piece in row]
        return relative_error(
            math.fsum(error.energy for _, error, _, _ in pieces),
            math.fsum(energy for _, _, energy, _ in pieces),
        )


def _make_receipt(
    entries: Sequence[TensorReport],
    budget: SizeBudget | None,
    rel_error: float,
    file_bytes: int,
) -> Receipt:
    source = "of the export, against the weights that were read"
    # Without a limit the verdict is "cannot tell". A size alone says nothing of errors.
    limit, most = math.nan, None
    if budget is not None:
        limit, own = budget.rel_error, [e for e in entries if not e.tied]
        most = budget.limit_bytes(
            original_bytes=sum(e.original_bytes for e in own),
            weights=sum(math.prod(e.shape) for e in own),
        )
    of_errors = limited(
        limit, name=SpendName.REL_ERROR, unit="", measured=rel_error, source=source
    )
    of_file = limited(
        most,
        name=SpendName.FILE,
        unit="bytes",
        measured=file_bytes,
        source="length of the file",
    )
    return Receipt(of_errors + of_file)
