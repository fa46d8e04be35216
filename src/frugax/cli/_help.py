"""The help of a command, within a screen of 24 lines of 80 characters.

An option has a line: the first clause of its text. Its whole text, and all examples,
are on the site's page of commands.
"""

import dataclasses
import inspect
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

from ._docstrings import read_docstring

LINES, WIDTH = 24, 80
_LEFT = 24  # columns of options and arguments


@dataclasses.dataclass(frozen=True)
class _Argument:
    """One argument: how it is written, what it means, whether it must be given."""

    written: str
    meaning: str
    is_option: bool
    is_required: bool


def describe_command(command: Callable[..., int], name: str) -> str:
    """The help of one command.

    Args:
        command: the function that parses and runs it.
        name: what is typed to call it, such as "frugax watch export".
    """
    doc = read_docstring(command.__doc__ or "")
    arguments = list(_list_arguments(command, doc.meanings))
    words = [name]
    if any(argument.is_option for argument in arguments):
        words.append("[OPTION ...]")
    for argument in arguments:
        if not argument.is_option:
            optional = "{}" if argument.is_required else "[{}]"
            words.append(optional.format(argument.written))
    lines = [
        *textwrap.wrap(f"usage: {' '.join(words)}", WIDTH, subsequent_indent="  "),
        "",
        *textwrap.wrap(doc.summary, WIDTH),
        f"For example: {doc.examples[0]}",
        "",
        *(_align(argument.written, argument.meaning) for argument in arguments),
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


def _align(written: str, meaning: str) -> str:
    return f"  {written:<{_LEFT}}{'' if len(written) < _LEFT else '  '}{meaning}"


def _list_arguments(
    command: Callable[..., int], meanings: Mapping[str, str]
) -> Iterator[_Argument]:
    hints = typing.get_type_hints(command, include_extras=True)
    for parameter in inspect.signature(command).parameters.values():
        hint, settings = _unwrap(hints[parameter.name])
        if dataclasses.is_dataclass(hint):  # a group of options
            group = read_docstring(hint.__doc__ or "").meanings
            fields = typing.get_type_hints(hint, include_extras=True)
            for field in dataclasses.fields(hint):
                kind, found = _unwrap(fields[field.name])
                yield _describe_option(
                    field.name, kind, found, field.default, group[field.name]
                )
            continue
        meaning = meanings[parameter.name]
        if parameter.kind is parameter.POSITIONAL_ONLY:
            is_required = parameter.default is parameter.empty
            written = settings.get("metavar") or parameter.name.upper()
            yield _Argument(written, _shorten(meaning, ""), False, is_required)
        else:
            yield _describe_option(
                parameter.name, hint, settings, parameter.default, meaning
            )


def _describe_option(
    name: str, kind: Any, settings: Mapping[str, Any], default: Any, meaning: str
) -> _Argument:
    word = settings.get("name") or name.replace("_", "-")
    written = ", ".join([*(settings.get("aliases") or ()), f"--{word}"])
    if kind is not bool:
        written += f" {settings.get('metavar') or _name_values(kind)}"
    is_required = default is inspect.Parameter.empty
    note = ""
    if is_required:
        note = " (required)"
    elif default not in (None, False, ()):
        note = f" (default: {default})"
    return _Argument(written, _shorten(meaning, note), True, is_required)


def _shorten(meaning: str, note: str) -> str:
    """The first clause of a text."""
    clause = meaning.partition("; ")[0].partition(". ")[0].rstrip(".;")
    return f"{clause}{note}"


def _name_values(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return "|".join(map(str, typing.get_args(kind)))
    return "VALUE"


def _unwrap(hint: Any) -> tuple[Any, dict[str, Any]]:
    """A type without None and tyro's marks, and the settings of `tyro.conf.arg`."""
    settings: dict[str, Any] = {}
    if typing.get_origin(hint) is Annotated:
        hint, *marks = typing.get_args(hint)
        for mark in marks:
            if hasattr(mark, "metavar"):
                settings = {
                    key: getattr(mark, key) for key in ("name", "metavar", "aliases")
                }
        inner, more = _unwrap(hint)
        return inner, more | settings
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        others = [x for x in typing.get_args(hint) if x is not types.NoneType]
        if len(others) == 1:
            return _unwrap(others[0])
    return hint, settings
