"""Parse and format bytes, seconds and shares as people write them: `"2GiB"`, `"1%"`.

This is the only such parser in frugax. Numbers are in the base unit (bytes, seconds, a
share of 1); text needs a unit, so that `"90"` is never taken for minutes.
"""

# Callers are checked at run time, whatever their annotations say.

import math
import numbers
import re
from decimal import Decimal
from fractions import Fraction

_BYTES = {"B": 1} | {
    prefix + suffix: base**power
    for base, suffix in ((1000, "B"), (1024, "iB"))
    for power, prefix in enumerate("KMGTP", start=1)
}
# SI writes kilo in lower case, but KB is as common and means 1,000 here, too. Only the
# i of KiB (IEC 80000-13) makes it 1,024.
_BYTES["kB"] = 1000
# Exact, so that sums such as 1h30min or 0.1s are rounded once, at their end.
_SECONDS = {
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
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
        example = 'for example "512MiB" or "2GB"'
        number, unit = _one_term(value, name, "bytes", example)
        if unit not in _BYTES:
            raise ValueError(_unit_text(value, name, unit, "bytes", _BYTES, example))
        value = int(number * _BYTES[unit])  # half a byte cannot be used
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
        example = 'for example "90s", "10min" or "1h30min"'
        terms = _terms(value)
        if not terms:
            raise ValueError(_shape_text(value, name, "seconds", example))
        total = Fraction(0)
        for number, unit in terms:
            if unit not in _SECONDS:
                raise ValueError(
                    _unit_text(value, name, unit, "time", _SECONDS, example)
                )
            total += number * _SECONDS[unit]
        value = float(total)
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
        example = 'for example "1%" or "0.5%"'
        number, unit = _one_term(value, name, "a share", example)
        if unit != "%":
            raise ValueError(
                f"{name} must be a number in [0, 1] or a percentage, got {value!r}; "
                f"{example}."
            )
        if number > 100:
            raise ValueError(f"{name} must be at most 100%, got {value!r}.")
        value = float(number / 100)
    number = _real(value, name, 'a number in [0, 1] or text such as "1%"')
    if number < 0:
        raise ValueError(f"{name} must be in [0, 1], got {number:g}.")
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
    number = _real(value, name, expected)
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


def _real(value: object, name: str, expected: str) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real | Decimal):
        raise TypeError(
            f"{name} must be {expected}, got {value!r:.80} of type "
            f"{type(value).__name__}."
        )
    try:
        number = float(value)
    except OverflowError:  # whole numbers from about 1.8e308 on
        number = math.inf
    # Each comparison with NaN is False, so such a limit could be neither kept nor
    # broken.
    if math.isnan(number):
        raise ValueError(f"{name} must be a number, got nan.")
    return number


def _terms(text: str) -> list[tuple[Fraction, str]]:
    """Split text into numbers with units; empty if it contains anything else."""
    found: list[tuple[Fraction, str]] = []
    at = 0
    while at < len(text):
        match = _TERM.match(text, at)
        if match is None or match.end() == at:
            return []
        found.append((Fraction(match[1].replace("_", "")), match[2]))
        at = match.end()
    return found


def _one_term(text: str, name: str, kind: str, example: str) -> tuple[Fraction, str]:
    terms = _terms(text)
    if len(terms) != 1:
        raise ValueError(_shape_text(text, name, kind, example))
    return terms[0]


def _shape_text(text: str, name: str, kind: str, example: str) -> str:
    if text.strip().startswith("-"):
        return f"{name} must be positive, got {text!r}: {kind}, {example}."
    return f"{name} must be {kind}: one number with its unit, {example}; got {text!r}."


def _unit_text(
    text: str,
    name: str,
    unit: str,
    kind: str,
    known: dict[str, int] | dict[str, Fraction],
    example: str,
) -> str:
    problem = "has no unit"
    if unit:
        problem = f"has the unit {unit!r}, which is not a unit of {kind}"
    return f"{name}: {text!r} {problem}. Use one of {', '.join(known)}, {example}."
