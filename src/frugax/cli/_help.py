"""The help of a command, within a screen of 24 lines of 80 characters.

An option has a line: the first clause of its text. Its whole text, and all examples,
are on the site's page of commands.
"""

import textwrap
from collections.abc import Callable, Mapping

from ._arguments import Argument, list_arguments
from ._docstrings import read_docstring

LINES, WIDTH = 24, 80
_LEFT = 24  # columns of options and arguments


def describe_command(command: Callable[..., int], name: str) -> str:
    """The help of one command.

    Args:
        command: the function that runs it.
        name: the words to type, such as "frugax watch export".
    """
    doc = read_docstring(command.__doc__ or "")
    arguments = list(list_arguments(command))
    words = [name]
    if any(argument.names for argument in arguments):
        words.append("[OPTION ...]")
    for argument in arguments:
        if not argument.names:
            optional = "{}" if argument.is_required else "[{}]"
            words.append(optional.format(argument.metavar))
    lines = [
        *textwrap.wrap(f"usage: {' '.join(words)}", WIDTH, subsequent_indent="  "),
        "",
        *textwrap.wrap(doc.summary, WIDTH),
        f"For example: {doc.examples[0]}",
        "",
        *map(_describe_argument, arguments),
    ]
    for paragraph in doc.paragraphs:
        more = ["", *textwrap.wrap(paragraph, WIDTH)]
        if len(lines) + len(more) <= LINES:
            lines += more
    return "\n".join(lines)


def describe_commands(
    commands: Mapping[str, Callable[..., int]], name: str, about: str
) -> str:
    """The list of commands, with the first sentence of each."""
    lines = [f"usage: {name} COMMAND ...", "", *about.strip().splitlines(), ""]
    for word, command in commands.items():
        summary = read_docstring(command.__doc__ or "").summary
        lines.append(f"  {word:<16}{summary}")
    return "\n".join(lines)


def _describe_argument(argument: Argument) -> str:
    """A line with the first clause of an argument's text."""
    written = " ".join(filter(None, (", ".join(argument.names), argument.metavar)))
    clause = argument.meaning.partition("; ")[0].partition(". ")[0].rstrip(".;")
    if argument.names and argument.is_required:
        clause += " (required)"
    elif argument.names and argument.default not in (None, False, ()):
        clause += f" (default: {argument.default})"
    return f"  {written:<{_LEFT}}{'' if len(written) < _LEFT else '  '}{clause}"
