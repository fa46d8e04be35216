"""Records as TensorBoard reads them.

Only tensorboardX's file format is used. Its usual writer starts a thread with a
`multiprocessing.Queue` and leaves a hook at exit; a sink has a thread already.
"""

import itertools
import os
import time
from collections.abc import Sequence

from frugax.errors import OutputError
from frugax.fileio import make_folder, write_error_reason

from ._event import Event
from ._extras import environment, need
from ._numbers import numbers, tag
from ._palettes import Palette, check_palette
from ._picture import pictures
from ._png import picture_png

# Two sinks may begin within one second, and the format's file names count seconds.
_BEGUN = itertools.count()
# tensorboardX sets this while it is imported, and leaves it.
_ENVIRONMENT = {"CRC32C_SW_MODE": "auto"}


class TensorBoard:
    """Writes scalars and pictures into an event file.

    Attributes:
        name: for the receipt.
    """

    name = "tensorboard"

    def __init__(
        self, folder: str | os.PathLike[str], *, palette: Palette = "arc"
    ) -> None:
        """Begin an event file.

        Args:
            folder: where it stands; what `tensorboard --logdir` is given.
            palette: as in `grid_svg`.

        Raises:
            MissingExtraError: tensorboardX is not installed.
            OutputError: the file cannot be made.
            ValueError: there is no such palette.
        """
        self._palette: Palette = check_palette(palette)
        how = {"package": "tensorboardX", "extra": "tensorboard"}
        with environment(_ENVIRONMENT):
            self._summaries = need("tensorboardX.proto.summary_pb2", **how)
            self._events = need("tensorboardX.proto.event_pb2", **how)
            files = need("tensorboardX.event_file_writer", **how)
        self._folder = make_folder(folder)
        try:
            self._writer = files.EventsWriter(
                str(self._folder / "events"), f".{os.getpid()}.{next(_BEGUN)}"
            )
        except OSError as e:
            raise OutputError(write_error_reason(self._folder, e)) from e
        self._closed = False

    def write(self, events: Sequence[Event]) -> None:
        """Append the records.

        Raises:
            OutputError: no space or no permission.
        """
        try:
            for event in events:
                summary = self._summaries.Summary()
                for key, value in numbers(event).items():
                    summary.value.add(tag=key, simple_value=value)
                if event.kind == "frame":
                    for name, shown in pictures(event.values).items():
                        image = self._summaries.Summary.Image(
                            height=shown.rows,
                            width=shown.columns,
                            colorspace=3,
                            encoded_image_string=picture_png(shown, self._palette),
                        )
                        summary.value.add(tag=tag(event.stream, name), image=image)
                if summary.value:
                    self._writer.write_event(
                        self._events.Event(
                            wall_time=time.time(), step=event.step, summary=summary
                        )
                    )
            self._writer.flush()
        except OSError as e:
            raise OutputError(write_error_reason(self._folder, e)) from e

    def close(self) -> None:
        """Close the file.

        Raises:
            OutputError: no space or no permission.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._writer.close()
        except OSError as e:
            raise OutputError(write_error_reason(self._folder, e)) from e
