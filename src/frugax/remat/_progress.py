"""Say on a terminal which program a search compiles, from the second one on."""

import sys
import time


class ProgressLine:
    """A line of the terminal that is written again for each program.

    Nothing is written where stderr is a file.
    """

    def __init__(self) -> None:
        self._began, self._width = time.monotonic(), 0

    def show(self, number: int) -> None:
        """Say that the n-th program is being compiled."""
        if number < 2 or not sys.stderr.isatty():
            return
        seconds = time.monotonic() - self._began
        text = f"remat.plan: compiling program {number}, after {seconds:.0f} s"
        self._write(text)

    def clear(self) -> None:
        """Leave an empty line behind."""
        if self._width:
            self._write("")

    def _write(self, text: str) -> None:
        # Not flushed: a terminal does so at "\r", and a spinner of a command, which
        # takes the place of stderr, shows its own text instead.
        end = "" if text else "\r"
        sys.stderr.write(f"\r{text.ljust(self._width)}{end}")
        self._width = len(text)
