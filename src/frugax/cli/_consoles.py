"""The consoles that commands print to: results to stdout, all else to stderr."""

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from rich.console import Console

import frugax

# A name between colons is a part of a path, and no picture.
console = Console(emoji=False)
errors = Console(stderr=True, emoji=False)


def say(text: object, *, on: Console = console) -> None:
    """Print a text as it is: brackets are not markup, and no line is broken."""
    on.print(str(text), highlight=False, markup=False, soft_wrap=True)


def print_error(error: Exception) -> None:
    """Print an error on standard error, as one line."""
    _print_marked("", "bold red", error)


def print_note(text: str) -> None:
    """Print a warning about a likely mistake on standard error, as one line."""
    _print_marked("note: ", "yellow", text)


def _print_marked(kind: str, style: str, message: object) -> None:
    from rich.markup import escape

    # Messages quote the paths and keys of users, and rich would read brackets as
    # markup.
    text = escape(" ".join(str(message).split()))
    errors.print(
        f"[{style}]frugax:[/{style}] {kind}{text}", soft_wrap=True, highlight=False
    )


def show_own_warnings_as_lines() -> None:
    """Print the warnings that frugax's own code is given as one line, without code.

    Those that a user's script causes stay as Python shows them, with file and line.
    """
    package = os.fspath(Path(frugax.__file__).parent) + os.sep
    by_python = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if file is None and filename.startswith(package):
            _print_marked("warning: ", "yellow", message)
        else:
            by_python(message, category, filename, lineno, file, line)

    warnings.showwarning = show


@contextlib.contextmanager
def show_progress(task: str) -> Iterator[Callable[[float, str], None]]:
    """Show a bar with the current part, if the output is a terminal."""
    from rich.markup import escape
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = ("{task.description}", BarColumn(), TaskProgressColumn())
    with Progress(
        *columns,
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=errors,
        disable=not errors.is_terminal,
        transient=True,
    ) as bar:
        row = bar.add_task(escape(task), total=1.0)

        def show(done: float, part: str) -> None:
            bar.update(row, completed=done, description=escape(f"{task}: {part}"))

        yield show
