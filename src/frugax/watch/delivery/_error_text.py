"""Say on standard error what went wrong, and name an error in one short line."""

import contextlib
import sys


def error_text(error: BaseException) -> str:
    """Return the type and message of an error in one short line."""
    try:
        text = f"{type(error).__name__}: {error}"
    # `__str__` is a user's function too, and may raise anything.
    except BaseException:
        text = type(error).__name__
    return " ".join(text.split())[:200]


def write_message(text: str) -> None:
    """Write a line to standard error, which may be closed or missing.

    Not a warning: turned into an error by a filter it would end the thread.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"frugax.watch: {text}\n")
