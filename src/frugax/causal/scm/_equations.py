"""What a user writes to describe a model, read and checked before any array is made.

Reads: equations, names, numbers. Gives: the same, or an error that names the place.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

Equation: TypeAlias = Mapping[str, float] | Callable[[Mapping[str, Any], Any], Any]
"""Weights of the parents, or a function of the parents' values and the noise."""

_LARGEST = float(np.finfo(np.float32).max)


class _Reads(Mapping[str, Any]):
    """Values that note which of them are read.

    No dict: its `get` and `values` would read without asking `__getitem__`.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.all, self.read = dict(values), list[str]()

    def __getitem__(self, name: str) -> Any:
        value = self.all[name]
        if name not in self.read:
            self.read.append(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)


def parents_read_by(
    function: Callable[..., Any], name: str, names: tuple[str, ...]
) -> tuple[str, ...]:
    """The parents that a function reads when it is called once.

    Raises:
        ValueError: it cannot be called, reads a variable that there is not, or gives
            no numbers.
    """
    half = np.broadcast_to(0.5, 1)  # read-only
    values = _Reads({other: half for other in names if other != name})
    with np.errstate(all="ignore"):
        value_of(function, name, values, np.zeros(1))
    return tuple(values.read)


def value_of(
    function: Callable[..., Any], name: str, parents: Mapping[str, Any], noise: Any
) -> Any:
    """What a user's function makes of its parents and noise.

    Args:
        function: the user's own.
        name: of its variable.
        parents: what it may read; NumPy arrays are read-only, as others read them too.
        noise: `(rows,)`, of NumPy or of JAX.

    Raises:
        ValueError: it fails, or gives neither one number nor one for each row.
    """
    try:
        given = function(parents, noise)
        value = given if hasattr(given, "dtype") else np.asarray(given)
    except Exception as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(
            f"the function of {name!r} failed ({why:.200}): it is called as "
            "function(parents, noise) on arrays that are not to be written to, and may "
            f"read {', '.join(parents) or 'no other variable'}. Mend it, or name all "
            "that it reads in parents=."
        ) from error
    shape, number = np.shape(value), value.dtype.kind in "biufV"  # V: bfloat16
    if not number or shape not in ((), (1,), noise.shape):
        what = f"an array of shape {shape}" if number else f"{given!r:.60}"
        raise ValueError(
            f"the function of {name!r} gives {what}: it must give one number for each "
            f"row, {len(noise)} here, or one for all of them."
        )
    return value


def names_of(equations: Mapping[str, Equation]) -> tuple[str, ...]:
    """The variables of a model.

    Raises:
        ValueError: there is none, or one is no name.
    """
    if not equations:
        raise ValueError("a model needs at least one variable; there is none.")
    for name in equations:
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"a variable needs a name, not {name!r:.60}.")
    return tuple(equations)


def check_known(given: Iterable[str], names: tuple[str, ...], where: str) -> None:
    """Refuse a name that is no variable.

    Raises:
        ValueError: there is one.
    """
    for name in given:
        if name not in names:
            shown = ", ".join(map(str, names))
            raise ValueError(
                f"{where}: there is no variable {name!r}, only {shown:.200}."
            )


def finite(value: float, what: str) -> float:
    """The value as a number.

    Raises:
        TypeError: it is none.
        ValueError: it is not finite, or too large for float32.
    """
    if isinstance(value, str | bytes) or np.ndim(value):
        raise TypeError(f"{what} must be a number, not {value!r:.60}.")
    try:
        number = float(value)
    except TypeError as error:
        raise TypeError(f"{what} must be a number, not {value!r:.60}.") from error
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) and not isinstance(value, int):
        raise ValueError(f"{what} must be finite, got {value}.")
    if abs(number) > _LARGEST:
        raise ValueError(
            f"{what} is {value!s:.60}, too large for float32: take a larger unit."
        )
    return number


def by_name(value: Any, names: tuple[str, ...], what: str, default: Any) -> list[Any]:
    """One value for each variable, from one for all or some by name."""
    if isinstance(value, Mapping):
        check_known(value, names, what)
        return [value.get(name, default) for name in names]
    return [value] * len(names)
