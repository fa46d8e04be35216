"""Parse YAML text into a frozen dataclass; errors name file, line and key."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from frugax.budget import WrongValueError, from_plain
from frugax.errors import ConfigError

from ._yaml import read_mapping, replace_value

T = TypeVar("T")


def read_text(path: str | os.PathLike[str]) -> str:
    """Read the text of a config file.

    Raises:
        ConfigError: the file does not exist, or it cannot be read.
    """
    name = os.fspath(path)
    try:
        # UTF-8 on every system: the locale of another machine would read other letters.
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{name}: there is no such file.") from None
    except (OSError, ValueError) as e:
        raise ConfigError(f"{name}: cannot be read as text: {e}.") from e


def parse_config(
    cls: type[T], text: str, name: str, *, overrides: Sequence[str] = ()
) -> T:
    """Parse and check a config.

    Args:
        cls: a frozen dataclass that `frugax.budget.from_plain` can build.
        text: YAML.
        name: of the file, for error messages.
        overrides: `key=value` texts that replace single values, the key a dotted path
            (`train.steps=10`), the value YAML.

    Raises:
        ConfigError: `text` is not YAML, or has an unknown key or an invalid value; the
            message names file, line and key, or the override.
    """
    data, lines = read_mapping(text, name)
    paths = [replace_value(data, override) for override in overrides]
    try:
        return from_plain(cls, data)
    except WrongValueError as e:
        # Later overrides replace earlier ones, so the last that matches is at fault.
        for path, override in zip(reversed(paths), reversed(overrides), strict=True):
            if f"{e.at}.".startswith(f"{path}."):
                raise ConfigError(f"override {override!r}: {e}") from e
        place = name
        if e.at in lines:
            place = f"{name}:{lines[e.at]}"
        raise ConfigError(f"{place}: {e}") from e
