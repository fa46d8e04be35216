"""One parser reads bytes, seconds and shares; its errors name value and remedy."""

import pytest
from hypothesis import given, strategies as st

from frugax.budget import (
    format_bytes,
    format_seconds,
    parse_bytes,
    parse_seconds,
    parse_share,
)
from refusals import refuses


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1B", 1),
        ("1kB", 1000),
        ("1KiB", 1024),
        ("2 GiB", 2 * 2**30),
        (" 1.5MiB ", 3 * 2**19),
        ("1_000B", 1000),
        ("1e3B", 1000),
        (".5KiB", 512),
        ("2.4MiB", 2516582),
    ],
)
def test_bytes(text, expected):
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", 90),
        ("1.5min", 90),
        ("1h30min", 5400),
        ("1h 30min", 5400),
        ("250ms", 0.25),
        ("2d", 172800),
    ],
)
def test_seconds(text, expected):
    assert parse_seconds(text) == expected


@pytest.mark.parametrize(("text", "share"), [("1%", 0.01), ("0.5 %", 0.005), (1, 1.0)])
def test_shares(text, share):
    assert parse_share(text) == share


@pytest.mark.parametrize(
    ("read", "wrong", "error"),
    [
        (parse_bytes, "2GBit", ValueError),
        (parse_bytes, "2", ValueError),
        (parse_bytes, "-2GiB", ValueError),
        (parse_bytes, "much", ValueError),
        (parse_bytes, "", ValueError),
        (parse_bytes, "0.1B", ValueError),
        (parse_bytes, 0, ValueError),
        (parse_bytes, True, TypeError),
        (parse_seconds, "10", ValueError),
        (parse_seconds, "3 fortnights", ValueError),
        (parse_seconds, "1:30", ValueError),
        (parse_seconds, 0, ValueError),
        (parse_seconds, float("inf"), ValueError),
        (parse_seconds, float("nan"), ValueError),
        (parse_share, "1", ValueError),
        (parse_share, 5, ValueError),
        (parse_share, "200%", ValueError),
        (parse_share, -0.1, ValueError),
    ],
)
def test_wrong_amounts_are_refused_by_name(read, wrong, error):
    with refuses(error, "limit") as caught:
        read(wrong, name="limit")
    assert str(caught.value).startswith("limit")


@given(st.integers(1, 10**15))
def test_bytes_come_back(n):
    assert parse_bytes(f"{n}B") == n


@given(st.floats(1, 2**50))
def test_written_bytes_read_back_to_four_digits(n):
    unit = format_bytes(n).split()[1]
    value = float(format_bytes(n).split()[0])
    scale = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}[unit]
    assert value * scale == pytest.approx(n, rel=1e-3)


@given(st.floats(1e-3, 1e6))
def test_written_seconds_read_back_to_two_digits(s):
    text = format_seconds(s).replace(" h ", "h").replace(" ", "")
    # Above 1.5 h whole minutes are written: half a minute in 90.
    assert parse_seconds(text) == pytest.approx(s, rel=1e-2)
