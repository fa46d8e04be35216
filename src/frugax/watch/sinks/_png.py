"""Pictures as PNG files, so that nobody has to install an imaging library."""

import struct
import zlib

import numpy as np
from jaxtyping import UInt8

from ._palettes import Palette
from ._picture import Picture

# Pixels that a picture should have on its longer side, or somewhat fewer.
_SEEN = 320


def png(pixels: UInt8[np.ndarray, "rows columns 3"], *, scale: int = 1) -> bytes:
    """Pixels as a PNG file: eight bits each of red, green and blue.

    Args:
        pixels: red, green and blue.
        scale: how many pixels of the file a pixel is wide and high; >= 1.
    """
    large = pixels.repeat(scale, axis=0).repeat(scale, axis=1)
    rows, columns = large.shape[:2]
    # Each row begins with its filter. "Up" writes what changed from the row above,
    # which in scaled cells is mostly nothing.
    lines = np.empty((rows, 1 + 3 * columns), np.uint8)
    lines[:, 0] = 2
    flat = large.reshape(rows, -1)
    lines[0, 1:] = flat[0]
    lines[1:, 1:] = flat[1:] - flat[:-1]
    head = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    body = zlib.compress(lines.tobytes(), 6)
    parts = (b"IHDR", head), (b"IDAT", body), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def picture_png(shown: Picture, palette: Palette) -> bytes:
    """A picture as a PNG file, large enough that single cells are seen."""
    scale = max(1, _SEEN // max(shown.rows, shown.columns))
    return png(shown.colours(palette), scale=scale)


def _chunk(kind: bytes, data: bytes) -> bytes:
    check = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)
