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

LANES = np.broadcast_to(np.arange(6)[:, None, None], (6, 2, 3))
PIXELS = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)


@pytest.mark.parametrize(
    ("picture", "kind", "codes", "described"),
    [
        (make_picture([[0, 1, 2], [7, 8, 9]]), "digits", [[0, 1, 2], [7, 8, 9]], "3"),
        (make_picture([[-1, 2]]), "digits", [[0, 2]], "1 × 2, 1 masked"),
        (make_picture([[1, 2]], [[1, 0]]), "digits", [[1, 0]], "1 × 2, 1 masked"),
        (make_picture(jnp.array([[1, 2]])), "digits", [[1, 2]], "1 × 2"),
        (make_picture([[10, 11]]), "ramp", [[0, 254]], "10 to 11"),
        (make_picture([[-3.0, np.nan, 1, np.inf]]), "ramp", [[0, 0, 254, 0]], "2 mask"),
        # The difference of the ends would overflow.
        (make_picture([[-1.7e308, 0.0, 1.7e308]]), "ramp", [[0, 127, 254]], "e+308"),
        (make_picture(np.full((1, 2), -1e308)), "ramp", [[0, 0]], "1 × 2"),
        (make_picture(np.full((1, 1), 0.0)), "ramp", [[0]], "0 to 0"),
        (
            make_picture(np.array([[1.5, 2.5]], ml_dtypes.bfloat16)),
            "ramp",
            [[0, 254]],
            "1.5 to 2.5",
        ),
        (make_picture(PIXELS), "colours", PIXELS, "2 × 4"),
        (
            make_picture(LANES[:, :1, :1]),
            "digits",
            [[0, 0, 1, 0, 2, 0, 3]],
            "1 × 7, 4 of 6 lanes",
        ),
        (
            make_picture(np.zeros((4, 10), int)).shrink(4),
            "digits",
            [[0] * 4] * 2,
            "1 of 3 rows and columns of 4 × 10",
        ),
    ],
)
def test_an_array_becomes_codes_and_says_what_is_shown(picture, kind, codes, described):
    assert picture.kind == kind
    np.testing.assert_array_equal(picture.codes, codes)
    assert described in picture.describe()


def test_cells_have_colours_and_texts_where_they_are_known():
    shown = make_picture([[2, -1]], [[True, True]])
    assert shown.colours("arc").tolist() == [[[0xFF, 0x41, 0x36], [0xD9, 0xDD, 0xE2]]]
    assert [shown.cell_text(0, c) for c in range(2)] == ["2", ""]
    np.testing.assert_array_equal(make_picture(PIXELS).colours("arc"), PIXELS)
    gaps = np.flatnonzero(~make_picture(LANES).known[0])
    np.testing.assert_array_equal(gaps, [3, 7, 11])


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
def test_an_image_that_cannot_be_shown_is_refused_with_the_way_out(
    grid, mask, error, named
):
    with refuses(error, named):
        make_picture(grid, mask)
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
    small = picture_png(make_picture([[1, 2]]), "arc")  # its cells are drawn large
    assert unpacked(small).shape == (160, 320, 3)
