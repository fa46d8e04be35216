"""One zstd frame, unpacked only if it is as small as it should be."""

import zstandard

from frugax.errors import CorruptFileError


def unzstd(data: bytes | memoryview, *, most: int) -> bytes:
    """Decompress one zstd frame of at most `most` bytes.

    Raises:
        CorruptFileError: it is damaged, or longer.
    """
    try:
        # The frame says its length, and zstandard would allocate whatever it says.
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= most:
            raise CorruptFileError(f"a block says it holds {size} bytes, over {most}.")
        return zstandard.ZstdDecompressor().decompress(
            data, max_output_size=most, allow_extra_data=False
        )
    except zstandard.ZstdError as e:
        raise CorruptFileError(f"a zstd block is damaged: {e}.") from e
