"""Records as a Rerun recording: curves and pictures on one time line of steps."""

import os
from collections.abc import Sequence
from pathlib import Path

from frugax.fileio import make_folder

from ._event import Event
from ._extras import need
from ._numbers import numbers, tag
from ._palettes import PALETTES, Palette, as_bytes, check_palette
from ._picture import Picture, pictures


class Rerun:
    """Writes an `.rrd` file, for `rerun FILE`.

    Grids of whole numbers are segmentation images, whose cells show their value under
    the pointer. Every stream has the one time line `step`.

    Attributes:
        name: for the receipt.
    """

    name = "rerun"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        application: str = "frugax",
        palette: Palette = "arc",
    ) -> None:
        """Begin the recording; nothing is sent anywhere.

        Args:
            path: the file; its folder is made if need be.
            application: what Rerun keeps the layout of its window under.
            palette: as in `grid_svg`.

        Raises:
            MissingExtraError: rerun-sdk is not installed.
            OutputError: the folder cannot be made.
            ValueError: there is no such palette.
        """
        self._palette: Palette = check_palette(palette)
        self._rerun = need("rerun", package="rerun-sdk", extra="rerun")
        self._path = Path(path)
        make_folder(self._path.parent)
        self._recording = self._rerun.RecordingStream(application)
        self._recording.save(self._path)
        colours = as_bytes(PALETTES[self._palette]).tolist()
        self._log(
            "/",
            self._rerun.AnnotationContext(
                [(i, str(i), colour) for i, colour in enumerate(colours)]
            ),
            static=True,
        )
        self._closed = False

    def write(self, events: Sequence[Event]) -> None:
        """Append the records.

        Raises:
            ValueError: the sink is closed.
        """
        if self._closed:
            raise ValueError(f"{self._path} is closed: nothing can be written to it.")
        for event in events:
            self._recording.set_time("step", sequence=event.step)
            for key, value in numbers(event).items():
                self._log(key, self._rerun.Scalars(value))
            if event.kind == "frame":
                for name, shown in pictures(event.values).items():
                    self._log(tag(event.stream, name), self._image(shown))
        self._recording.flush()

    def close(self) -> None:
        """End the recording and let go of the file."""
        if not self._closed:
            self._closed = True
            self._recording.flush()
            self._recording.disconnect()

    def _image(self, shown: Picture) -> object:
        if shown.kind == "digits" and shown.known.all():
            return self._rerun.SegmentationImage(shown.codes)
        return self._rerun.Image(shown.colours(self._palette))

    def _log(self, key: str, what: object, *, static: bool = False) -> None:
        # As parts: a name may hold what would be punctuation in a path.
        parts = [part for part in key.split("/") if part]
        # strict: Rerun would otherwise turn a failure into a warning.
        self._recording.log(parts or "/", what, static=static, strict=True)
