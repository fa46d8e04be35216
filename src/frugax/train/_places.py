"""Where in the user's own files something was called."""

import functools
import sys
import warnings
from pathlib import Path
from types import FrameType

_LIBRARIES = (
    "beartype",
    "equinox",
    "flax",
    "frugax",
    "jax",
    "jaxlib",
    "jaxtyping",
    "optax",
)


@functools.lru_cache(maxsize=1024)
def is_users(filename: str) -> bool:
    """Whether a file is the user's: none of ours, of JAX or of what lies between."""
    if filename.startswith("<") and "beartype" in filename:  # checks made on the fly
        return False
    found = [sys.modules.get(name) for name in _LIBRARIES]
    files = [getattr(module, "__file__", None) for module in found]
    homes = {Path(file).parent for file in files if file}
    return not homes & set(Path(filename).parents)


def called_from() -> str:
    """File and line of the user's innermost frame, `file.py:12`."""
    frame, _ = _users_frame(sys._getframe())
    if frame is None:
        return "?"
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def warn_there(text: str, kind: type[Warning]) -> None:
    """Warn with the place of the user's innermost frame."""
    _, above = _users_frame(sys._getframe())
    warnings.warn(text, kind, stacklevel=above)


def _users_frame(frame: FrameType | None) -> tuple[FrameType | None, int]:
    """The innermost frame of the user, from this one on, and its number from 1."""
    above = 1
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame, above = frame.f_back, above + 1
    return frame, above
