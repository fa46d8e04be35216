"""Encode tensors in one or more threads, and keep them so that `save` can resume.

The bytes of a tensor depend on nothing but the tensor, its step and its codec. So they
are the same wherever they are made, and a file that was interrupted goes on from the
tensors that are there.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import zstandard

import frugax
from frugax.errors import CorruptFileError, UnsupportedFileError
from frugax.fileio import write_whole
from frugax.options import check_integer
from frugax.trees import describe

from .._buckets import in_bucket
from ..arrays import Distortion, release
from ..codecs import BLOCK, ChannelScaling, encode_grid
from ..container import CompressedFile, EncodedTensor, compute_digest, write
from ._encode import EncodeRequest, encode_tensor, grid_inputs
from ._exact import CountProgress


def encode_all(
    requests: Sequence[EncodeRequest], progress: CountProgress = lambda _: None
) -> Iterator[EncodedTensor]:
    """Yield the shortest coding of each tensor, in order."""
    blocks = encode_grid(part for request in requests for part in grid_inputs(request))
    for request in requests:
        yield encode_tensor(request, blocks=blocks, progress=progress)


class Coder:
    """Codes tensors in some threads, and keeps them in a folder if there is one.

    Args:
        workers: how many threads code, >= 1.
        folder: where coded tensors are kept; None to keep none.
    """

    def __init__(
        self, workers: int = 1, folder: str | os.PathLike[str] | None = None
    ) -> None:
        check_integer("workers", workers)
        self._workers = workers
        if folder is not None and in_bucket(folder):
            raise ValueError(f"{folder}: coded tensors are kept in a local folder.")
        self._folder = None if folder is None else Path(folder)
        self._used: set[Path] = set()
        self._digests: dict[str, str] = {}

    def forget(self) -> None:
        """Delete the parts kept for this work: its file is whole."""
        for path in self._used:
            path.unlink(missing_ok=True)
        if self._folder is not None:
            # Others may keep theirs in it.
            with contextlib.suppress(OSError):
                self._folder.rmdir()

    def encode(
        self, requests: Sequence[EncodeRequest], progress: CountProgress
    ) -> Iterator[EncodedTensor]:
        """Yield the shortest coding of each tensor, in order."""
        if self._folder is None:
            yield from self._encode(requests, progress)
            return
        paths = [self._folder / self._name(request) for request in requests]
        there = [path.exists() for path in paths]
        absent = [r for r, found in zip(requests, there, strict=True) if not found]
        coded = self._encode(absent, progress)
        for request, path, found in zip(requests, paths, there, strict=True):
            tensor = _read_kept(path) if found else next(coded)
            if tensor is None:  # damaged, or gone meanwhile
                (tensor,) = encode_all([request], progress)
                found = False
            if not found:
                write_whole(path, _pack_kept(tensor))
            self._used.add(path)
            yield tensor

    def _name(self, request: EncodeRequest) -> str:
        """Return the file name of a coded tensor: a digest of all its inputs."""
        source, scaling = request.source, request.source.scaling
        if source.name not in self._digests:
            self._digests[source.name] = compute_digest(source.array.reshape(-1))
            release(source.array)
        if isinstance(scaling, ChannelScaling):
            scaling = (scaling.columns, scaling.calibration)
        all_of_it = (
            *(frugax.__version__, zstandard.ZSTD_VERSION),
            *(type(source).__name__, source.name, source.array.dtype.name),
            *(source.array.shape, self._digests[source.name]),
            *(scaling, request.step, request.form),
        )
        return f"{hashlib.sha256(repr(all_of_it).encode()).hexdigest()[:32]}.fxz"

    def _encode(
        self, requests: Sequence[EncodeRequest], progress: CountProgress
    ) -> Iterator[EncodedTensor]:
        batches = [*_batch(requests)]
        if self._workers == 1 or len(batches) < 2:
            yield from encode_all(requests, progress)
            return
        # As many batches wait as are coded: tensors leave in order, but not so work.
        waiting: collections.deque[concurrent.futures.Future[list[EncodedTensor]]]
        waiting = collections.deque()
        with concurrent.futures.ThreadPoolExecutor(self._workers) as pool:
            try:
                for batch in batches:
                    waiting.append(pool.submit(lambda b: [*encode_all(b)], batch))
                    if len(waiting) == 2 * self._workers:
                        yield from waiting.popleft().result()
                while waiting:
                    yield from waiting.popleft().result()
            finally:  # after Ctrl-C, and where the caller stops early
                pool.shutdown(wait=False, cancel_futures=True)


def _batch(requests: Sequence[EncodeRequest]) -> Iterator[list[EncodeRequest]]:
    """Cut requests into pieces of work: small neighbours are coded together."""
    batch: list[EncodeRequest] = []
    numbers = 0
    for request in requests:
        size = request.source.array.size
        if batch and numbers + size > BLOCK:
            yield batch
            batch, numbers = [], 0
        batch.append(request)
        numbers += size
    if batch:
        yield batch


def _pack_kept(tensor: EncodedTensor) -> bytes:
    # A file of its own, with the exact errors, which the header rounds.
    error = {"energy": tensor.error.energy.hex(), "max_abs": tensor.error.max_abs.hex()}
    leaf = np.zeros(0)  # stands for the tensor, whose name is all that counts here
    structure = describe({tensor.record.name: leaf} if tensor.record.name else leaf)
    return write({"structure": structure, "metadata": error}, [tensor])


def _read_kept(path: Path) -> EncodedTensor | None:
    """Return a tensor that was kept; None if the file is damaged or gone."""
    try:
        return _unpack_kept(path.read_bytes())
    except (OSError, CorruptFileError, UnsupportedFileError):
        return None


def _unpack_kept(content: bytes) -> EncodedTensor:
    file = CompressedFile(content, place="a coded tensor")
    file.check()
    (record,) = file.header.tensors
    blocks = tuple(file.blocks(record.name))
    error = {key: float.fromhex(n) for key, n in file.header.metadata.items()}
    record = dataclasses.replace(record, chunks=())
    return EncodedTensor(record, blocks, Distortion(**error))
