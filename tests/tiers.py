"""Which of many like cases every run of the tests tries."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def mostly_thorough(cases: Iterable[Any], in_ci: Callable[[Any], bool]) -> list[Any]:
    """The cases; those that `in_ci` does not choose are left to `make thorough`."""
    return [
        case if in_ci(case) else pytest.param(case, marks=pytest.mark.thorough)
        for case in cases
    ]
