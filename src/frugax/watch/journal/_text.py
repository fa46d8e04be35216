"""Decode a text that a journal holds as an array of bytes, padded with zeros."""

from typing import Any

import numpy as np

# The column by which a reader knows a text.
TEXT_COLUMN = "utf8"


def decode_text(data: Any) -> str:
    """Return a text from its bytes; bytes that are not UTF-8 become U+FFFD."""
    return bytes(np.asarray(data, np.uint8)).rstrip(b"\0").decode(errors="replace")
