"""Frames, checksums and packing of journal files, for other file formats."""

from ._dtypes import DTYPES, code_of
from ._frames import decode_frame, encode_frame
from ._header import FORMAT, decode_header
from ._packing import compress, decompress, shuffle, unshuffle
from ._values import fits_array

__all__ = [
    "DTYPES",
    "FORMAT",
    "code_of",
    "compress",
    "decode_frame",
    "decode_header",
    "decompress",
    "encode_frame",
    "fits_array",
    "shuffle",
    "unshuffle",
]
