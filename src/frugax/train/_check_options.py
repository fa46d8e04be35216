"""Options are checked where they are given: by name, with what is allowed.

Python takes "no" for true and 2.5 for a number of steps; what comes of that shows much
later, in words that name no option.
"""

import math
import numbers
import os
from collections.abc import Collection, Sequence


def check_whole(name: str, value: object, *, least: int = 1) -> None:
    """Refuse what is no whole number of at least `least`; NumPy's are whole too.

    Raises:
        TypeError: it is no whole number; True and 2.0 are none.
        ValueError: it is too small.
    """
    allowed = f"{name} must be a whole number >= {least}, got {value!r:.99}."
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(allowed)
    if int(value) < least:
        raise ValueError(allowed)


def check_number(
    name: str,
    value: object,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    infinite: bool = False,
) -> None:
    """Refuse what is no number, greater than one limit or at least another.

    Raises:
        TypeError: it is no number.
        ValueError: it is NaN or too small, or infinite where it must not be.
    """
    limit = f"> {above:g}" if above > -math.inf else f">= {least:g}"
    kind = "number" if infinite else "finite number"
    allowed = f"{name} must be a {kind} {limit}, got {value!r:.99}."
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(allowed)
    number = float(value)
    ends = infinite or math.isfinite(number)
    if not (ends and number >= least and number > above):
        raise ValueError(allowed)


def check_flag(name: str, value: object) -> None:
    """Refuse what is neither True nor False.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r:.99}.")


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Refuse a name that is not among those there are.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(value, str) or value not in choices:
        said = ", ".join(f'"{choice}"' for choice in choices)
        raise ValueError(f"{name} must be one of {said}, got {value!r:.99}.")


def check_function(name: str, value: object, *, example: str) -> None:
    """Refuse what cannot be called.

    Args:
        name: of the option.
        value: what was given.
        example: how it will be called, such as `evaluate(state)`.

    Raises:
        TypeError: it cannot.
    """
    if not callable(value):
        raise TypeError(
            f"{name} must be a function, called as {example}, got {value!r:.99}."
        )


def check_made_by(name: str, value: object, kind: type, *, example: str) -> None:
    """Refuse what is not of a class of ours.

    Args:
        name: of the option.
        value: what was given.
        kind: the class.
        example: how to make one, such as `train.EarlyStop()`.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(value, kind):
        raise TypeError(
            f"{name} must be of class {kind.__name__}, such as {example}, got "
            f"{value!r:.99}."
        )


def check_path(name: str, value: object) -> None:
    """Refuse what names no file or folder.

    Raises:
        TypeError: it is neither text nor a path.
        ValueError: it holds a null character, which no name can.
    """
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(
            f"{name} must be a path, such as 'runs/one', got {value!r:.99}."
        )
    if "\0" in os.fspath(value):
        raise ValueError(f"{name} must hold no null character, got {value!r:.99}.")


def check_arguments(name: str, value: object) -> None:
    """Refuse one array where a tuple of arguments is wanted.

    Raises:
        TypeError: it is no tuple or list.
    """
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise TypeError(
            f"{name} must be a tuple of arguments, such as (weights, x), got "
            f"{value!r:.99}."
        )
