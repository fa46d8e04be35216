"""A sink that writes a Weights & Biases run, by default offline for a later upload."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from frugax.fileio import make_folder

from .._event import Event, add_step, event_numbers, event_pictures, tag
from ..drawing import Palette, check_palette
from ._extras import default_environment, import_extra

# Set while W&B is imported and starts: by default it reports errors to its makers.
_ENVIRONMENT = {"WANDB_ERROR_REPORTING": "false"}


class WandB:
    """Logs to a run of its own, offline by default.

    The program's own `wandb.run` does not change. Each stream has a step of its own:
    `step` for the training steps, `STREAM/step` for any other. Neither the console nor
    statistics of the machine are recorded.

    Attributes:
        name: the name in the receipt.
    """

    name = "wandb"
    # Counted in the class, because W&B's service process belongs to the whole program.
    _open_count: ClassVar[int] = 0
    _owns_service: ClassVar[bool] = False  # whether a sink started W&B's process

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        project: str = "frugax",
        run: str | None = None,
        config: Mapping[str, Any] | None = None,
        mode: Literal["offline", "online"] = "offline",
        palette: Palette = "arc",
    ) -> None:
        """Begin a run; `wandb sync FOLDER/wandb/offline-run-*` uploads it later.

        Args:
            folder: the folder of the run; created if necessary.
            project: the project of the run.
            run: the name of the run; by default W&B makes one up.
            config: the configuration of the run.
            mode: `"online"` sends the records as they come, and needs an account.
            palette: the palette, as in `grid_svg`.

        Raises:
            MissingExtraError: wandb or pillow is not installed.
            OutputError: the folder cannot be created.
            ValueError: the palette or the mode is unknown.
        """
        if mode not in {"offline", "online"}:
            raise ValueError(f"mode must be 'offline' or 'online', got {mode!r}.")
        self._palette: Palette = check_palette(palette)
        import_extra("PIL", package="pillow", extra="wandb")
        WandB._owns_service = WandB._owns_service or "WANDB_SERVICE" not in os.environ
        with default_environment(_ENVIRONMENT):
            self._wandb = import_extra("wandb", package="wandb", extra="wandb")
            self._run = self._begin(
                str(make_folder(folder)), project, run, config, mode
            )
        # W&B has one service process for all runs, which the last sink ends.
        WandB._open_count += 1
        self._streams: set[str] = set()
        self._closed = False

    def _begin(
        self,
        folder: str,
        project: str,
        run: str | None,
        config: Mapping[str, Any] | None,
        mode: str,
    ) -> Any:
        return self._wandb.init(
            dir=folder,
            project=project,
            name=run,
            config=dict(config or {}),
            mode=mode,
            reinit="create_new",  # otherwise the program's own run would end
            save_code=False,
            settings=self._wandb.Settings(
                console="off",
                silent=True,
                disable_git=True,
                disable_code=True,
                disable_job_creation=True,
                # Statistics of the machine would need a thread that polls, outside of
                # any budget.
                x_disable_stats=True,
                x_disable_meta=True,
                x_disable_machine_info=True,
            ),
        )

    def write(self, events: Sequence[Event]) -> None:
        """Log the records."""
        for event in events:
            # W&B drops records whose step decreases, and streams count separately: each
            # gets a step metric of its own.
            count = tag(event.stream, "step")
            row: dict[str, Any] = dict(event_numbers(event))
            for key, picture in event_pictures(event).items():
                row[key] = self._wandb.Image(picture.colours(self._palette))
            if not row:
                continue
            if event.stream not in self._streams:
                self._streams.add(event.stream)
                metrics = tag(event.stream, "*")
                self._run.define_metric(metrics, step_metric=count)
            self._run.log(add_step(row, event))

    def close(self) -> None:
        """End the run, and W&B's own process unless the program uses it too."""
        if self._closed:
            return
        self._closed = True
        self._run.finish()
        WandB._open_count -= 1
        if WandB._owns_service and not WandB._open_count and self._wandb.run is None:
            WandB._owns_service = False
            self._wandb.teardown()
