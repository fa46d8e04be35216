"""Compressed weights back into files that other tools read, a piece at a time."""

import json
import os
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from frugax.budget import SizeBudget
from frugax.errors import UnsupportedFileError
from frugax.fileio import atomic_write

from ._arguments import check_path, check_progress
from ._weights import SAFETENSORS
from .arrays._leaves import dtype_from_name
from .container._file import CompressedFile, open_file
from .container._metadata import Record
from .search._draft import Progress


def export_safetensors(
    file: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    budget: SizeBudget | None = None,
    progress: Progress | None = None,
) -> None:
    """Write the weights in a `.fxz` file as `.safetensors`, under their names.

    Args:
        file: the compressed weights.
        to: the file to write, whole or not at all; one that is there is replaced.
        budget: how much of a progressive file to read; see `frugax.compress.open`.
        progress: called with the share that is done, in [0, 1], and what is being done.

    Raises:
        CorruptFileError: `file` is damaged.
        FileNotFoundError: there is no such file.
        InfeasibleBudgetError: no prefix of `file` is within the budget.
        OutputError: `to` cannot be written.
        UnsupportedFileError: `file` is of another kind, or holds a name or a dtype
            that `.safetensors` has no place for.
        TypeError: a path is none, or the progress no function.
        ValueError: `to` is `file` itself, or does not end in `.safetensors`.
    """
    place = os.fspath(file)
    kinds = {ours: theirs for theirs, ours in SAFETENSORS.items()}
    with _opened(file, to, ".safetensors", budget, progress) as compressed:
        header: dict[str, object] = {}
        if compressed.header.metadata:
            header["__metadata__"] = dict(compressed.header.metadata)
        at = 0
        # As `safetensors` itself orders them: the widest first, so all are aligned.
        records = sorted(
            compressed.header.tensors,
            key=lambda r: (-dtype_from_name(r.dtype).itemsize, r.name),
        )
        for record in records:
            if record.name == "__metadata__":
                raise UnsupportedFileError(
                    f"{place}: a .safetensors file cannot hold a tensor named "
                    "'__metadata__': rename it and compress again, or write an .npz "
                    "file."
                )
            if record.dtype not in kinds:
                raise UnsupportedFileError(
                    f"{place}: tensor {record.name!r} has dtype {record.dtype}, which "
                    "a .safetensors file cannot hold: write an .npz file."
                )
            header[record.name] = {
                "dtype": kinds[record.dtype],
                "shape": list(record.shape),
                "data_offsets": [at, at + record.nbytes],
            }
            at += record.nbytes
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        with atomic_write(to) as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for _, pieces in _decoded(compressed, records, progress):
                out.writelines(pieces)


def export_npz(
    file: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    budget: SizeBudget | None = None,
    progress: Progress | None = None,
) -> None:
    """As `export_safetensors`, but as `.npz`: not packed, to be read by `numpy.load`.

    Raises:
        UnsupportedFileError: a name or a dtype has no place in an `.npz` file.
        ValueError: `to` does not end in `.npz`.
    """
    place = os.fspath(file)
    with _opened(file, to, ".npz", budget, progress) as compressed:
        records = compressed.header.tensors
        for record in records:
            if (
                dtype_from_name(record.dtype).kind == "V"
            ):  # written as bytes of no meaning
                raise UnsupportedFileError(
                    f"{place}: tensor {record.name!r} has dtype {record.dtype}, which "
                    "an .npz file cannot hold: write a .safetensors file."
                )
            if record.name.endswith(".npy") or "\0" in record.name:
                raise UnsupportedFileError(
                    f"{place}: an .npz file cannot hold the name {record.name!r}: "
                    "rename the tensor and compress again."
                )
        # Not `np.savez`: it takes no array named "file".
        with atomic_write(to) as out, zipfile.ZipFile(out, "w") as packed:
            for record, pieces in _decoded(compressed, records, progress):
                dtype = dtype_from_name(record.dtype)
                head = {
                    "descr": np.lib.format.dtype_to_descr(dtype),
                    "fortran_order": False,
                    "shape": record.shape,
                }
                name = f"{record.name}.npy"
                with packed.open(name, "w", force_zip64=True) as member:
                    np.lib.format.write_array_header_1_0(member, head)
                    member.writelines(pieces)


def _opened(
    file: str | os.PathLike[str],
    to: str | os.PathLike[str],
    suffix: str,
    budget: SizeBudget | None,
    progress: Progress | None,
) -> CompressedFile:
    """The weights, to be written into another file.

    Raises:
        TypeError: a path is none, or the progress no function.
        ValueError: `to` is `file` itself, or named as another kind of file.
    """
    check_progress(progress)
    check_path(to)
    if os.path.exists(to) and os.path.samefile(file, to):
        raise ValueError(
            f"{os.fspath(file)} and {os.fspath(to)} are one file: write the weights to "
            "another."
        )
    if Path(to).suffix != suffix:  # by which it is read again
        raise ValueError(f"{os.fspath(to)}: the file must end in {suffix}.")
    return open_file(file, budget=budget)


def _decoded(
    file: CompressedFile, records: Sequence[Record], progress: Progress | None
) -> Iterator[tuple[Record, Iterator[bytes]]]:
    """Every tensor, and its bytes piece by piece: take these before the next one."""
    total, done = max(1, sum(record.nbytes for record in records)), 0
    for record in records:
        if progress is not None:
            progress(done / total, f"decoding {record.name or 'the array'}")
        yield record, (part.tobytes() for _, part in file.parts(record.name))
        done += record.nbytes
    if progress is not None:
        progress(1.0, "done")
