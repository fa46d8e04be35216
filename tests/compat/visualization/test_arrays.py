"""Arrays made smaller come back bit for bit, unless an error was asked for."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from frugax.compat.visualization import optimize_array_memory
from refusals import refuses

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [
        (0, 127, "int8"),
        (-128, 0, "int8"),
        (0, 128, "uint8"),
        (-129, 0, "int16"),
        (-1, 128, "int16"),
        (0, 255, "uint8"),
        (0, 256, "int16"),
        (0, 2**15, "uint16"),
        (0, 2**16, "int32"),
        (-1, 2**31 - 1, "int32"),
        (0, 2**32 - 1, "uint32"),
        (-1, 2**31, "int64"),
        (0, 2**32, "int64"),
    ],
)
def test_integers_go_to_the_smallest_type_that_holds_them(low, high, dtype):
    array = np.array([low, high], np.int64)
    small = optimize_array_memory(array)
    assert small.dtype == dtype
    assert small.tolist() == [low, high]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_the_ends_of_every_integer_type_survive(dtype):
    info = np.iinfo(dtype)
    array = np.array([[info.min, info.max]], dtype)
    small = optimize_array_memory(array)
    assert small.tolist() == array.tolist()
    assert small.nbytes <= array.nbytes


@pytest.mark.parametrize(
    "array",
    [
        np.array([0.5, -0.0, np.inf, -np.inf, 2.0**-149]),
        np.array([np.nan, 1.0]),
        np.array(0.25),
        np.asfortranarray(np.arange(12.0).reshape(3, 4))[::2],
        np.arange(4.0, dtype=">f8"),
    ],
)
def test_floats_that_survive_bit_for_bit_are_halved(array):
    small = optimize_array_memory(array)
    assert small.dtype.itemsize * 2 == array.dtype.itemsize
    assert small.shape == array.shape
    native = array.astype(array.dtype.newbyteorder("="))
    assert small.astype(native.dtype).tobytes() == native.tobytes()


@pytest.mark.parametrize(
    "array",
    [
        np.array([0.5, 0.1]),
        np.array([1e-50]),
        np.array([2.0**-150]),
        np.array([1e300]),
        np.array([2.0**24 + 1]),
        np.append(np.zeros(1 << 17), 0.1),  # the misfit is in the last piece
    ],
)
def test_floats_that_would_change_are_not_converted(array):
    assert optimize_array_memory(array) is array


@settings(deadline=None)
@given(
    hnp.arrays(
        st.sampled_from([np.float64, np.int64, np.uint32, np.complex128]),
        hnp.array_shapes(min_side=0),
    )
)
def test_nothing_is_ever_lost_or_made_larger(array):
    small = optimize_array_memory(array)
    assert small.shape == array.shape
    assert small.nbytes <= array.nbytes
    back = small.astype(array.dtype)
    np.testing.assert_array_equal(back, array)
    signs = [np.signbit(np.real(x)) for x in (back, array)]
    np.testing.assert_array_equal(signs[0], signs[1])


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(3, bool),
        np.zeros(3, complex),
        np.array(["a"]),
        np.array([None, 1], object),
        np.zeros(3, np.float32),
        np.zeros(3, np.float16),
        np.zeros((0, 3)),
        np.ma.masked_array([1, 2**40], mask=[False, True]),
        np.zeros(2, [("a", "i8")]),
    ],
)
def test_other_arrays_come_back_unchanged(array):
    assert optimize_array_memory(array) is array


@settings(max_examples=200, deadline=None)
@given(hnp.arrays(np.float64, 20), st.sampled_from([1e-7, 1e-3, 0.5]))
def test_a_requested_error_bound_is_kept(array, relative):
    back = optimize_array_memory(array, relative_error=relative).astype(np.float64)
    finite = np.isfinite(array)
    np.testing.assert_array_equal(back[~finite], array[~finite])
    error = np.abs(back[finite] - array[finite])
    assert (error <= relative * np.abs(array[finite])).all()


def test_a_permitted_error_makes_it_smaller():
    array = np.linspace(0.1, 1, 100)
    kinds = [
        optimize_array_memory(array, relative_error=error).dtype
        for error in (0.0, 1e-8, 1e-7)
    ]
    assert kinds == ["float64", "float64", "float32"]


def test_inputs_are_not_modified():
    array = np.array([1.5, 2.5])
    small = optimize_array_memory(array)
    small[0] = 7
    assert array.tolist() == [1.5, 2.5]


@pytest.mark.parametrize("error", [-1.0, 1.0, float("nan")])
def test_impossible_errors_are_refused(error):
    with refuses(ValueError, "relative_error", error):
        optimize_array_memory(np.ones(2), relative_error=error)


def test_a_list_is_refused_as_an_array():
    with refuses(TypeError, "arr", "list"):
        optimize_array_memory([1, 2])  # pyrefly: ignore[bad-argument-type]
