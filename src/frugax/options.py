"""Check the arguments of public functions; messages name the argument.

Python accepts "no" as true and 2.5 as a number of steps; the failure then shows much
later, in a message that names no option.
"""

import math
import numbers
import os
from collections.abc import Collection, Iterable


def join_first(
    items: Iterable[object], *, separator: str = " and ", limit: int = 3
) -> str:
    """Join the first items for a message, and add how many others there are."""
    texts = list(map(str, items))
    joined = separator.join(texts[:limit])
    if len(texts) > limit:
        joined += f" (and {len(texts) - limit} more)"
    return joined


def check_integer(name: str, value: object, *, minimum: int = 1) -> None:
    """Require an integer of at least `minimum`; NumPy's integers are accepted."""
    message = f"{name} must be an integer >= {minimum}, got {value!r:.99}."
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(message)
    if int(value) < minimum:
        raise ValueError(message)


def check_number(
    name: str,
    value: object,
    *,
    above: float = -math.inf,
    minimum: float = -math.inf,
    allow_infinite: bool = False,
) -> None:
    """Require a number greater than `above`, or of at least `minimum`."""
    limit = f"> {above:g}" if above > -math.inf else f">= {minimum:g}"
    kind = "number" if allow_infinite else "finite number"
    message = f"{name} must be a {kind} {limit}, got {value!r:.99}."
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(message)
    number = float(value)
    is_allowed = allow_infinite or math.isfinite(number)
    if not (is_allowed and number >= minimum and number > above):
        raise ValueError(message)


def check_flag(name: str, value: object) -> None:
    """Require True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r:.99}.")


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Require one of several names."""
    if not isinstance(value, str) or value not in choices:
        names = ", ".join(f'"{choice}"' for choice in choices)
        raise ValueError(f"{name} must be one of {names}, got {value!r:.99}.")


def check_function(name: str, value: object, *, example: str) -> None:
    """Require a callable; `example` shows how it is called, such as `evaluate(state)`.

    Raises:
        TypeError: `value` is not callable.
    """
    if not callable(value):
        raise TypeError(
            f"{name} must be a function, called as {example}, got {value!r:.99}."
        )


def check_instance(name: str, value: object, cls: type, *, example: str = "") -> None:
    """Require an instance of `cls`; `example` shows how to make one."""
    if not isinstance(value, cls):
        such = f", such as {example}" if example else ""
        raise TypeError(
            f"{name} must be of class {cls.__name__}{such}, got {value!r:.99}."
        )


def check_path(name: str, value: object) -> None:
    """Require the name of a file or folder."""
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(
            f"{name} must be a path, such as 'runs/one', got {value!r:.99}."
        )
    if "\0" in os.fspath(value):
        raise ValueError(f"{name} must not contain a null character: {value!r:.99}.")
