"""Parse and format bytes, seconds and shares as people write them: `"2GiB"`, `"1%"`.

This is the only such parser in frugax. Numbers are in the base unit (bytes, seconds, a
share of 1); text needs a unit, so that `"90"` is never taken for minutes.
"""

# Callers are checked at run time, whatever their annotations say.

import dataclasses
import math
import numbers
import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction


@dataclasses.dataclass(frozen=True)
class _Quantity:
    """How amounts of one quantity are written.

    Attributes:
        name: of the quantity, for messages.
        units: how many base units each has. Exact, so that sums such as 1h30min or 0.1s
            are rounded once, at their end.
        example: amounts as they are written.
        is_sum: whether one text may add up several numbers.
    """

    name: str
    units: Mapping[str, Fraction]
    example: str
    is_sum: bool = False


_BYTES = _Quantity(
    "bytes",
    {"B": Fraction(1)}
    | {
        prefix + suffix: Fraction(base**power)
        for base, suffix in ((1000, "B"), (1024, "iB"))
        for power, prefix in enumerate("KMGTP", start=1)
    }
    # SI writes kilo in lower case, but KB is as common and means 1,000 here, too. Only
    # the i of KiB (IEC 80000-13) makes it 1,024.
    | {"kB": Fraction(1000)},
    'for example "512MiB" or "2GB"',
)
_SECONDS = _Quantity(
    "time",
    {
        "ms": Fraction(1, 1000),
        "s": Fraction(1),
        "min": Fraction(60),
        "h": Fraction(3600),
        "d": Fraction(86400),
    },
    'for example "90s", "10min" or "1h30min"',
    is_sum=True,
)
_SHARE = _Quantity("a share", {"%": Fraction(1, 100)}, 'for example "1%" or "0.5%"')
# Signs are not read: every amount is positive or zero.
_NUMBER = r"(?:\d[\d_]*(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?"
_TERM = re.compile(rf"\s*({_NUMBER})\s*([A-Za-z%]*)\s*")


def parse_bytes(value: int | str, *, name: str = "value") -> int:
    """Read a number of bytes.

    Args:
        value: a whole number of bytes, or text such as `"2GiB"`, `"1.5 MB"`.
        name: of the value; used in error messages only.

    Returns:
        Bytes, > 0; fractions of a byte are rounded down.

    Raises:
        TypeError: `value` is neither an integer nor text.
        ValueError: `value` is less than one byte, or has no unit or an unknown one.

    Example:
        >>> parse_bytes("2GiB"), parse_bytes("1.5kB"), parse_bytes(7)
        (2147483648, 1500, 7)
    """
    if isinstance(value, str):
        value = int(_read(value, name, _BYTES))  # half a byte cannot be used
    elif isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(
            f"{name} must be a whole number of bytes or text such as "
            f'"512MiB", got {value!r} of type {type(value).__name__}.'
        )
    if value <= 0:
        raise ValueError(f"{name} must be > 0, got {value}.")
    return int(value)


def parse_seconds(value: float | str, *, name: str = "value") -> float:
    """Read a length of time.

    Args:
        value: seconds, or text such as `"90s"`, `"10min"`, `"1h30min"`, `"250ms"`.
        name: of the value; used in error messages only.

    Returns:
        Seconds, > 0 and finite.

    Raises:
        TypeError: `value` is neither a number nor text.
        ValueError: `value` is not positive or not finite, has no unit, or an
            unknown one.

    Example:
        >>> parse_seconds("90s"), parse_seconds("1h30min"), parse_seconds(0.5)
        (90.0, 5400.0, 0.5)
    """
    if isinstance(value, str):
        value = float(_read(value, name, _SECONDS))
    expected = 'a number of seconds or text such as "10min"'
    return check_amount(value, name, expected=expected)


def parse_share(value: float | str, *, name: str = "value") -> float:
    """Read a share of a whole.

    Args:
        value: a number in [0, 1], or text with a percent sign, such as `"1%"`.
        name: of the value; used in error messages only.

    Returns:
        The share, in [0, 1].

    Raises:
        TypeError: `value` is neither a number nor text.
        ValueError: `value` is outside [0, 1], or text without a percent sign.

    Example:
        >>> parse_share("1%"), parse_share(0.25)
        (0.01, 0.25)
    """
    if isinstance(value, str):
        share = _read(value, name, _SHARE)
        if share > 1:
            raise ValueError(f"{name} must be at most 100%, got {value!r}.")
        return float(share)
    expected = 'a number in [0, 1] or text such as "1%"'
    number = check_amount(value, name, expected=expected, zero=True)
    if number > 1:
        raise ValueError(
            f"{name} must be in [0, 1], got {number:g}. It is a share, not a "
            f'percentage: write {number / 100:g} or "{number:g}%" for '
            f"{number:g}%."
        )
    return number


def check_amount(
    value: object, name: str, *, expected: str = "a number", zero: bool = False
) -> float:
    """Check that a limit is a positive number, and convert it to a float.

    Args:
        value: the number; NumPy's, fractions and decimals, too.
        name: of the value; used in error messages only.
        expected: of a value that is not a number, for its message.
        zero: whether 0 is allowed.

    Raises:
        TypeError: `value` is not a number.
        ValueError: `value` is not finite, or not positive.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real | Decimal):
        raise TypeError(
            f"{name} must be {expected}, got {value!r:.80} of type "
            f"{type(value).__name__}."
        )
    try:
        number = float(value)
    except OverflowError:  # whole numbers from about 1.8e308 on
        number = math.inf
    # Written as `not`, so that NaN is refused too: such a limit could be neither kept
    # nor broken.
    if not 0 <= number < math.inf or not (zero or number):
        bound = ">= 0" if zero else "> 0"
        raise ValueError(f"{name} must be {bound} and finite, got {value!s:.20}.")
    return number


def format_bytes(n: float) -> str:
    """Format bytes in binary units.

    >>> format_bytes(1536), format_bytes(17)
    ('1.5 KiB', '17 B')
    """
    size = float(n)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"


def format_seconds(s: float) -> str:
    """Format a length of time.

    >>> format_seconds(0.0123), format_seconds(5400.0)
    ('12.3 ms', '1 h 30 min')
    """
    if s < 1:
        return f"{s * 1000:.3g} ms"
    if s < 120:
        return f"{s:.3g} s"
    minutes = round(s / 60)
    if minutes < 120 and s < 5400:
        return f"{s / 60:.3g} min"
    return f"{minutes // 60} h {minutes % 60} min"


def format_share(share: float) -> str:
    """Format a share as a percentage.

    >>> format_share(0.0125)
    '1.25%'
    """
    return f"{share * 100:.3g}%"


def _read(text: str, name: str, quantity: _Quantity) -> Fraction:
    """Read text as an amount in the base unit."""
    total, terms, at = Fraction(0), 0, 0
    example, units = quantity.example, quantity.units
    while match := _TERM.match(text, at):
        number, unit = match.groups()
        if unit not in units:
            problem = "has no unit"
            if unit:
                problem = (
                    f"has the unit {unit!r}, which is not a unit of {quantity.name}"
                )
            raise ValueError(
                f"{name}: {text!r} {problem}. Use one of {', '.join(units)}, {example}."
            )
        total += Fraction(number.replace("_", "")) * units[unit]
        terms, at = terms + 1, match.end()
    if at < len(text) or not (terms == 1 or (terms and quantity.is_sum)):
        problem = "one number with its unit"
        if text.strip().startswith("-"):
            problem = "positive"
        raise ValueError(f"{name} must be {problem}, {example}; got {text!r}.")
    return total
