"""Find the line of the user's own code that called frugax, for warnings and errors."""

import contextlib
import functools
import re
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

_PYTHON, _SELF = "python", "frugax"
# Folders of installed packages, and those of Python and of its launchers of programs.
_INSTALLED = ("site-packages", "dist-packages")
_FOLDERS = {
    Path(sys.modules[_SELF].__file__ or "").parent: _SELF,
    Path(sysconfig.get_path("stdlib")): _PYTHON,
    Path(sysconfig.get_path("scripts")): _PYTHON,
}
# The frames that XLA quotes in its own error, where a callback raised one.
_QUOTED_FRAME = re.compile(r'File "(.+)", line (\d+), in')


def is_user_file(filename: str) -> bool:
    """Return whether a file is neither Python's nor that of an installed package."""
    return not _library_of(filename)


@functools.lru_cache(maxsize=1024)
def _library_of(filename: str) -> str:
    """Return the library that a file belongs to; "" for the user's own."""
    # Generated checks, and what Python runs before the user's code and at its imports.
    if filename.startswith("<") and ("beartype" in filename or "frozen" in filename):
        return _PYTHON
    path = Path(filename)
    for folder in reversed(path.parents):
        if folder.name in _INSTALLED or _is_target(folder):
            return path.relative_to(folder).parts[0]
    return next((name for at, name in _FOLDERS.items() if at in path.parents), "")


@functools.lru_cache(maxsize=1024)
def _is_target(folder: Path) -> bool:
    """Return whether `pip install --target` installs packages into this folder."""
    return str(folder) in sys.path and any(folder.glob("*.dist-info"))


def _find_program(filenames: Iterable[str]) -> str:
    """Return the library whose lines are the user's; "" if the user's own file is here.

    A program that is installed itself, such as one that `python -m` runs, is the
    package that was entered first.

    Args:
        filenames: of all frames, the outermost first.
    """
    libraries = [_library_of(filename) for filename in filenames]
    if "" in libraries:
        return ""
    return next((x for x in libraries if x not in (_PYTHON, _SELF)), "")


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
        installed: whether to name a frame of an installed program where the error came
            through no file of the user's.

    Returns:
        Such as `file.py:12`; "?" if the user's code has no frame.
    """
    found = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    with contextlib.suppress(Exception):  # the text is the user's own code, too
        found += _QUOTED_FRAME.findall(str(error))
    if isinstance(error, SyntaxError) and error.filename:  # the file never ran
        found.append((error.filename, error.lineno))
    program = _find_program(filename for filename, _ in found)
    for filename, line in reversed(found):
        if _library_of(filename) == program and (installed or not program):
            return f"{Path(filename).name}:{line}"
    return "?"


def warn_at_call_site(text: str, category: type[Warning]) -> None:
    """Warn at the user's innermost frame."""
    _, depth = _find_user_frame(sys._getframe())
    warnings.warn(text, category, stacklevel=depth)


def _find_user_frame(frame: FrameType | None) -> tuple[FrameType | None, int]:
    """Return the innermost user frame from this one on, and its depth from 1."""
    frames: list[FrameType] = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    program = _find_program(f.f_code.co_filename for f in reversed(frames))
    for depth, found in enumerate(frames, 1):
        if _library_of(found.f_code.co_filename) == program:
            return found, depth
    return None, len(frames)
