"""One zstd frame, unpacked only if it is as small as it should be."""

import threading

import zstandard

from frugax.errors import CorruptFileError


class _OfThread(threading.local):
    """A decompressor for each thread: making one takes as long as a small frame."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor()


_OF_THREAD = _OfThread()


def decompress_frame(data: bytes | memoryview, *, most: int) -> bytes:
    """Decompress one zstd frame of at most `most` bytes.

    Raises:
        CorruptFileError: it is damaged, or longer.
    """
    try:
        # The frame says its length, and zstandard would allocate whatever it says.
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= most:
            raise CorruptFileError(f"a block says it holds {size} bytes, over {most}.")
        return _OF_THREAD.decompressor.decompress(
            data, max_output_size=most, allow_extra_data=False
        )
    except zstandard.ZstdError as e:
        raise CorruptFileError(f"a zstd block is damaged: {e}.") from e
