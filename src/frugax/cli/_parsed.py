"""Arguments read by tyro, whose boxes of errors become one line."""

import contextlib
import functools
import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tyro

from frugax.errors import ConfigError

_RULE = re.compile(r"[╭╮╰╯─\s]+")


def parsed(
    commands: Mapping[str, Callable[..., int]],
    given: Sequence[str],
    *,
    prog: str,
    about: str,
) -> Callable[[], int]:
    """The command that the arguments name, with its own, not yet run.

    Args:
        commands: each by its name.
        given: the arguments.
        prog: what stands before them.
        about: for `--help`.

    Raises:
        ConfigError: they are no arguments of any of them.
        SystemExit: with 0, where help was asked for and has been printed.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.extras.subcommand_cli_from_dict(
                {name: _later(command) for name, command in commands.items()},
                prog=prog,
                description=about,
                args=given,
            )
    except SystemExit as e:
        if not e.code:
            raise
        raise ConfigError(_one_line(said.getvalue(), prog)) from None


def _later(command: Callable[..., int]) -> Callable[..., Callable[[], int]]:
    """The same arguments, but what it gives is the call."""

    @functools.wraps(command)
    def bound(*args: Any, **options: Any) -> Callable[[], int]:
        return functools.partial(command, *args, **options)

    return bound


def _one_line(box: str, prog: str) -> str:
    """What a box says, but for the help that it quotes."""
    parts: list[list[str]] = [[]]
    for line in box.splitlines():
        text = line.strip().strip("│").strip()
        if "─" in text and (_RULE.fullmatch(text) or text[0] == "╭"):
            parts.append([])  # a heading says less than what it is over
        elif text:
            parts[-1].append(text)
    said = []
    for heading, *more in filter(None, parts):
        if heading.startswith("Perhaps you meant"):
            # Options, each with its help and with the command that has it.
            options = [m.split()[0] for m in more if m.startswith("-")]
            said.append(f"perhaps you meant {' or '.join(dict.fromkeys(options))}")
        elif heading.startswith("Missing from"):
            said.append(f"{heading} {more[0]}")
        elif not heading.startswith(("For full helptext", "Argument helptext")):
            said.append(" ".join([heading, *more]).rstrip("."))
    shown = re.findall(r"frugax[\w ]* --help", box) or [f"{prog} --help"]
    return f"{'; '.join(said)}; see {shown[-1]}."
