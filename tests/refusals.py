"""Refused calls, by the type of the error and the values that its message names.

The wording of a message is free to change. The class, the value or argument at fault,
and that it is one line are what a caller may rely on:

    with refuses(ValueError, "rows_per_experiment", 0):
        make_campaign(rows_per_experiment=0)
"""

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any

import pytest

from frugax.errors import FrugaxError


@contextlib.contextmanager
def refuses(
    error: type[BaseException] | tuple[type[BaseException], ...],
    *named: object,
    **fields: object,
) -> Iterator[pytest.ExceptionInfo[Any]]:
    """Expect this class, one line that names each value, and these fields.

    A class of `frugax.errors` must be stated itself, not by a base such as ValueError.
    """
    with pytest.raises(error) as caught:
        yield caught
    classes = error if isinstance(error, tuple) else (error,)
    raised = type(caught.value)
    assert raised in classes or not issubclass(raised, FrugaxError), f"raised {raised}"
    message = str(caught.value)
    if raised.__module__.startswith(("frugax", "builtins")):  # not another library's
        assert "\n" not in message
    assert_names(message, *named)
    found = {name: getattr(caught.value, name) for name in fields}
    assert found == fields


@contextlib.contextmanager
def warns(category: type[Warning], *named: object) -> Iterator[pytest.WarningsRecorder]:
    """Expect a warning of this category that names each value."""
    with pytest.warns(category) as caught:
        yield caught
    messages = [str(w.message) for w in caught if isinstance(w.message, category)]
    assert any(all(names(m, value) for value in named) for m in messages), messages


def assert_names(message: str, *named: object) -> None:
    """Fail for the first value that a message does not name."""
    for value in named:
        assert names(message, value), f"{value!r} is not named by: {message}"


def names(message: str, value: object) -> bool:
    """Whether a value stands in a message, not as a part of a longer word or number."""
    text = str(value) if isinstance(value, str | os.PathLike) else repr(value)
    before = r"(?<!\w)" if re.match(r"\w", text) else ""
    after = r"(?!\w)" if re.search(r"\w$", text) else ""
    return re.search(before + re.escape(text) + after, message) is not None
