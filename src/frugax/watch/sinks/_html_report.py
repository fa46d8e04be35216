"""A sink that writes the page of a run as one HTML file, readable without a network."""

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from frugax.budget import Receipt
from frugax.fileio import write_whole

from .._event import Event
from .._journal_writer import JournalWriter
from .._rows import Rows
from ..drawing import Palette, check_palette
from ..journal import Journal
from ..serve import RunStore, page_in_one_file


class HtmlReport:
    """Writes a page with curves, films, tables and the receipt.

    It is the live page, with all that it shows inside. The records are kept in a
    journal in the folder for temporary files until then. Curves show means and ranges,
    and beyond `max_bytes` evenly spaced frames are left out; the page says so.

    Attributes:
        name: the name in the receipt.
        receipt: if set before `close`, shown on the page.
    """

    name = "html report"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        title: str = "",
        palette: Palette = "arc",
        max_bytes: int = 32 * 2**20,
    ) -> None:
        """Prepare the report; `close` writes the file.

        Args:
            path: the file; missing folders are created.
            title: the heading of the page; by default the name of the file.
            palette: the palette at first; readers may choose another on the page.
            max_bytes: the size of all frames together, four bytes a cell.

        Raises:
            OutputError: there is no room for temporary files.
            ValueError: `path` is a folder, `max_bytes` is below 1, or the palette is
                unknown.
        """
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be >= 1, got {max_bytes}.")
        if Path(path).is_dir():
            raise ValueError(
                f"path must be the report's file, but {os.fspath(path)} is a folder; "
                f"such as {Path(path) / 'report.html'}."
            )
        self.receipt: Receipt | None = None
        self._path = Path(path)
        self._palette: Palette = check_palette(palette)
        self._max_bytes = max_bytes
        self._records = 0
        # Not a `TemporaryDirectory`: a forked child that exits would remove it.
        self._folder = Path(tempfile.mkdtemp(prefix="frugax-report-"))
        self._journal = Journal.create(
            self._folder / "journal",
            {"name": title or self._path.stem, "started": time.time()},
        )
        self._writer = JournalWriter(self._journal)

    def write(self, events: Sequence[Event]) -> None:
        """Take the records.

        Raises:
            OutputError: there is no room for temporary files.
        """
        self._records += len(events)
        self._writer.write(Rows.of_events(events))

    def close(self) -> None:
        """Write the page.

        Raises:
            OutputError: the page cannot be written; an earlier page stays intact.
        """
        if self._journal.closed:
            return
        try:
            self._journal.close()
            if self.receipt is not None:
                (self._folder / "receipt.json").write_text(self.receipt.to_json())
            page = self._draw()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        # Whole or not at all, since a reader may reload the page while it is written.
        write_whole(self._path, page)

    def _draw(self) -> str:
        journal = self._folder / "journal"
        store = RunStore(journal, self._path.stem, is_cached=False)
        store.open()
        while store.poll(time.time())[1]:
            pass
        return page_in_one_file(
            store,
            note=f"{self._records:,} records watched by frugax",
            palette=self._palette,
            max_frame_bytes=self._max_bytes,
        )
