"""Records as a run of MLflow, in a folder of plain files."""

import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

from frugax.fileio import make_folder, write_whole

from ._event import Event
from ._extras import environment, need
from ._file_names import safe_name
from ._numbers import numbers, tag
from ._palettes import Palette, check_palette
from ._picture import pictures
from ._png import picture_png

# What MLflow allows in the name of a metric, besides letters and digits.
_FORBIDDEN = re.compile(r"[^\w./ -]")
_MOST_AT_ONCE = 1000
# While MLflow is imported and its store is opened: it keeps stores of plain files
# only for who asks for them (3.17), and reports every import to its makers.
_ENVIRONMENT = {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}


class MLflow:
    """Logs metrics to a file store, and pictures as artifacts of the run.

    Pictures are `frames/NAME/step_000012.png`. Neither the active run nor the tracking
    address of the program changes.

    Attributes:
        name: for the receipt.
    """

    name = "mlflow"

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        experiment: str = "frugax",
        run: str | None = None,
        params: Mapping[str, Any] | None = None,
        palette: Palette = "arc",
    ) -> None:
        """Begin a run.

        Args:
            folder: the store, as in `mlflow ui --backend-store-uri FOLDER`.
            experiment: what the run belongs to; made if it is not there.
            run: its name; MLflow makes one up if not given.
            params: what the run was made with.
            palette: as in `grid_svg`.

        Raises:
            MissingExtraError: mlflow is not installed (mlflow-skinny is enough).
            OutputError: the folder cannot be made.
            ValueError: there is no such palette.
        """
        self._palette: Palette = check_palette(palette)
        where = make_folder(folder).resolve().as_uri()
        with environment(_ENVIRONMENT):
            how = {"package": "mlflow-skinny", "extra": "mlflow"}
            tracking = need("mlflow.tracking", **how)
            self._entities = need("mlflow.entities", **how)
            self._client = tracking.MlflowClient(tracking_uri=where)
            known = self._client.get_experiment_by_name(experiment)
            number = (
                self._client.create_experiment(experiment)
                if known is None
                else known.experiment_id
            )
            made = self._client.create_run(number, run_name=run)
        self._id: str = made.info.run_id
        self._artifacts = Path(url2pathname(urlparse(made.info.artifact_uri).path))
        for key, value in (params or {}).items():
            self._client.log_param(self._id, key, value)
        self._closed = False

    def write(self, events: Sequence[Event]) -> None:
        """Log the records.

        Raises:
            OutputError: a picture cannot be written.
        """
        now = int(time.time() * 1000)
        metrics = [
            self._entities.Metric(_FORBIDDEN.sub("_", key), value, now, event.step)
            for event in events
            for key, value in numbers(event).items()
        ]
        for i in range(0, len(metrics), _MOST_AT_ONCE):
            self._client.log_batch(self._id, metrics=metrics[i : i + _MOST_AT_ONCE])
        for event in events:
            if event.kind != "frame":
                continue
            for name, shown in pictures(event.values).items():
                folder = self._artifacts / "frames" / safe_name(tag(event.stream, name))
                image = picture_png(shown, self._palette)
                write_whole(folder / f"step_{event.step:06d}.png", image)

    def close(self) -> None:
        """Mark the run as finished."""
        if not self._closed:
            self._closed = True
            self._client.set_terminated(self._id)
