"""A sink that writes an MLflow run into a folder of plain files."""

import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

from frugax.fileio import make_folder, write_whole

from .._event import Event, event_numbers, event_pictures
from ..drawing import Palette, check_palette, picture_png
from ..journal import number_name
from ._extras import default_environment, import_extra
from ._svg_files import safe_file_name

# MLflow allows letters, digits and these characters in the name of a metric.
_FORBIDDEN = re.compile(r"[^\w./ -]")
# The limit of MLflow's REST API for one batch of metrics, which its file store obeys
# too.
_MAX_BATCH = 1000
# Set while MLflow is imported and its store is opened. Since 3.17 it opens stores of
# plain files on request only, and it sends telemetry for every import.
_ENVIRONMENT = {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}


class MLflow:
    """Logs metrics to a file store, and pictures as artifacts of the run.

    Pictures are stored as `frames/NAME/step_000012.png`. Neither the active run nor the
    tracking URI of the program changes.

    Attributes:
        name: the name in the receipt.
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
            experiment: the experiment of the run; created if it does not exist.
            run: the name of the run; by default MLflow makes one up.
            params: the parameters of the run.
            palette: the palette, as in `grid_svg`.

        Raises:
            MissingExtraError: mlflow is not installed (mlflow-skinny is enough).
            OutputError: the folder cannot be created.
            ValueError: the palette is unknown.
        """
        self._palette: Palette = check_palette(palette)
        where = make_folder(folder).resolve().as_uri()
        # A client of its own: `mlflow.log_metric` would use the program's active run.
        with default_environment(_ENVIRONMENT):
            names = {"package": "mlflow-skinny", "extra": "mlflow"}
            tracking = import_extra("mlflow.tracking", **names)
            self._entities = import_extra("mlflow.entities", **names)
            self._client = tracking.MlflowClient(tracking_uri=where)
            existing = self._client.get_experiment_by_name(experiment)
            if existing is None:
                experiment_id = self._client.create_experiment(experiment)
            else:
                experiment_id = existing.experiment_id
            info = self._client.create_run(experiment_id, run_name=run).info
        self._id: str = info.run_id
        # The folder is written directly: `log_artifact` would need a temporary copy of
        # each picture.
        self._artifacts = Path(url2pathname(urlparse(info.artifact_uri).path))
        for key, value in (params or {}).items():
            self._client.log_param(self._id, key, value)
        self._names: dict[str, str] = {}  # in MLflow, of each metric
        self._closed = False

    def write(self, events: Sequence[Event]) -> None:
        """Log the records.

        Raises:
            OutputError: a picture cannot be written.
        """
        now = int(time.time() * 1000)
        metrics = [
            self._entities.Metric(self._name(key), value, now, event.step)
            for event in events
            for key, value in event_numbers(event).items()
        ]
        # The client refuses larger batches.
        for i in range(0, len(metrics), _MAX_BATCH):
            self._client.log_batch(self._id, metrics=metrics[i : i + _MAX_BATCH])
        for event in events:
            for key, picture in event_pictures(event).items():
                folder = self._artifacts / "frames" / safe_file_name(key)
                image = picture_png(picture, self._palette)
                write_whole(folder / f"step_{event.step:06d}.png", image)

    def _name(self, key: str) -> str:
        if key not in self._names:
            clean = _FORBIDDEN.sub("_", key)
            self._names[key] = number_name(clean, self._names.values())
        return self._names[key]

    def close(self) -> None:
        """Mark the run as finished."""
        if not self._closed:
            self._closed = True
            self._client.set_terminated(self._id)
