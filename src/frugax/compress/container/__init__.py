"""The `.fxz` file: written in one pass, read tensor by tensor, never trusted."""

from ._file import CompressedFile, decompress, open_file
from ._metadata import (
    Digest,
    EncodedTensor,
    Header,
    Layer,
    Record,
    compute_digest,
)
from ._prefix import Prefix, list_prefixes
from ._writer import LayeredWriter, write

__all__ = [
    "CompressedFile",
    "Digest",
    "EncodedTensor",
    "Header",
    "Layer",
    "LayeredWriter",
    "Prefix",
    "Record",
    "compute_digest",
    "decompress",
    "list_prefixes",
    "open_file",
    "write",
]
