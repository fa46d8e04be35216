"""The domain of each variable that experiments set: continuous, integer, categorical.

Tables hold numbers, so each value has a code: itself, 0 or 1 for a switch, and the
position of its name for a category.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from jaxtyping import Float

# More are not looked through one by one.
_MAX_LISTED = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class Continuous:
    """Any number of a range; a pair (low, high) means the same.

    Attributes:
        low: the least value.
        high: the greatest value.
    """

    low: float
    high: float


@dataclasses.dataclass(frozen=True, slots=True)
class Integer:
    """Any whole number of a range.

    Attributes:
        low: the least value.
        high: the greatest value.
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        for end in (self.low, self.high):
            if isinstance(end, bool) or not isinstance(end, int):
                raise ValueError(f"Integer needs whole numbers, got {end!r:.80}.")
        if self.low >= self.high:
            raise ValueError(
                f"Integer needs low < high, got {self.low} and {self.high}."
            )

    @property
    def codes(self) -> Float[np.ndarray, " levels"]:
        """The values; of very many, evenly spaced ones."""
        count = min(self.high - self.low + 1, _MAX_LISTED)
        return np.unique(np.linspace(self.low, self.high, count).round())


@dataclasses.dataclass(frozen=True, slots=True)
class Binary:
    """A switch: False (0) or True (1)."""

    binary: Literal[True] = True

    codes: ClassVar[np.ndarray] = np.array([0.0, 1.0])


@dataclasses.dataclass(frozen=True, slots=True)
class Categorical:
    """One of several names without an order.

    Attributes:
        levels: the names, two or more.
    """

    levels: tuple[str, ...]

    def __post_init__(self) -> None:
        levels = self.levels
        if isinstance(levels, str):
            raise ValueError(f"levels must be a list of names, got {levels!r:.80}.")
        object.__setattr__(self, "levels", tuple(levels))
        if not all(isinstance(n, str) and n.strip() for n in levels):
            raise ValueError(f"levels must be names, got {levels!r:.80}.")
        if len(set(levels)) < len(self.levels) or len(self.levels) < 2:
            raise ValueError(f"levels must be two names or more, got {levels!r:.80}.")

    @property
    def codes(self) -> Float[np.ndarray, " levels"]:
        """The position of each name."""
        return np.arange(len(self.levels), dtype=float)


@dataclasses.dataclass(frozen=True, slots=True)
class Grid:
    """One of several numbers.

    Attributes:
        values: the numbers, two or more.
    """

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        try:
            values = tuple(sorted({float(v) for v in self.values}))
        except (TypeError, ValueError):
            values = ()
        if len(values) < 2 or not all(map(math.isfinite, values)):
            raise ValueError(
                f"values must be two finite numbers or more, got {self.values!r:.80}."
            )
        object.__setattr__(self, "values", values)

    @property
    def codes(self) -> Float[np.ndarray, " levels"]:
        """The values, in ascending order."""
        return np.array(self.values)


Action: TypeAlias = tuple[float, float] | Integer | Grid | Categorical | Binary
"""How a variable may be set; a pair is a continuous range."""

Setting: TypeAlias = float | int | bool | str
"""A value as the laboratory sets it."""


def bounds(action: Action) -> tuple[float, float]:
    """Return the least and the greatest value, or code."""
    if isinstance(action, tuple):
        return action
    return float(action.codes[0]), float(action.codes[-1])


def snap(
    values: Float[np.ndarray, " points"], action: Action
) -> Float[np.ndarray, " points"]:
    """Move values to the nearest ones that can be set."""
    if isinstance(action, tuple):
        return values
    if isinstance(action, Integer):
        return np.clip(values.round(), action.low, action.high)
    codes = action.codes
    return codes[np.abs(values[:, None] - codes).argmin(1)]


def to_code(name: str, value: Any, action: Action) -> float:
    """Convert a value as the laboratory says it to a number.

    Raises:
        ValueError: it is neither a finite number nor a name that the variable has.
    """
    if isinstance(action, Categorical):
        if value in action.levels:
            return float(action.levels.index(value))
        if isinstance(value, str) or value not in range(len(action.levels)):
            raise ValueError(
                f"{name!r} must be one of {', '.join(action.levels):.200}, got "
                f"{value!r:.80}."
            )
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, str) or not math.isfinite(number):
        raise ValueError(f"{name!r} must be a finite number, got {value!r:.80}.")
    return number


def to_settings(
    values: Mapping[str, float], variables: Mapping[str, Action]
) -> dict[str, Setting]:
    """Convert numbers to the values that the laboratory sets."""
    return {
        name: _to_setting(code, variables.get(name, (0.0, 1.0)))
        for name, code in values.items()
    }


def _to_setting(code: float, action: Action) -> Setting:
    if isinstance(action, Categorical):
        return action.levels[round(code)]
    if isinstance(action, Binary) and code in (0, 1):
        return bool(code)
    if isinstance(action, Integer) and code == round(code):
        return round(code)
    return float(code)


def describe_settings(settings: Mapping[str, Setting]) -> str:
    """Describe an experiment in words: `do(dose = 2, kind = B)`, or `do nothing`."""
    if not settings:
        return "do nothing"
    parts: list[str] = []
    for name, value in sorted(settings.items()):
        if isinstance(value, bool):
            value = "on" if value else "off"
        text = value if isinstance(value, str) else f"{value:g}"
        parts.append(f"{name} = {text}")
    return f"do({', '.join(parts)})"
