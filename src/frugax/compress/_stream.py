"""Exact weights to a file tensor by tensor: memory holds one, not the model."""

import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from frugax.errors import CorruptFileError
from frugax.files import replacing

from . import _lossless
from ._arrays import dtype_named
from ._codecs import lossless_blocks
from ._container import BLOCK, Digest, Header, Record, block_of, digest_of, read_header
from ._mapped import let_go, let_go_of
from ._writer import ContainerWriter


def write_exact(
    path: str | os.PathLike[str],
    arrays: Mapping[str, np.ndarray],
    structure: Any,
    progress: Callable[[float, str], None] | None = None,
) -> tuple[Header, int]:
    """Write a file of exact weights whole or not at all, and read it back first.

    The bytes are those of `compress` with no error allowed. Of arrays over a mapped
    file only those in hand are in memory.

    Args:
        path: where the file will stand.
        arrays: every leaf by name; contiguous, little-endian.
        structure: how the tree is built; see `frugax.trees.describe`.
        progress: told how far it is, from 0 to 1, and what is done now.

    Returns:
        What the file says of itself, and its length in bytes.

    Raises:
        CorruptFileError: the file does not hold what was meant: a bug, never seen.
        OutputError: the file could not be written.
    """
    told = progress or (lambda done, what: None)
    total, done = max(1, sum(a.nbytes for a in arrays.values())), 0
    with replacing(path) as file:
        writer = ContainerWriter(file.write)
        for name, array in arrays.items():
            told(0.75 * done / total, f"coding {name}")
            _write(writer, name, array)
            let_go(array)
            done += array.nbytes
        length = writer.close(structure)
        file.flush()
        told(0.75, "checking")
        header = _read_back(file.fileno())
    told(1.0, "checking")
    return header, length


def _write(writer: ContainerWriter, name: str, array: np.ndarray) -> None:
    flat = array.reshape(-1)
    codec, blocks = "lossless", _blocks(flat)
    if flat.size <= BLOCK:
        codec, blocks = lossless_blocks(array)
    record = Record(
        name=name,
        dtype=array.dtype.name,
        shape=array.shape,
        codec=codec,
        step=None,
        rel_error=0.0,
        max_abs=0.0,
        digest=digest_of(flat.view(np.uint8)),
        chunks=(),
    )
    writer.add(record, blocks)


def _blocks(flat: np.ndarray) -> Iterator[bytes]:
    for first in range(0, flat.size, BLOCK):
        yield _lossless.encode(flat[first : first + BLOCK])


def _read_back(handle: int) -> Header:
    """Decode what was written, chunk by chunk; the digests are of the originals.

    Raises:
        CorruptFileError: a tensor is another one.
    """
    with (
        mmap.mmap(handle, 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as file,
    ):
        header = read_header(file)
        for record in header.tensors:
            digest = Digest()
            for i, chunk in enumerate(record.chunks):
                with block_of(file, header, chunk) as block:
                    if record.codec == "lossless":
                        size = min(BLOCK, record.size - i * BLOCK)
                        values = _lossless.decode(
                            block, dtype_named(record.dtype), size
                        )
                        digest.update(values.view(np.uint8).data)
                    else:
                        digest.update(block)
                let_go_of(mapped, 0, len(mapped))
            if digest.hexdigest() != record.digest:
                raise CorruptFileError(
                    f"the file just made: {record.name!r} does not come back."
                )
    return header
