"""Text that cannot break a page or a drawing."""

import html
import re

# XML has no way to write these, not even escaped.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def escaped(text: str) -> str:
    """Text that is safe between tags and inside quotes."""
    return html.escape(_FORBIDDEN.sub("\ufffd", text))
