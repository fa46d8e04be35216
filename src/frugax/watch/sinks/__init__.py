"""Where records go besides the journal: terminals, pictures, pages and other tools.

Every sink takes `Event`s and may fail without harm; `Sink` says what is asked of one.
Start at `Terminal` or `HtmlReport`; `grid_svg` and its neighbours draw on their own.
"""

from ._console import log_grid_to_console
from ._event import Event, Kind
from ._html_report import HtmlReport
from ._json_lines import JsonLines
from ._mlflow import MLflow
from ._palettes import Palette
from ._rerun import Rerun
from ._sheet import sheet_svg
from ._sink import Sink
from ._svg import episode_svg, grid_svg, step_svg
from ._svg_files import SvgFiles
from ._tensorboard import TensorBoard
from ._terminal import Terminal
from ._wandb import WandB

__all__ = [
    "Event",
    "HtmlReport",
    "JsonLines",
    "Kind",
    "MLflow",
    "Palette",
    "Rerun",
    "Sink",
    "SvgFiles",
    "TensorBoard",
    "Terminal",
    "WandB",
    "episode_svg",
    "grid_svg",
    "log_grid_to_console",
    "sheet_svg",
    "step_svg",
]
