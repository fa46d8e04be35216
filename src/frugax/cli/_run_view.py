"""Show `frugax run` in a terminal: a line for each stage, a bar while it trains."""

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from frugax.budget import format_bytes
from frugax.run import Observer, Stage

# Of a training whose output is not a terminal, such as that of nohup.
_LINE_EVERY_S = 60.0


class RunView(Observer):
    """An observer that shows a run: a line for each stage, a bar while it trains.

    A context manager: the bar exists inside the block. If the output is not a terminal,
    each stage is a plain line, and while it trains a line a minute says how far it is.
    """

    def __init__(self, console: Console, folder: Path | None) -> None:
        self._console, self._folder = console, folder
        columns: list[ProgressColumn] = [
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}", style="cyan"),
        ]
        if console.width >= 110:  # there is room for more
            bar = [SpinnerColumn(), TextColumn("training"), BarColumn(24)]
            columns = [*bar, *columns, TimeElapsedColumn()]
        self._bar = Progress(
            *columns,
            TimeRemainingColumn(compact=True),
            console=console,
            # A file or a pipe would receive every redraw of the bar.
            disable=not console.is_terminal,
            transient=True,
        )
        self._task: TaskID | None = None
        self._memory = ""
        self._first: tuple[float, int] | None = None
        self._last_line_s: float | None = None  # since when no line was printed

    def __enter__(self) -> "RunView":
        if self._folder is not None:
            self._console.print(f"Run folder: {self._folder}", highlight=False)
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Remove the bar; safe to call twice."""
        self._bar.stop()

    def stage(self, stage: Stage) -> None:
        """Print the stage."""
        self._console.print(f"[dim]·[/dim] {stage}", highlight=False)

    def note(self, text: str) -> None:
        """Print a fact."""
        self._console.print(text, highlight=False, markup=False, style="dim")

    def memory(self, used_bytes: int, limit_bytes: int | None) -> None:
        """Show the memory of the step and its budget beside the bar."""
        self._memory = format_bytes(used_bytes)
        if limit_bytes is not None:
            self._memory += f" of {format_bytes(limit_bytes)}"

    def training(self, step: int, steps: int, latest: Mapping[str, float]) -> None:
        """Move the bar and show the newest figures."""
        if self._task is None:
            self._task = self._bar.add_task(
                "training", total=steps, completed=step, figures=""
            )
        now = self._bar.get_time()
        # The rate starts here: steps before a resume took no time in this process, and
        # the first one may have compiled.
        if self._first is None:
            self._first = (now, step)
        seconds, done = now - self._first[0], step - self._first[1]
        figures = [f"{k} {v:.4g}" for k, v in latest.items()]
        if seconds > 0.5:
            figures.append(f"{done / seconds:.3g} steps/s")
        figures.append(self._memory)
        text = "  ".join(figures).rstrip()
        self._bar.update(self._task, completed=step, figures=text)
        if self._last_line_s is None:
            self._last_line_s = now
        if not self._console.is_terminal and now - self._last_line_s >= _LINE_EVERY_S:
            self._last_line_s = now
            self.note(f"step {step:,} of {steps:,}  {text}")
