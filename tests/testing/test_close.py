"""`assert_trees_close` passes what rounding explains and names what it does not."""

import numpy as np
import pytest

from frugax.testing import assert_trees_close, tolerance


def test_rounding_passes():
    x = np.linspace(1, 2, 50, dtype=np.float32)
    assert_trees_close({"a": x * np.float32(1 + 1e-7)}, {"a": x})


@pytest.mark.parametrize(
    ("actual", "message"),
    [
        ({"a": np.ones(2, np.float32) * np.float32(1.001)}, r"\['a'\]: off by 0.001"),
        ({"a": np.array([1, np.nan], np.float32)}, "off by nan"),
        ({"a": np.ones(2, np.float16)}, r"float16\(2,\) is not float32\(2,\)"),
        ({"a": np.ones(3, np.float32)}, r"\(3,\) is not"),
        ({"b": np.ones(2, np.float32)}, "structures differ"),
    ],
)
def test_a_difference_is_named(actual, message):
    with pytest.raises(AssertionError, match=message):
        assert_trees_close(actual, {"a": np.ones(2, np.float32)})


def test_whole_numbers_must_be_equal():
    with pytest.raises(AssertionError, match="values differ"):
        assert_trees_close([np.array([1, 2])], [np.array([1, 3])])


def test_tolerance_grows_with_the_sum():
    assert tolerance("float32", terms=100) == pytest.approx(10 * tolerance("float32"))
