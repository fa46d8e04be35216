"""Parse command-line arguments with tyro; its errors become one line."""

import contextlib
import functools
import io
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tyro

from frugax.budget import suggest
from frugax.errors import ConfigError

from ._help import describe_command, describe_commands

_RULE = re.compile(r"[╭╮╰╯─\s]+|-{3,}")


def parse(
    commands: Mapping[str, Callable[..., int]],
    args: Sequence[str],
    *,
    prog: str,
    about: str,
) -> Callable[[], int]:
    """Parse arguments into a call that is not made yet."""
    output = io.StringIO()
    if args and args[0] not in commands and not args[0].startswith("-"):
        raise ConfigError(
            f"unknown command {args[0]!r}.{suggest(args[0], commands)} Available: "
            f"{', '.join(commands)}; see {prog} --help."
        )
    own = args[: args.index("--")] if "--" in args else args
    if {"-h", "--help"} & set(own):
        text = describe_commands(commands, prog, about)
        if args[0] in commands:
            text = describe_command(commands[args[0]], f"{prog} {args[0]}")
        sys.stdout.write(f"{text}\n")
        raise SystemExit(0)
    try:
        # tyro prints its errors and exits; the messages exist only as printed text.
        with contextlib.redirect_stderr(output):
            return tyro.extras.subcommand_cli_from_dict(
                {name: _defer(command) for name, command in commands.items()},
                prog=prog,
                args=_merge_changes(args),
            )
    except SystemExit:
        raise ConfigError(_to_line(output.getvalue(), prog)) from None


def _merge_changes(args: Sequence[str]) -> list[str]:
    """Join the values of every `--set`: tyro would keep those of the last one only."""
    own = list(args[: args.index("--")]) if "--" in args else list(args)
    rest: list[str] = []
    values: list[str] = []
    is_value = False
    for arg in own:
        if arg == "--set" or arg.startswith("--set="):
            values += [arg.removeprefix("--set=")] if "=" in arg else []
            is_value = True
        elif is_value and not arg.startswith("-"):
            values.append(arg)
        else:
            is_value = False
            rest.append(arg)
    if values:
        rest += ["--set", *values]
    elif "--set" in own:
        rest.append("--set")
    return rest + list(args[len(own) :])


def _defer(command: Callable[..., int]) -> Callable[..., Callable[[], int]]:
    """Wrap a command so that it returns its call instead of making it."""

    # tyro reads options from the signature, which `wraps` keeps.
    @functools.wraps(command)
    def defer(*args: Any, **options: Any) -> Callable[[], int]:
        # Called inside of tyro, the command would print into the stream that `parse`
        # catches.
        return functools.partial(command, *args, **options)

    return defer


def _to_line(box: str, prog: str) -> str:
    """Join the messages of a box of errors, without the help that it quotes."""
    parts: list[list[str]] = [[]]
    for line in box.splitlines():
        text = line.strip().strip("│").strip()
        if text and (_RULE.fullmatch(text) or text[0] == "╭"):
            parts.append([])  # headings add nothing to the messages below
        elif text:
            parts[-1].append(text)
    if "╭" not in box:  # where the terminal has ASCII only, the heading has a line
        del parts[0]
    messages = []
    for heading, *more in filter(None, parts):
        if heading.startswith("Perhaps you meant"):
            # Each option is listed with its help and its command.
            options = [m.split()[0] for m in more if m.startswith("-")]
            messages.append(f"perhaps you meant {' or '.join(dict.fromkeys(options))}")
        elif heading.startswith("Missing from"):
            messages.append(f"{heading} {more[0]}")
        elif not heading.startswith(("For full helptext", "Argument helptext")):
            messages.append(" ".join([heading, *more]).rstrip("."))
    shown = re.findall(r"frugax[\w ]* --help", box) or [f"{prog} --help"]
    return f"{'; '.join(messages)}; see {shown[-1]}."
