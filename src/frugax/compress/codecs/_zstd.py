"""Compress single zstd frames; decompress them without trusting stated sizes."""

import threading

import zstandard

from frugax.errors import CorruptFileError


class _ThreadLocal(threading.local):
    """Those of a thread: making one takes as long as a small frame."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=19)
        self.decompressor = zstandard.ZstdDecompressor()


_THREAD = _ThreadLocal()


def compress_frame(data: bytes) -> bytes:
    """Compress a short side table, thoroughly."""
    return _THREAD.compressor.compress(data)


def decompress_frame(data: bytes | memoryview, *, max_bytes: int) -> bytes:
    """Decompress one zstd frame of at most `max_bytes` bytes."""
    try:
        # zstandard would allocate whatever length the frame states.
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= max_bytes:
            raise CorruptFileError(
                f"a block says it holds {size} bytes, over {max_bytes}."
            )
        return _THREAD.decompressor.decompress(
            data, max_output_size=max_bytes, allow_extra_data=False
        )
    except zstandard.ZstdError as e:
        raise CorruptFileError(f"a zstd block is damaged: {e}.") from e
