"""Find the line of the user's own code that called frugax, for warnings and errors."""

import functools
import sys
import warnings
from pathlib import Path
from types import FrameType

# Libraries whose frames may lie between the user's code and ours.
_LIBRARIES = (
    "beartype",
    "blackjax",
    "chex",
    "diffrax",
    "distrax",
    "equinox",
    "flax",
    "frugax",
    "haiku",
    "jax",
    "jaxlib",
    "jaxtyping",
    "jraph",
    "lineax",
    "numpyro",
    "optax",
    "optimistix",
)


@functools.lru_cache(maxsize=1024)
def is_user_file(filename: str) -> bool:
    """Return whether a file belongs to none of the libraries above."""
    # Generated checks, and Python's own import of a library that jits at its import.
    if filename.startswith("<") and ("beartype" in filename or "importlib" in filename):
        return False
    modules = [sys.modules.get(name) for name in _LIBRARIES]
    files = [getattr(module, "__file__", None) for module in modules]
    folders = {Path(file).parent for file in files if file}
    # By folder, because tracebacks know file names and no modules.
    return not folders & set(Path(filename).parents)


def find_call_site() -> str:
    """Return file and line of the user's innermost frame, such as `file.py:12`."""
    frame, _ = _find_user_frame(sys._getframe())
    if frame is None:
        return "?"
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def find_error_site(error: BaseException) -> str:
    """Return file and line of the user's innermost frame that an error came through."""
    found, trace = "?", error.__traceback__
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if is_user_file(filename):
            found = f"{Path(filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def warn_at_call_site(text: str, category: type[Warning]) -> None:
    """Warn at the user's innermost frame."""
    _, depth = _find_user_frame(sys._getframe())
    warnings.warn(text, category, stacklevel=depth)


def _find_user_frame(frame: FrameType | None) -> tuple[FrameType | None, int]:
    """Return the innermost user frame from this one on, and its depth from 1."""
    depth = 1
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame, depth = frame.f_back, depth + 1
    return frame, depth
