"""Parse a command line into a call of the command; every error is one line."""

import argparse
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from frugax.budget import suggest
from frugax.errors import ConfigError

from ._arguments import Argument, list_arguments
from ._help import describe_command, describe_commands


def parse(
    commands: Mapping[str, Callable[..., int]],
    args: Sequence[str],
    *,
    prog: str,
    about: str,
) -> Callable[[], int]:
    """Parse arguments into a call that is not made yet."""
    name, *rest = args
    # What follows two dashes is for another program.
    end = rest.index("--") if "--" in rest else len(rest)
    own, foreign = rest[:end], rest[end + 1 :]
    if name in ("-h", "--help"):
        sys.stdout.write(f"{describe_commands(commands, prog, about)}\n")
        raise SystemExit(0)
    if name not in commands:
        raise ConfigError(
            f"unknown command {name!r}.{suggest(name, commands)} Available: "
            f"{', '.join(commands)}; see {prog} --help."
        )
    command = commands[name]
    if {"-h", "--help"} & {*own}:
        sys.stdout.write(f"{describe_command(command, f'{prog} {name}')}\n")
        raise SystemExit(0)
    arguments = list(list_arguments(command))
    parser = _Parser(
        prog=f"{prog} {name}",
        usage=prog,
        add_help=False,
        allow_abbrev=False,
        # The defaults are those of the function.
        argument_default=argparse.SUPPRESS,
    )
    for argument in arguments:
        _add(parser, argument)
    found, unknown = parser.parse_known_intermixed_args(own)
    if unknown:
        wrong = next((word for word in unknown if word.startswith("-")), unknown[0])
        options = [name for argument in arguments for name in argument.names]
        hint = suggest(wrong.partition("=")[0], options)
        if any(a.metavar.startswith("--") for a in arguments) and not foreign:
            hint += " Those of a script follow --."
        parser.error(f"unknown argument {wrong!r}.{hint}".rstrip("."))
    values = {place: x for place, x in vars(found).items() if x is not None}
    if foreign:
        place = next((a.place for a in arguments if a.is_many and not a.names), None)
        if place is None:
            parser.error(f"nothing may follow --, got {foreign[0]!r}")
        values[place] = [*values.get(place, ()), *foreign]
    return _bind(command, values)


class _Parser(argparse.ArgumentParser):
    """A parser that raises its errors; argparse's own prints them and exits."""

    def error(self, message: str) -> NoReturn:
        end = "" if message.endswith("?") else ";"
        raise ConfigError(f"{message}{end} see {self.prog} --help.")


def _add(parser: argparse.ArgumentParser, argument: Argument) -> None:
    options: dict[str, Any] = {"dest": argument.place}
    if argument.kind is bool:
        options |= {"action": "store_true", "default": argparse.SUPPRESS}
        parser.add_argument(*argument.names, **options)
        return
    options |= {"type": argument.kind, "metavar": argument.metavar}
    if argument.choices:
        options["choices"] = argument.choices
    if argument.is_many:
        options["nargs"] = "*"
    if not argument.names:
        if argument.is_many or not argument.is_required:
            # argparse would convert a text, as SUPPRESS is.
            options["default"] = None
            options.setdefault("nargs", "?")
        parser.add_argument(**options)
        return
    if argument.is_many:  # every `--set` counts
        options["action"] = "extend"
    parser.add_argument(*argument.names, required=argument.is_required, **options)


def _bind(command: Callable[..., int], values: Mapping[str, Any]) -> Callable[[], int]:
    """Call a command later with these values, by the places of their arguments."""
    words: list[Any] = []
    options: dict[str, Any] = {}
    for parameter in inspect.signature(command).parameters.values():
        name, value = parameter.name, values.get(parameter.name, parameter.default)
        group = f"{name}."
        if isinstance(value, list):
            value = tuple(value)
        if dataclasses.is_dataclass(value):
            stated = {
                place.removeprefix(group): x
                for place, x in values.items()
                if place.startswith(group)
            }
            value = dataclasses.replace(value, **stated)
        if parameter.kind is not parameter.POSITIONAL_ONLY:
            options[name] = value
        elif value is parameter.empty:  # any number of words, and there are none
            words.append(())
        else:
            words.append(value)
    return functools.partial(command, *words, **options)
