"""A report that is one HTML file: it opens anywhere, and asks nobody for anything."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from frugax.budget import Receipt
from frugax.fileio import write_whole

from ._event import Event
from ._gathered import Gathered
from ._palettes import Palette, check_palette
from ._report_page import report_page


class HtmlReport:
    """Writes a page with curves, films to scrub through, tables and the receipt.

    Memory is bounded whatever the length of the run: curves are thinned so that peaks
    stay, and of frames beyond `most_bytes` every other one is let go. The page says
    what it leaves out.

    Attributes:
        name: for the receipt.
        receipt: if set before `close`, shown on the page.
    """

    name = "html report"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        title: str = "",
        palette: Palette = "arc",
        every_s: float | None = None,
        most_bytes: int = 32 * 2**20,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; the file is written by `close`.

        Args:
            path: the file; its folder is made if need be.
            title: the page's heading; the file's name if empty.
            palette: the one that the page opens with; the reader may choose another.
            every_s: also write it while the run goes on, no more often than this, in
                seconds. That takes tens of milliseconds of a CPU core each time.
            most_bytes: of all frames together, as they are kept in memory.
            clock: seconds, rising.

        Raises:
            ValueError: `path` is a folder, `every_s` is not positive, `most_bytes`
                below 1, or there is no such palette.
        """
        if every_s is not None and not every_s > 0:
            raise ValueError(f"every_s must be > 0, got {every_s}.")
        if most_bytes < 1:
            raise ValueError(f"most_bytes must be >= 1, got {most_bytes}.")
        if Path(path).is_dir():
            raise ValueError(
                f"path must be the report's file, but {os.fspath(path)} is a folder; "
                f"such as {Path(path) / 'report.html'}."
            )
        self.receipt: Receipt | None = None
        self._path = Path(path)
        self._title = title or self._path.stem
        self._palette: Palette = check_palette(palette)
        self._every = every_s
        self._clock = clock
        self._start = self._written_at = clock()
        self._gathered = Gathered(most_bytes)

    def write(self, events: Sequence[Event]) -> None:
        """Take the records.

        Raises:
            OutputError: it was time to write the page, and that failed.
        """
        for event in events:
            self._gathered.take(event)
        if self._every and self._clock() - self._written_at >= self._every:
            self._save()

    def close(self) -> None:
        """Write the page.

        Raises:
            OutputError: no space or no permission; a page that stood there is whole.
        """
        self._save()

    def _save(self) -> None:
        self._written_at = self._clock()
        page = report_page(
            self._gathered,
            title=self._title,
            palette=self._palette,
            seconds=self._written_at - self._start,
            receipt=self.receipt,
        )
        write_whole(self._path, page)
