"""The `.fxz` file: written in one pass, read tensor by tensor, trusted in nothing."""

from ._file import CompressedFile
from ._metadata import Header, Record, compute_digest

__all__ = ["CompressedFile", "Header", "Record", "compute_digest"]
