"""A sink that writes records as lines of JSON, for `jq`, pandas and other tools."""

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from frugax.errors import OutputError
from frugax.fileio import make_folder, write_error_reason

from .._event import Event


class JsonLines:
    """Appends one JSON object for each record.

    A line is `{"kind": ..., "stream": ..., "step": ..., "values": {...}}`. Numbers that
    JSON lacks are the texts `"NaN"`, `"Infinity"` and `"-Infinity"`; arrays are nested
    lists, with null where a lane has no record. Lines are complete: a line that could
    not be written is removed, and a line that another process left unfinished is ended
    before the first new one.

    Attributes:
        name: the name in the receipt.
    """

    name = "json lines"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open the file for appending.

        Args:
            path: the file; missing folders are created.

        Raises:
            OutputError: the file cannot be opened.
        """
        self._path = Path(path)
        make_folder(self._path.parent)
        try:
            # In append mode every write goes to the end, also with several writers.
            # Unbuffered: a buffer would hold half a line when the process is killed.
            self._file = self._path.open("a+b", buffering=0)
            end = self._file.seek(0, os.SEEK_END)
            if end:
                self._file.seek(-1, os.SEEK_END)
                if self._file.read(1) != b"\n":
                    self._file.write(b"\n")
        except OSError as e:
            raise OutputError(write_error_reason(self._path, e)) from e

    def write(self, events: Sequence[Event]) -> None:
        """Append the records.

        Raises:
            OutputError: the file cannot be written; it has none of these records.
            ValueError: the sink is closed.
        """
        if self._file.closed:
            raise ValueError(f"{self._path} is closed: open a new sink to write.")
        # One write for the batch, so that lines of several writers are not interleaved.
        data = memoryview(b"".join(_encode_line(event) for event in events))
        start = self._file.seek(0, os.SEEK_END)
        try:
            while data:
                # A raw write may take only a part, as on a disk that is nearly full.
                data = data[self._file.write(data) or 0 :]
        except OSError as e:
            # Without the cut the next line would be glued to the unfinished one.
            self._file.truncate(start)
            raise OutputError(write_error_reason(self._path, e)) from e

    def close(self) -> None:
        """Wait until the disk has the file, and release it.

        Raises:
            OutputError: the disk failed.
        """
        if self._file.closed:
            return
        try:
            with self._file:
                os.fsync(self._file.fileno())
        except OSError as e:
            raise OutputError(write_error_reason(self._path, e)) from e


def _encode_line(event: Event) -> bytes:
    values = {name: _to_json(value) for name, value in event.values.items()}
    line = {
        "kind": event.kind,
        "stream": event.stream,
        "step": event.step,
        "values": values,
    }
    text = json.dumps(line, allow_nan=False, separators=(",", ":"))
    return text.encode() + b"\n"


def _to_json(value: np.ndarray) -> Any:
    if value.dtype.kind == "V":  # bfloat16 or float8, whose items are bytes to NumPy
        value = value.astype(np.float32)
    if value.dtype.kind == "f" and not np.isfinite(np.asarray(value)).all():
        return _name_nonfinite(value.tolist())
    return value.tolist()


def _name_nonfinite(value: Any) -> Any:
    if isinstance(value, list):
        return [_name_nonfinite(v) for v in value]
    if value is None:
        return value
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value
