"""Check the path and progress arguments of `compress`; report progress in stages."""

import os
import re
from collections.abc import Callable

# Called with the share that is done, in [0, 1], and a text that names the work.
Progress = Callable[[float, str], None]

# gs://bucket, and as pathlib.Path shortens it. A drive of Windows has one letter.
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):/(/?)")
_BUCKETS = ("az", "gs", "hf", "s3")


def check_path(path: object, *, local: bool = False) -> None:
    """Refuse a path that does not name a file, or not a local one, before the work."""
    if isinstance(path, str | os.PathLike):
        found = _ADDRESS.match(os.fspath(path))
        kind, whole = found.groups() if found else ("", "")
        what = ""
        if kind in _BUCKETS and not whole:
            what = "pathlib drops a slash of addresses; give text or an epath.Path."
        elif kind in _BUCKETS and local:
            what = "this is written to local files alone: copy one to the bucket."
        elif whole and kind not in _BUCKETS:
            what = "addresses are of buckets (az, gs, hf, s3): download the file first."
        if what:
            raise ValueError(f"{os.fspath(path)}: {what}")
        return
    instead = ""
    # `decompress` takes bytes and `open` a path, so each is easily given to the other.
    if isinstance(path, bytes | bytearray | memoryview):
        instead = ": the bytes of a file are read by frugax.compress.decompress(data)"
    raise TypeError(
        f"a file is named by text or a path, got a {type(path).__name__}{instead}."
    )


def check_progress(progress: object) -> None:
    """Refuse anything that cannot be called before the work, not during it."""
    if progress is not None and not callable(progress):
        raise TypeError(
            "progress must be a function of (share, text), or None, got "
            f"{progress!r:.60}."
        )


class MonotonicProgress:
    """Forward progress, but never backwards: a second file starts where one ended."""

    def __init__(self, progress: Progress | None) -> None:
        check_progress(progress)
        self._progress = progress
        self._highest = 0.0

    def __call__(self, share: float, text: str) -> None:
        """Report the highest share so far."""
        self._highest = max(self._highest, share)
        if self._progress is not None:
            self._progress(self._highest, text)

    def stage(self, share: float) -> Progress:
        """Return the progress function of a stage that takes a share of the rest.

        So that progress rises but never ends, however many stages there are.
        """
        start = self._highest
        return lambda done, text: self(start + share * (1 - start) * done, text)

    def finish(self) -> None:
        """Report that all is done."""
        self(1.0, "done")
