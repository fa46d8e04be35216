"""Find the line of the user's own code that called frugax, for warnings and errors."""

import contextlib
import functools
import re
import sys
import sysconfig
import traceback
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
    "numpy",
    "numpyro",
    "optax",
    "optimistix",
    "scipy",
)
_STANDARD = Path(sysconfig.get_path("stdlib"))
# The frames that XLA quotes in its own error, where a callback raised one.
_QUOTED_FRAME = re.compile(r'File "(.+)", line (\d+), in')


@functools.lru_cache(maxsize=1024)
def is_user_file(filename: str) -> bool:
    """Return whether a file is neither Python's nor of one of the libraries above."""
    # Generated checks, and Python's own import of a library that jits at its import.
    if filename.startswith("<") and ("beartype" in filename or "importlib" in filename):
        return False
    parents = set(Path(filename).parents)
    if _STANDARD in parents and "site-packages" not in Path(filename).parts:
        return False
    modules = [sys.modules.get(name) for name in _LIBRARIES]
    files = [getattr(module, "__file__", None) for module in modules]
    # By folder, because tracebacks know file names and no modules.
    return parents.isdisjoint(Path(file).parent for file in files if file)


def find_call_site() -> str:
    """Return file and line of the user's innermost frame, such as `file.py:12`."""
    frame, _ = _find_user_frame(sys._getframe())
    if frame is None:
        return "?"
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def find_error_site(error: BaseException, *, installed: bool = True) -> str:
    """Return file and line of the user's innermost frame that an error came through.

    Args:
        error: the error.
        installed: whether to take a frame of an installed package for the user's where
            there is no other, such as that of an installed program.

    Returns:
        Such as `file.py:12`; "?" if the user's code has no frame.
    """
    found = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    with contextlib.suppress(Exception):  # the text is the user's own code, too
        found += _QUOTED_FRAME.findall(str(error))
    if isinstance(error, SyntaxError) and error.filename:  # the file never ran
        found.append((error.filename, error.lineno))
    sites = [
        (Path(filename), line)
        for filename, line in reversed(found)
        if is_user_file(filename)
    ]
    own = [site for site in sites if "site-packages" not in site[0].parts]
    for path, line in own or (sites if installed else []):
        return f"{path.name}:{line}"
    return "?"


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
