"""Send records to more places than the journal: terminals, files, pages, other tools.

Every sink receives `Event`s, and may fail without harm to the program; `Sink` is the
protocol. Start at `Terminal` or `HtmlReport`. Guide: docs/watch_pictures.md.
"""

from .._event import KINDS, PLURALS, STATUS_STREAM, Event, Kind, Sink
from ._html_report import HtmlReport
from ._json_lines import JsonLines
from ._mlflow import MLflow
from ._rerun import Rerun
from ._svg_files import SvgFiles, safe_file_name
from ._tensorboard import TensorBoard
from ._terminal import Terminal
from ._trackio import Trackio
from ._wandb import WandB

__all__ = [
    "KINDS",
    "PLURALS",
    "STATUS_STREAM",
    "Event",
    "HtmlReport",
    "JsonLines",
    "Kind",
    "MLflow",
    "Rerun",
    "Sink",
    "SvgFiles",
    "TensorBoard",
    "Terminal",
    "Trackio",
    "WandB",
    "safe_file_name",
]
