"""Import optional packages, such as mlflow, only when a sink needs them."""

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from frugax.errors import MissingExtraError


def import_extra(module: str, *, package: str, extra: str) -> Any:
    """Import a module of an optional package."""
    try:
        return importlib.import_module(module)
    except ImportError as e:
        raise MissingExtraError(
            f'this sink needs {package}: pip install "frugax[{extra}]".'
        ) from e


@contextlib.contextmanager
def default_environment(defaults: Mapping[str, str]) -> Iterator[None]:
    """Set the variables that are not set yet, until the block ends."""
    # The user's own settings win: only variables that are unset get a default.
    missing = {
        name: value for name, value in defaults.items() if name not in os.environ
    }
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)
