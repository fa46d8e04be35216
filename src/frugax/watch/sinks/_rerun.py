"""A sink that writes a Rerun recording: curves and pictures on one timeline."""

import os
from collections.abc import Sequence
from pathlib import Path

from frugax.fileio import make_folder

from .._event import Event, event_numbers, event_pictures
from ..drawing import PALETTES, Palette, Picture, check_palette, hex_to_rgb
from ._extras import import_extra


class Rerun:
    """Writes an `.rrd` file, for `rerun FILE`.

    Grids of whole numbers become segmentation images, whose cells show their value
    under the pointer. All streams share the timeline `step`.

    Attributes:
        name: the name in the receipt.
    """

    name = "rerun"

    def __init__(
        self, path: str | os.PathLike[str], *, palette: Palette = "arc"
    ) -> None:
        """Begin a recording without any network connection.

        Args:
            path: the file; missing folders are created.
            palette: the palette, as in `grid_svg`.

        Raises:
            MissingExtraError: rerun-sdk is not installed.
            OutputError: the folder cannot be created.
            ValueError: the palette is unknown.
        """
        self._palette: Palette = check_palette(palette)
        self._rerun = import_extra("rerun", package="rerun-sdk", extra="rerun")
        self._path = Path(path)
        make_folder(self._path.parent)
        self._recording = self._rerun.RecordingStream("frugax")
        self._recording.save(self._path)
        colours = hex_to_rgb(PALETTES[self._palette]).tolist()
        # Names and colours of the classes of all segmentation images below "/".
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
            raise ValueError(f"{self._path} is closed: open a new sink to write.")
        for event in events:
            self._recording.set_time("step", sequence=event.step)
            for key, value in event_numbers(event).items():
                self._log(key, self._rerun.Scalars(value))
            for key, picture in event_pictures(event).items():
                self._log(key, self._image(picture))
        # Flushed at each write: the viewer may have the file open while the run goes
        # on.
        self._recording.flush()

    def close(self) -> None:
        """End the recording and release the file."""
        if not self._closed:
            self._closed = True
            self._recording.flush()
            self._recording.disconnect()

    def _image(self, picture: Picture) -> object:
        # A segmentation image has a class in every cell, so padding needs a colour
        # image.
        if picture.kind == "digits" and picture.known.all():
            return self._rerun.SegmentationImage(picture.codes)
        return self._rerun.Image(picture.colours(self._palette))

    def _log(self, key: str, entity: object, *, static: bool = False) -> None:
        # Passed as parts, since a name may contain characters that paths reserve.
        parts = [part for part in key.split("/") if part]
        # Without strict=True Rerun turns failures into warnings.
        self._recording.log(parts or "/", entity, static=static, strict=True)
