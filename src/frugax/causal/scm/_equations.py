"""Validate the equations of a user's SCM, and detect the parents that they read."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

Equation: TypeAlias = Mapping[str, float] | Callable[[Mapping[str, Any], Any], Any]
"""Weights of the parents, or a function of the parents' values and the noise."""

# The arrays of a model are float32, in which a larger number would become infinite
# without an error.
_LARGEST = float(np.finfo(np.float32).max)


class _RecordingMapping(Mapping[str, Any]):
    """Values that record which of them are read.

    A dict subclass would not do: its `get` and `values` bypass `__getitem__`.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values_by_name, self.names_read = dict(values), list[str]()

    def __getitem__(self, name: str) -> Any:
        value = self.values_by_name[name]
        if name not in self.names_read:
            self.names_read.append(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)


def detect_parents(
    function: Callable[..., Any], name: str, names: tuple[str, ...]
) -> tuple[str, ...]:
    """Call a function once and return the parents that it reads."""
    # 0.5 lies in the domains of logarithms, roots and arcsines, so the call seldom
    # fails for its value.
    half = np.broadcast_to(0.5, 1)  # read-only
    values = _RecordingMapping({other: half for other in names if other != name})
    # One made-up row: an overflow or 0/0 here says nothing about real data.
    with np.errstate(all="ignore"):
        call_function(function, name, values, np.zeros(1))
    return tuple(values.names_read)


def call_function(
    function: Callable[..., Any], name: str, parents: Mapping[str, Any], noise: Any
) -> Any:
    """Call the user's function of variable `name` and check the result."""
    try:
        result = function(parents, noise)
        value = result if hasattr(result, "dtype") else np.asarray(result)
    except Exception as error:
        # One line is enough: JAX's errors about tracers run over a page.
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(
            f"the function of {name!r} failed ({why:.200}): it is called as "
            "function(parents, noise) on read-only arrays, and may read "
            f"{', '.join(parents) or 'no other variable'}. Correct it, or list all "
            "variables that it reads in parents=."
        ) from error
    shape, is_number = np.shape(value), value.dtype.kind in "biufV"  # V: bfloat16
    if not is_number or shape not in ((), (1,), noise.shape):
        what = f"an array of shape {shape}" if is_number else f"{result!r:.60}"
        raise ValueError(
            f"the function of {name!r} gives {what}: it must give one number for each "
            f"row, {len(noise)} here, or one for all of them."
        )
    return value


def check_names(equations: Mapping[str, Equation]) -> tuple[str, ...]:
    """Return the names of a model's variables."""
    if not equations:
        raise ValueError("a model needs at least one variable; there is none.")
    for name in equations:
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"a variable needs a name, not {name!r:.60}.")
    return tuple(equations)


def check_known(names: Iterable[str], known: tuple[str, ...], where: str) -> None:
    """Raise unless all names are variables; `where` begins the message."""
    for name in names:
        if name not in known:
            listed = ", ".join(map(str, known))
            raise ValueError(
                f"{where}: there is no variable {name!r}, only {listed:.200}."
            )


def to_finite(value: float, what: str) -> float:
    """Convert to a float that float32 can hold; `what` names it in messages."""
    # `float` also accepts "1.5" and arrays of one number, which are mistakes here.
    if isinstance(value, str | bytes) or np.ndim(value):
        raise TypeError(f"{what} must be a number, not {value!r:.60}.")
    try:
        number = float(value)
    except TypeError as error:
        raise TypeError(f"{what} must be a number, not {value!r:.60}.") from error
    except OverflowError:  # a Python int of more than 308 digits
        number = math.inf
    # An int is always finite: a huge one goes on to the message about its size.
    if not math.isfinite(number) and not isinstance(value, int):
        raise ValueError(f"{what} must be finite, got {value}.")
    if abs(number) > _LARGEST:
        raise ValueError(
            f"{what} is {value!s:.60}, too large for float32: take a larger unit."
        )
    return number


def expand_by_name(
    value: Any, names: tuple[str, ...], what: str, default: Any
) -> list[Any]:
    """Expand one value for all, or some values by name, to one per variable."""
    if isinstance(value, Mapping):
        check_known(value, names, what)
        return [value.get(name, default) for name in names]
    return [value] * len(names)
