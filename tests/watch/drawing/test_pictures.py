"""The colours and bytes of a drawn array."""

import struct
import zlib

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from frugax.watch.drawing import (
    encode_png,
    make_picture,
    make_pictures,
    picture_png,
)
from refusals import refuses


def test_whole_numbers_up_to_nine_keep_their_value():
    grid = np.arange(10).reshape(2, 5)
    shown = make_picture(grid)
    assert shown.kind == "digits"
    np.testing.assert_array_equal(shown.codes, grid)
    assert [shown.cell_text(1, c) for c in range(5)] == list("56789")
    assert (shown.colours("arc")[0, 2] == [0xFF, 0x41, 0x36]).all()


def test_minus_one_and_masked_cells_are_not_known():
    shown = make_picture([[-1, 2], [3, 4]], [[True, True], [True, False]])
    np.testing.assert_array_equal(shown.known, [[False, True], [True, False]])
    assert shown.cell_text(0, 0) == ""
    assert "2 masked" in shown.describe()


def test_other_numbers_lie_on_a_colour_ramp_and_nan_is_left_out():
    shown = make_picture([[-3.0, np.nan], [1.0, np.inf]])
    assert (shown.kind, shown.low, shown.high) == ("ramp", -3.0, 1.0)
    np.testing.assert_array_equal(shown.known, [[True, False], [True, False]])
    assert shown.codes[0, 0] == 0
    assert shown.codes[1, 0] == 254
    assert make_picture([[10, 11]]).kind == "ramp"


@pytest.mark.parametrize("value", [0.0, 3.5, -1e308])
def test_one_value_everywhere_is_drawn(value):
    assert make_picture(np.full((2, 2), value)).codes.max() == 0


def test_the_widest_range_of_floats_does_not_overflow():
    shown = make_picture(np.array([[-1.7e308, 0.0, 1.7e308]]))
    np.testing.assert_array_equal(shown.codes, [[0, 127, 254]])


def test_bfloat16_and_jax_arrays_are_numbers():
    values = np.array([[1.5, 2.5]], ml_dtypes.bfloat16)
    assert make_picture(values).high == 2.5
    assert make_picture(jnp.array([[1, 2]])).kind == "digits"


def test_bytes_with_three_channels_are_colours():
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    shown = make_picture(pixels)
    assert shown.kind == "colours"
    np.testing.assert_array_equal(shown.colours("arc"), pixels)


def test_of_many_lanes_four_are_drawn():
    lanes = np.broadcast_to(np.arange(6)[:, None, None], (6, 2, 3))
    shown = make_picture(lanes)
    np.testing.assert_array_equal(shown.codes[0, ::4], [0, 1, 2, 3])
    np.testing.assert_array_equal(np.flatnonzero(~shown.known[0]), [3, 7, 11])
    assert shown.describe() == "2 × 15, 4 of 6 lanes"


def test_a_large_picture_is_thinned_with_a_note():
    shown = make_picture(np.zeros((10, 100), int)).shrink(40)
    assert (shown.rows, shown.columns) == (4, 34)
    assert "1 of 3 rows and columns of 10 × 100" in shown.describe()


def test_a_record_gives_every_array_a_picture_and_the_mask_to_those_it_fits():
    assert not make_pictures({"utf8": np.zeros(1024, np.uint8)})  # a text
    found = make_pictures(
        {
            "grid": np.ones((2, 2), int),
            "other": np.ones((3, 3), int),
            "mask": np.array([[True, False], [True, True]]),
            "reward": np.array(1.0),
        }
    )
    assert list(found) == ["grid", "other"]
    assert found["grid"].known.sum() == 3
    assert found["other"].known.all()


@pytest.mark.parametrize(
    ("grid", "mask", "error", "named"),
    [
        (np.zeros((0, 3)), None, ValueError, "empty"),
        ([[1, 2]], [[True]], ValueError, "(1, 2)"),
        (np.array([["a"]]), None, TypeError, "numbers"),
        (np.array([[1j]]), None, TypeError, "numbers"),
    ],
)
def test_an_image_that_cannot_be_shown_is_refused(grid, mask, error, named):
    with refuses(error, named):
        make_picture(grid, mask)


def test_inside_jit_the_error_names_the_way_out():
    with refuses(TypeError, "jax_log_grid", "jit"):
        jax.jit(lambda x: make_picture(x).codes)(jnp.zeros((2, 2)))


def unpacked(data):
    """The pixels of a PNG file, its checks included."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, parts = 8, {}
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        (check,) = struct.unpack(">I", data[at + 8 + size : at + 12 + size])
        assert check == zlib.crc32(kind + body)
        parts[kind] = body
        at += 12 + size
    columns, rows = struct.unpack(">II", parts[b"IHDR"][:8])
    lines = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(rows, -1)
    assert (lines[:, 0] == 2).all()
    return lines[:, 1:].cumsum(axis=0, dtype=np.uint8).reshape(rows, columns, 3)


@settings(max_examples=30, deadline=None)
@given(
    hnp.arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(3)))
)
def test_a_png_holds_the_pixels_it_was_made_from(pixels):
    np.testing.assert_array_equal(unpacked(encode_png(pixels)), pixels)
    large = unpacked(encode_png(pixels, scale=3))
    np.testing.assert_array_equal(large[1::3, 2::3], pixels)


def test_a_small_grid_is_a_png_with_large_cells():
    pixels = unpacked(picture_png(make_picture([[1, 2]]), "arc"))
    assert pixels.shape == (160, 320, 3)
