"""Export an `.fxz` file to `.safetensors` or `.npz`, which other tools read."""

import json
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from frugax.errors import UnsupportedFileError
from frugax.fileio import atomic_folder, atomic_write, write_whole

from ._arguments import MonotonicProgress, Progress, check_path, check_progress
from ._batches import batches
from ._folder import SHARD_INDEX
from .arrays import dtype_from_name, write_safetensors
from .container import CompressedFile, Record, open_file

_SHARD_BYTES = 5 * 10**9  # as Hugging Face's tools cut them


def export_safetensors(
    file: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
) -> None:
    """Write the weights in a `.fxz` file as `.safetensors`, under their names.

    Args:
        file: the compressed weights.
        to: the file to write, whole or not at all; one that is there is replaced. Or a
            folder, named without a suffix: it gets files of up to 5 GB with an index,
            as Hugging Face's have.
        progress: called with the share that is done, in [0, 1], and the name of the
            work.

    Raises:
        CorruptFileError: `file` is damaged.
        FileNotFoundError: there is no such file.
        OutputError: `to` cannot be written.
        UnsupportedFileError: `file` is of another kind, or holds a name or a dtype
            that `.safetensors` cannot hold.
        TypeError: a path is not a path, or `progress` is not a function.
        ValueError: `to` is `file` itself, or is neither a folder nor ends in
            `.safetensors`.
    """
    suffix = "" if not Path(to).suffix or Path(to).is_dir() else ".safetensors"
    with _open_source(file, to, suffix, progress) as compressed:
        records, pieces = compressed.header.tensors, _Pieces(compressed, progress)
        if suffix:
            _write_shard(compressed, records, Path(to), pieces)
        else:
            shards = [*batches(records, lambda r: r.nbytes, _SHARD_BYTES)] or [[]]
            names = [
                f"model-{i:05}-of-{len(shards):05}.safetensors"
                for i in range(1, len(shards) + 1)
            ]
            if len(shards) == 1:
                names = ["model.safetensors"]
            with atomic_folder(to) as folder:
                for name, shard in zip(names, shards, strict=True):
                    _write_shard(compressed, shard, folder / name, pieces)
                if len(shards) > 1:
                    index = _index_shards(dict(zip(names, shards, strict=True)))
                    write_whole(folder / SHARD_INDEX, json.dumps(index, indent=2))
        pieces.finish()


def _index_shards(shards: Mapping[str, Sequence[Record]]) -> dict[str, object]:
    """Return the index of files by the tensors in each."""
    files = {record.name: name for name, shard in shards.items() for record in shard}
    total = sum(record.nbytes for shard in shards.values() for record in shard)
    return {"metadata": {"total_size": total}, "weight_map": files}


def _write_shard(
    compressed: CompressedFile, records: Sequence[Record], to: Path, pieces: "_Pieces"
) -> None:
    by_name = {record.name: record for record in records}
    entries = [(r.name, r.dtype, r.shape) for r in records]
    decode = lambda names: (pieces.read(by_name[name]) for name in names)
    # The name of the file in errors is the one that was compressed.
    metadata = compressed.header.metadata
    write_safetensors(to, entries, decode, compressed.place, metadata)


def export_npz(
    file: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
) -> None:
    """Write the weights as `export_safetensors` does, but as uncompressed `.npz`.

    Raises:
        UnsupportedFileError: a name or a dtype cannot stand in an `.npz` file.
        ValueError: `to` does not end in `.npz`.
    """
    place = os.fspath(file)
    with _open_source(file, to, ".npz", progress) as compressed:
        records, pieces = compressed.header.tensors, _Pieces(compressed, progress)
        for record in records:
            if dtype_from_name(record.dtype).kind == "V":  # read as void
                raise UnsupportedFileError(
                    f"{place}: tensor {record.name!r} has dtype {record.dtype}, which "
                    "an .npz file cannot hold: write a .safetensors file."
                )
            # `np.load` strips that ending, and a zip cuts names at a NUL: another name
            # would be read.
            if record.name.endswith(".npy") or "\0" in record.name:
                raise UnsupportedFileError(
                    f"{place}: an .npz file cannot hold the name {record.name!r}: "
                    "rename the tensor and compress again."
                )
        # Not `np.savez`, which takes no array named "file".
        with atomic_write(to) as out, zipfile.ZipFile(out, "w") as packed:
            for record in records:
                dtype = dtype_from_name(record.dtype)
                head = {
                    "descr": np.lib.format.dtype_to_descr(dtype),
                    "fortran_order": False,
                    "shape": record.shape,
                }
                name = f"{record.name}.npy"
                # A streamed member has no known size, and without zip64 it may not pass
                # 2 GiB.
                with packed.open(name, "w", force_zip64=True) as member:
                    np.lib.format.write_array_header_1_0(member, head)
                    member.writelines(pieces.read(record))
        pieces.finish()


def _open_source(
    file: str | os.PathLike[str],
    to: str | os.PathLike[str],
    suffix: str,
    progress: Progress | None,
) -> CompressedFile:
    # Open the weights, after all arguments are checked.
    check_progress(progress)
    check_path(to, local=True)
    # The same inode and not the same text: a link to the source is the source.
    if os.path.exists(to) and os.path.samefile(file, to):
        raise ValueError(
            f"{os.fspath(file)} and {os.fspath(to)} are one file: write the weights to "
            "another."
        )
    if suffix and Path(to).suffix != suffix:  # readers go by the suffix
        raise ValueError(f"{os.fspath(to)}: the file must end in {suffix}.")
    compressed = open_file(file)
    compressed.check()
    return compressed


class _Pieces:
    """The tensors of a file as bytes, and the share of them that was read."""

    def __init__(self, file: CompressedFile, progress: Progress | None) -> None:
        self._file, self._report = file, MonotonicProgress(progress)
        self._total = max(1, sum(record.nbytes for record in file.header.tensors))
        self._done = 0

    def read(self, record: Record) -> Iterator[bytes]:
        """Yield the bytes of a tensor."""
        what = f"decoding {record.name or 'the array'}"
        self._report(self._done / self._total, what)
        for _, part in self._file.parts(record.name):
            yield part.tobytes()
        self._done += record.nbytes

    def finish(self) -> None:
        """Report that all were read."""
        self._report.finish()
