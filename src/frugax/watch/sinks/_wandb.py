"""Records as a Weights & Biases run, kept in a folder until somebody uploads it."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from frugax.fileio import make_folder

from ._event import Event
from ._extras import environment, need
from ._numbers import numbers, tag
from ._palettes import Palette, check_palette
from ._picture import pictures

# While W&B is imported and starts: it reports on itself to its makers unless told not.
_ENVIRONMENT = {"WANDB_ERROR_REPORTING": "false"}


class WandB:
    """Logs to a run of its own; offline unless you say otherwise.

    The program's own `wandb.run` stays what it is. Each stream has its own step:
    `step` for the training steps, `STREAM/step` for any other. Neither the console nor
    the machine's statistics are recorded.

    Attributes:
        name: for the receipt.
    """

    name = "wandb"
    _open: ClassVar[int] = 0
    _ours: ClassVar[bool] = False  # whether W&B's process was started by a sink

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
            folder: where the run is kept; made if need be.
            project: what it belongs to.
            run: its name; W&B makes one up if not given.
            config: what the run was made with.
            mode: `"online"` sends the records as they come, and needs an account.
            palette: as in `grid_svg`.

        Raises:
            MissingExtraError: wandb or pillow is not installed.
            OutputError: the folder cannot be made.
            ValueError: there is no such palette or mode.
        """
        if mode not in {"offline", "online"}:
            raise ValueError(f"mode must be 'offline' or 'online', got {mode!r}.")
        self._palette: Palette = check_palette(palette)
        need("PIL", package="pillow", extra="wandb")
        WandB._ours = WandB._ours or "WANDB_SERVICE" not in os.environ
        with environment(_ENVIRONMENT):
            self._wandb = need("wandb", package="wandb", extra="wandb")
            self._run = self._begin(
                str(make_folder(folder)), project, run, config, mode
            )
        WandB._open += 1
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
            reinit="create_new",  # or the program's own run would end here
            save_code=False,
            settings=self._wandb.Settings(
                console="off",
                silent=True,
                disable_git=True,
                disable_code=True,
                disable_job_creation=True,
                x_disable_stats=True,
                x_disable_meta=True,
                x_disable_machine_info=True,
            ),
        )

    def write(self, events: Sequence[Event]) -> None:
        """Log the records."""
        for event in events:
            count = tag(event.stream, "step")
            row: dict[str, Any] = dict(numbers(event))
            if event.kind == "frame":
                for name, shown in pictures(event.values).items():
                    pixels = shown.colours(self._palette)
                    row[tag(event.stream, name)] = self._wandb.Image(pixels)
            if not row:
                continue
            if event.stream not in self._streams:
                self._streams.add(event.stream)
                every = f"{event.stream}/*" if event.stream else "*"
                self._run.define_metric(every, step_metric=count)
            self._run.log(row | {count: event.step})

    def close(self) -> None:
        """End the run, and W&B's own process unless the program uses it too."""
        if self._closed:
            return
        self._closed = True
        self._run.finish()
        WandB._open -= 1
        if WandB._ours and not WandB._open and self._wandb.run is None:
            WandB._ours = False
            self._wandb.teardown()
