"""Expected refusals fail for another class, value, number of lines or field."""

import warnings

import pytest

from frugax.errors import InfeasibleBudgetError, ShapeError
from refusals import refuses, warns


def refuse(error):
    raise error


BUDGET = InfeasibleBudgetError("a step", needed=8, limit=7, unit="bytes")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("n must be >= 1, got 10"), refuses(ValueError, "n", 1.0)),
        (ValueError("n must be >= 1, got 10"), refuses(ValueError, "number")),
        (ValueError("n must be >= 1, got 10"), refuses(ValueError, "us")),
        (ValueError("n must be >= 1,\ngot 10"), refuses(ValueError, "n")),
        (ShapeError("'x' is too short"), refuses(ValueError, "'x'")),
        (BUDGET, refuses(InfeasibleBudgetError, limit=8)),
    ],
)
def test_a_refusal_that_is_not_the_expected_one_fails(error, expected):
    with pytest.raises(AssertionError), expected:
        refuse(error)


def test_the_expected_refusals_pass():
    with refuses((ValueError, ShapeError), "'x'", (2, 3)):
        refuse(ShapeError("'x' must have shape (2, 3)"))
    with refuses(InfeasibleBudgetError, 8, limit=7, unit="bytes"):
        refuse(BUDGET)


def test_a_warning_about_another_value_fails():
    with pytest.raises(AssertionError), warns(UserWarning, "past.csv"):
        warnings.warn("future.csv: left out", UserWarning, stacklevel=1)
