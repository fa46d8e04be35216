"""Packages that are imported only by who asks for them."""

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from frugax.errors import MissingExtraError


def need(module: str, *, package: str, extra: str) -> Any:
    """Import a module of an optional package.

    Args:
        module: its name.
        package: what `pip` calls it.
        extra: the extra of frugax that brings it.

    Raises:
        MissingExtraError: the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as e:
        raise MissingExtraError(
            f'this sink needs {package}: pip install "frugax[{extra}]".'
        ) from e


@contextlib.contextmanager
def environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Set those variables that are not set, for as long as the block takes."""
    missing = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)
