"""Encode tensors in one or more processes, and keep them so that `save` can resume.

The bytes of a tensor depend on nothing but the tensor, its step and its codec. So they
are the same wherever they are made, and a file that was interrupted goes on from the
tensors that are there.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import os
import queue
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import zstandard

import frugax
from frugax.errors import CorruptFileError, OutputError, UnsupportedFileError
from frugax.fileio import write_whole
from frugax.trees import describe

from .._buckets import in_bucket
from ..arrays import Distortion, dtype_from_name, release
from ..codecs import BLOCK, ChannelScaling, RowScaling, Step, encode_trellis
from ..container import CompressedFile, EncodedTensor, compute_digest, write
from ._source import CountProgress, Source


@dataclasses.dataclass(frozen=True)
class EncodeRequest:
    """A tensor to be coded.

    Attributes:
        source: the tensor.
        step: None for the exact coding.
        codec: use only this one; by default those that suit.
    """

    source: Source
    step: Step | None
    codec: str | None = None


def encode_all(
    requests: Sequence[EncodeRequest], progress: CountProgress = lambda _: None
) -> Iterator[EncodedTensor]:
    """Yield the shortest coding of each tensor, in order."""
    blocks = encode_trellis(
        part
        for request in requests
        for part in request.source.trellis_inputs(request.step, request.codec)
    )
    for request in requests:
        yield request.source.encode(
            request.step, request.codec, trellis_blocks=blocks, progress=progress
        )


class Coder:
    """Codes tensors in some processes, and keeps them in a folder if there is one.

    Args:
        workers: how many processes code, >= 1; one is this process.
        folder: where coded tensors are kept; None to keep none.
    """

    def __init__(
        self, workers: int = 1, folder: str | os.PathLike[str] | None = None
    ) -> None:
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise ValueError(f"workers must be a whole number >= 1, got {workers!r}.")
        self._workers = workers
        if folder is not None and in_bucket(folder):
            raise ValueError(f"{folder}: coded tensors are kept in a local folder.")
        self._folder = None if folder is None else Path(folder)
        self._used: set[Path] = set()
        self._digests: dict[str, str] = {}
        self._processes: list[_Worker] = []

    def __enter__(self) -> "Coder":
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes."""
        for process in self._processes:
            process.end()
        self._processes.clear()

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
            *(scaling, request.step, request.codec),
        )
        return f"{hashlib.sha256(repr(all_of_it).encode()).hexdigest()[:32]}.fxz"

    def _encode(
        self, requests: Sequence[EncodeRequest], progress: CountProgress
    ) -> Iterator[EncodedTensor]:
        batches = [*_batch(requests)]
        if self._workers == 1 or len(batches) < 2:
            yield from encode_all(requests, progress)
            return
        while len(self._processes) < min(self._workers, len(batches)):
            self._processes.append(_Worker())
        idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for process in self._processes:
            idle.put(process)

        def ask(batch: Sequence[EncodeRequest]) -> list[EncodedTensor]:
            process = idle.get()
            try:
                return process.ask(batch)
            finally:
                idle.put(process)

        # As many batches wait as are coded: tensors leave in order, but not so work.
        waiting: collections.deque[concurrent.futures.Future[list[EncodedTensor]]]
        waiting = collections.deque()
        with concurrent.futures.ThreadPoolExecutor(len(self._processes)) as pool:
            try:
                for batch in batches:
                    waiting.append(pool.submit(ask, batch))
                    if len(waiting) == 2 * len(self._processes):
                        yield from waiting.popleft().result()
                while waiting:
                    yield from waiting.popleft().result()
            except BaseException:  # Ctrl-C too, and a caller that stops early
                for future in waiting:
                    future.cancel()
                self.__exit__()
                raise


def _batch(requests: Sequence[EncodeRequest]) -> Iterator[list[EncodeRequest]]:
    """Cut requests into pieces worth sending: small neighbours are coded together."""
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


class _Worker:
    """A process that codes the requested tensors.

    Not by `multiprocessing`, whose processes run the user's script again unless that is
    guarded, or fork one that has JAX's threads.
    """

    def __init__(self) -> None:
        start = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            f"from {__name__} import work; work()"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", start], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._to = cast(BinaryIO, self._process.stdin)
        self._from = cast(BinaryIO, self._process.stdout)

    def ask(self, batch: Sequence[EncodeRequest]) -> list[EncodedTensor]:
        """Let the process code a batch."""
        try:
            _send_requests(self._to, batch)
            return [_unpack_kept(_receive(self._from)) for _ in batch]
        except (OSError, EOFError) as e:
            self._process.kill()
            raise OutputError(
                "a process that coded tensors ended before it was done (exit code "
                f"{self._process.wait()}): if memory ran out, take fewer workers."
            ) from e

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._to, self._from):
            with contextlib.suppress(OSError):
                pipe.close()


def work() -> None:
    """Code requests from standard input until it ends: a process of `Coder`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who asks
    # Nothing else may print between the answers.
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        with contextlib.suppress(EOFError):
            while True:
                for tensor in encode_all(_receive_requests(sys.stdin.buffer)):
                    _send(answers, _pack_kept(tensor))
                answers.flush()


def _send_requests(file: BinaryIO, batch: Sequence[EncodeRequest]) -> None:
    """Write requests as JSON, and their arrays behind it as they are in memory."""
    arrays: list[np.ndarray] = []

    def note(array: np.ndarray | None) -> Any:
        if array is None:
            return None
        arrays.append(array)
        return array.dtype.name, array.shape

    described: list[dict[str, Any]] = []
    for request in batch:
        source, scaling = request.source, request.source.scaling
        row = {"name": source.name, "array": note(source.array), "codec": request.codec}
        if request.step is not None:
            row["step"] = dataclasses.astuple(request.step)
        if isinstance(scaling, RowScaling):
            row["rows"] = dataclasses.astuple(scaling)
        if isinstance(scaling, ChannelScaling):
            known = scaling.columns, scaling.shape, scaling.calibration
            row["channels"] = known
            row["moments"], row["gram"] = note(scaling.moments), note(scaling.gram)
        described.append(row)
    _send(file, json.dumps(described).encode())
    for array in arrays:
        _send(file, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    file.flush()


def _receive_requests(file: BinaryIO) -> list[EncodeRequest]:
    described: list[dict[str, Any]] = json.loads(_receive(file))

    def take(noted: Any) -> Any:
        if noted is None:
            return None
        dtype, shape = noted
        return np.frombuffer(_receive(file), dtype_from_name(dtype)).reshape(shape)

    requests: list[EncodeRequest] = []
    for row in described:
        array, scaling = take(row["array"]), None
        if "rows" in row:
            scaling = RowScaling(*row["rows"])
        if "channels" in row:
            columns, shape, calibration = row["channels"]
            moments, gram = take(row["moments"]), take(row["gram"])
            scaling = ChannelScaling(columns, moments, gram, tuple(shape), calibration)
        source = Source(row["name"], array, scaling)
        step = Step(*row["step"]) if "step" in row else None
        requests.append(EncodeRequest(source, step, row["codec"]))
    return requests


def _send(file: BinaryIO, content: bytes | memoryview) -> None:
    file.write(struct.pack("<Q", len(content)))
    file.write(content)


def _receive(file: BinaryIO) -> bytes:
    (length,) = struct.unpack("<Q", _read(file, 8))
    return _read(file, length)


def _read(file: BinaryIO, length: int) -> bytes:
    content = file.read(length)
    if len(content) < length:
        raise EOFError
    return content
