"""What names a file."""

import os
from collections.abc import Callable


def check_path(path: object) -> None:
    """Meet what names no file before the work, not in the middle of it.

    Raises:
        TypeError: it is neither text nor a path.
    """
    if isinstance(path, str | os.PathLike):
        return
    instead = (
        ": the bytes of a file are read by frugax.compress.decompress(data)"
        if isinstance(path, bytes | bytearray | memoryview)
        else ""
    )
    raise TypeError(
        f"a file is named by text or a path, got a {type(path).__name__}{instead}."
    )


def check_progress(progress: object) -> None:
    """Meet what cannot be called before the work, not in the middle of it.

    Raises:
        TypeError: it is neither a function nor None.
    """
    if progress is not None and not callable(progress):
        raise TypeError(
            "progress must be a function of (share, text), or None, got "
            f"{progress!r:.60}."
        )


class ProgressStages:
    """Work in stages, of which nobody knows how many there will be.

    Each takes a share of what is left, so that what is told rises and never ends.
    """

    def __init__(self, told: Callable[[float, str], None] | None) -> None:
        """Tell `told` of all stages, each in [0, 1] of its own."""
        self._told = told
        self._at = 0.0

    def next(self, share: float) -> Callable[[float, str], None]:
        """What tells of the next stage, which takes a share of what is left."""
        start = self._at
        self._at += share * (1 - start)
        end = self._at

        def told(done: float, what: str) -> None:
            if self._told is not None:
                self._told(start + (end - start) * done, what)

        return told
