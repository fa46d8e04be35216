"""Turn an exception in the user's own code into a one-line error with its place."""

import contextlib
import re
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

from frugax.errors import ConfigError, FrugaxError

_OWN = Path(__file__).parent.parent
_LIBRARIES = {_OWN, Path(sysconfig.get_path("stdlib"))}


@contextlib.contextmanager
def user_code(
    what: str, *, place: str = "task", is_mixed: bool = False
) -> Iterator[None]:
    """Turn an error of the user's own code into one line with its place.

    Args:
        what: the function that is called.
        place: of the function, for the message.
        is_mixed: whether much of frugax's own code runs in the block, too: then an
            error in which no line of the user's has a part stays as it is.

    Raises:
        ConfigError: the block raised an error.
        FrugaxError: the block raised one, which says what to do itself.
    """
    try:
        yield
    # Also SystemExit: sys.exit() there would end the run as if it had succeeded.
    except BaseException as e:
        if isinstance(e, FrugaxError | KeyboardInterrupt):
            raise
        line = _find_line(e)
        message = f"{what} raised {type(e).__name__}{line}: {_message(e)}"
        if not line and _is_complaint(e):
            message = _message(e)
        elif not line and is_mixed:
            raise
        raise ConfigError(f"{place}: {message}") from e


def _message(error: BaseException) -> str:
    lines: list[str] = []
    with contextlib.suppress(Exception):  # the text is the user's own code, too
        lines = str(error).strip().splitlines()
    if not lines:  # as that of a MemoryError, which is about the machine
        return "no message"
    if "Traceback (most recent call last)" in lines[0]:
        return lines[-1][:300]  # of a callback: XLA quotes the whole traceback
    return lines[0][:300]


def _find_line(error: BaseException) -> str:
    """Return the user's line at which an error was raised; empty if it is unknown."""
    found = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    with contextlib.suppress(Exception):
        found += re.findall(r'File "(.+)", line (\d+), in', str(error))
    if isinstance(error, SyntaxError) and error.filename:  # the file never ran
        found.append((error.filename, error.lineno))
    for name, line in reversed(found):
        path = Path(name)
        is_library = "site-packages" in path.parts or not _LIBRARIES.isdisjoint(
            path.parents
        )
        if not is_library and not name.startswith("<"):
            return f" at {path.name}:{line}"
    return ""


def _is_complaint(error: BaseException) -> bool:
    """Whether frugax itself raised the error, about an argument."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    is_raised = _OWN in Path(frame.filename).parents and "raise " in (frame.line or "")
    return is_raised and isinstance(error, TypeError | ValueError)
