"""A sink that logs to Trackio, into its local database."""

from collections.abc import Mapping, Sequence
from typing import Any

from .._event import Event, add_step, event_numbers, event_pictures
from ..drawing import Palette, check_palette
from ._extras import default_environment, import_extra

# Set while Trackio is imported: by default the library that it uses counts its users.
_ENVIRONMENT = {"HF_HUB_DISABLE_TELEMETRY": "1"}


class Trackio:
    """Logs to a run of its own, on this machine; `trackio show` displays it.

    The program's own Trackio run does not change. Trackio has one folder for the whole
    program, `$TRACKIO_DIR`, or `trackio` in the cache of Hugging Face.

    Attributes:
        name: the name in the receipt.
    """

    name = "trackio"

    def __init__(
        self,
        project: str = "frugax",
        *,
        run: str | None = None,
        config: Mapping[str, Any] | None = None,
        palette: Palette = "arc",
    ) -> None:
        """Begin a run.

        Args:
            project: the project of the run.
            run: the name of the run; by default Trackio makes one up.
            config: the configuration of the run.
            palette: the palette, as in `grid_svg`.

        Raises:
            MissingExtraError: trackio is not installed.
            ValueError: the palette is unknown.
        """
        self._palette: Palette = check_palette(palette)
        with default_environment(_ENVIRONMENT):
            trackio = import_extra("trackio", package="trackio", extra="trackio")
        self._image = trackio.Image
        self._step = 0  # the newest training step
        # Not `trackio.init`, which would end the program's own run.
        self._run: Any = trackio.Run(
            url=None, project=project, client=None, name=run, config=dict(config or {})
        )

    def write(self, events: Sequence[Event]) -> None:
        """Log the records."""
        for event in events:
            row: dict[str, Any] = dict(event_numbers(event))
            for key, picture in event_pictures(event).items():
                row[key] = self._image(picture.colours(self._palette))
            if not row:
                continue
            # Each stream counts its own steps, and Trackio has one count for a run.
            if event.stream:
                row = add_step(row, event)
            else:
                self._step = event.step
            self._run.log(row, step=self._step)

    def close(self) -> None:
        """End the run, once it is in the database."""
        run, self._run = self._run, None
        if run is not None:
            run.finish()
