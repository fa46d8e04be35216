"""Report an exception in the user's own code as one line with its place."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from frugax.errors import ConfigError, FrugaxError


@contextmanager
def user_code(what: str, *, place: str = "task") -> Iterator[None]:
    """Turn an error of the user's own code into one line with its place.

    Raises:
        ConfigError: the block raised an error.
        FrugaxError: the block raised one, which says what to do itself.
    """
    try:
        yield
    except FrugaxError:
        raise
    except Exception as e:
        # A MemoryError is about the machine, and its text is empty.
        lines = str(e).strip().splitlines() or ["no message"]
        raise ConfigError(
            f"{place}: {what} raised {type(e).__name__} at {_find_place(e)}: "
            f"{lines[0]:.300}"
        ) from e


def _find_place(error: BaseException) -> str:
    own = Path(__file__).parent.parent
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        is_library = "site-packages" in path.parts or own in path.parents
        if not is_library and not frame.filename.startswith("<"):
            return f"{path.name}:{frame.lineno}"
    return "an unknown line"
