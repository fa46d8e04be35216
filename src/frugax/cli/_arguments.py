"""List the arguments of a command from its signature and its docstring.

A parameter before `/` is a word of the command line, and every other one an option; a
dataclass is a group of options that several commands share.
"""

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from ._docstrings import read_docstring


@dataclasses.dataclass(frozen=True)
class Arg:
    """How an argument is written, for its annotation.

    Attributes:
        metavar: stands for its value in the help.
        aliases: other names of an option, such as `-o`.
        name: of an option that cannot be called as its parameter is.
    """

    metavar: str = ""
    aliases: tuple[str, ...] = ()
    name: str = ""


@dataclasses.dataclass(frozen=True)
class Argument:
    """One argument of a command.

    Attributes:
        place: the name of its parameter, after that of its group and a dot.
        names: of an option, the aliases first; empty for a word.
        metavar: stands for its value; empty for a flag.
        kind: the type of a value.
        choices: the values, if only some are possible.
        is_many: whether it takes any number of values.
        default: `inspect.Parameter.empty` if it must be given.
        meaning: its text in the docstring.
    """

    place: str
    names: tuple[str, ...]
    metavar: str
    kind: type
    choices: tuple[Any, ...]
    is_many: bool
    default: Any
    meaning: str

    @property
    def is_required(self) -> bool:
        """Whether it must be given."""
        return self.default is inspect.Parameter.empty


# The commonest annotations.
OutFile = Annotated[Path | None, Arg("FILE")]
Folder = Annotated[Path, Arg("FOLDER")]
Changes = Annotated[tuple[str, ...], Arg("KEY=VALUE ...")]


def list_arguments(function: Callable[..., Any], group: str = "") -> Iterator[Argument]:
    """List the arguments of a command, or the options of a dataclass."""
    meanings = read_docstring(function.__doc__ or "").meanings
    hints = typing.get_type_hints(function, include_extras=True)
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        if dataclasses.is_dataclass(hint):
            yield from list_arguments(typing.cast("type", hint), f"{parameter.name}.")
        else:
            meaning = meanings[parameter.name]
            yield _describe(parameter, hint, f"{group}{parameter.name}", meaning)


def _describe(
    parameter: inspect.Parameter, hint: Any, place: str, meaning: str
) -> Argument:
    arg = Arg()
    if typing.get_origin(hint) is Annotated:
        hint, arg = typing.get_args(hint)
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        (hint,) = (x for x in typing.get_args(hint) if x is not types.NoneType)
    is_many = typing.get_origin(hint) is tuple
    if is_many:
        hint = typing.get_args(hint)[0]
    choices: tuple[Any, ...] = ()
    if typing.get_origin(hint) is Literal:
        choices, hint = typing.get_args(hint), str
    metavar = arg.metavar or "|".join(choices) or parameter.name.upper()
    names: tuple[str, ...] = ()
    if parameter.kind is not parameter.POSITIONAL_ONLY:
        name = arg.name or parameter.name.replace("_", "-")
        names = (*arg.aliases, f"--{name}")
    return Argument(
        place=place,
        names=names,
        metavar="" if hint is bool else metavar,
        kind=hint,
        choices=choices,
        is_many=is_many,
        default=parameter.default,
        meaning=meaning,
    )
