"""A sink that writes event files for TensorBoard.

Of tensorboardX only the file format is used. Its usual writer starts a thread with a
`multiprocessing.Queue` and an exit hook, but a sink has a thread already.
"""

import itertools
import os
import time
from collections.abc import Sequence

from frugax.errors import OutputError
from frugax.fileio import make_folder, write_error_reason

from .._event import Event, event_numbers, event_pictures
from ..drawing import Palette, check_palette, picture_png
from ._extras import default_environment, import_extra

# File names of the format count seconds, in which two sinks may begin.
_SEQUENCE = itertools.count()
# tensorboardX sets this variable while it is imported, and does not restore it.
_ENVIRONMENT = {"CRC32C_SW_MODE": "auto"}


class TensorBoard:
    """Writes scalars and pictures into an event file.

    Attributes:
        name: the name in the receipt.
    """

    name = "tensorboard"

    def __init__(
        self, folder: str | os.PathLike[str], *, palette: Palette = "arc"
    ) -> None:
        """Begin an event file.

        Args:
            folder: the folder of the file, as in `tensorboard --logdir FOLDER`.
            palette: the palette, as in `grid_svg`.

        Raises:
            MissingExtraError: tensorboardX is not installed.
            OutputError: the file cannot be created.
            ValueError: the palette is unknown.
        """
        self._palette: Palette = check_palette(palette)
        names = {"package": "tensorboardX", "extra": "tensorboard"}
        with default_environment(_ENVIRONMENT):
            self._summaries = import_extra("tensorboardX.proto.summary_pb2", **names)
            self._events = import_extra("tensorboardX.proto.event_pb2", **names)
            files = import_extra("tensorboardX.event_file_writer", **names)
        self._folder = make_folder(folder)
        try:
            self._writer = files.EventsWriter(
                str(self._folder / "events"), f".{os.getpid()}.{next(_SEQUENCE)}"
            )
        except OSError as e:
            raise OutputError(write_error_reason(self._folder, e)) from e
        self._closed = False

    def write(self, events: Sequence[Event]) -> None:
        """Append the records.

        Raises:
            OutputError: the file cannot be written.
        """
        try:
            for event in events:
                summary = self._summaries.Summary()
                for key, value in event_numbers(event).items():
                    summary.value.add(tag=key, simple_value=value)
                for key, picture in event_pictures(event).items():
                    image = self._summaries.Summary.Image(
                        height=picture.rows,
                        width=picture.columns,
                        colorspace=3,
                        encoded_image_string=picture_png(picture, self._palette),
                    )
                    summary.value.add(tag=key, image=image)
                # Empty summaries would still create a step on every chart.
                if summary.value:
                    self._writer.write_event(
                        self._events.Event(
                            wall_time=time.time(), step=event.step, summary=summary
                        )
                    )
            # TensorBoard polls the file, so records that stay in a buffer do not
            # appear.
            self._writer.flush()
        except OSError as e:
            raise OutputError(write_error_reason(self._folder, e)) from e

    def close(self) -> None:
        """Close the file.

        Raises:
            OutputError: the file cannot be written.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._writer.close()
        except OSError as e:
            raise OutputError(write_error_reason(self._folder, e)) from e
