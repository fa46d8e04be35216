"""A YAML text as a frozen dataclass; complaints name file, line and key."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from frugax.budget import WrongValueError, from_plain
from frugax.errors import ConfigError

from ._yaml import read_mapping, replace_value

T = TypeVar("T")


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a config file.

    Raises:
        ConfigError: there is none, or it cannot be read.
    """
    name = os.fspath(path)
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{name}: there is no such file.") from None
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{name}: cannot be read as text: {e}.") from e


def config_of(
    cls: type[T], text: str, name: str, *, overrides: Sequence[str] = ()
) -> T:
    """Read and check a config.

    Args:
        cls: a frozen dataclass, as `frugax.budget.from_plain` reads it.
        text: YAML.
        name: of the file, for messages.
        overrides: `key=value` texts that replace single values, the key a dotted path
            (`train.steps=10`), the value YAML.

    Raises:
        ConfigError: it is not YAML, or says something unknown or impossible; names
            file, line and key, or the override.
    """
    data, lines = read_mapping(text, name)
    said = [replace_value(data, override) for override in overrides]
    try:
        return from_plain(cls, data)
    except WrongValueError as e:
        # The last that speaks of it: it has replaced those before it.
        for path, override in zip(reversed(said), reversed(overrides), strict=True):
            if f"{e.at}.".startswith(f"{path}."):
                raise ConfigError(f"override {override!r}: {e}") from e
        line = f":{lines[e.at]}" if e.at in lines else ""
        raise ConfigError(f"{name}{line}: {e}") from e
