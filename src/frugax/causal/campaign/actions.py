"""The domain of each variable that experiments set: continuous, integer, categorical.

Tables hold numbers, so each value has a code: itself, 0 or 1 for a switch, and the
position of its name for a category. Models have another scale for a `Logarithmic`
variable: its logarithm to base 10.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from jaxtyping import Bool, Float

from frugax.causal.data import is_missing, parse_number

# More are not looked through one by one.
_MAX_LISTED = 1000
_FLOAT32_TINY = float(np.finfo(np.float32).tiny)


@dataclasses.dataclass(frozen=True, slots=True)
class Logarithmic:
    """Any positive number of a range over orders of magnitude, such as 1e-9 to 1e-3.

    Experiments are spread, and effects are modelled, over its logarithm.

    Attributes:
        log_range: the least and the greatest value, both positive.
    """

    log_range: tuple[float, float]

    def __post_init__(self) -> None:
        try:
            # `float` would read the text "1", and take True for 1.
            if any(isinstance(end, bool | str) for end in self.log_range):
                raise TypeError
            low, high = map(float, self.log_range)
        except (TypeError, ValueError):
            low = high = math.nan
        # Tables hold float32.
        if not _FLOAT32_TINY <= low < high < math.inf:
            raise ValueError(
                f"log_range must be (least, greatest), from {_FLOAT32_TINY:.2g}, got "
                f"{self.log_range!r:.80}: a range that holds 0 is a plain pair."
            )
        object.__setattr__(self, "log_range", (low, high))


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
        if len(self.levels) < 2:
            raise ValueError(f"levels must be two names or more, got {levels!r:.80}.")
        for name in self.levels:
            if self.levels.count(name) > 1:
                raise ValueError(
                    f"levels must be different, but {levels!r:.80} names {name!r} "
                    "twice: remove one."
                )

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
        # `float` would read the text "1", and take True for 1.
        numbers = not any(isinstance(v, str | bool) for v in self.values)
        try:
            values = tuple(sorted({float(v) for v in self.values if numbers}))
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


Action: TypeAlias = (
    tuple[float, float] | Logarithmic | Integer | Grid | Categorical | Binary
)
"""How a variable may be set; a pair is a continuous range."""

Setting: TypeAlias = float | int | bool | str
"""A value as the laboratory sets it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JointLimit:
    """Bounds of a weighted sum of variables that one experiment sets together.

    It counts for experiments that set all the variables it names.

    Attributes:
        weights: the weight of each variable in the sum.
        low: the least sum; None for no bound.
        high: the greatest sum; None for no bound.
        when: values of other variables without which the limit does not count, such as
            `{"solvent": "water"}`.
    """

    weights: dict[str, float]
    low: float | None = None
    high: float | None = None
    when: dict[str, Setting] = dataclasses.field(default_factory=dict)

    def check(self, variables: Mapping[str, Action]) -> None:
        """Refuse a limit that does not fit the variables.

        Raises:
            ValueError: it names an unknown variable or level, or has no bound.
        """
        names = [*self.weights, *self.when]
        for name in names:
            if name not in variables:
                raise ValueError(
                    f"joint_limits names {name!r}, which is not one of the variables "
                    f"{', '.join(variables):.200}."
                )
        if len(set(names)) < len(names) or len(names) < 2 or not self.weights:
            raise ValueError(
                f"joint_limits must each name two variables or more, each once, got "
                f"{names}: for one, change its range."
            )
        for name in names:
            if isinstance(variables[name], Logarithmic):
                raise ValueError(
                    f"joint_limits names {name!r}, which has a logarithmic range: give "
                    "it a plain range (low, high), or limit it without joint_limits."
                )
        for name in self.weights:
            if isinstance(variables[name], Categorical):
                raise ValueError(
                    f"joint_limits gives the category {name!r} a weight: name its "
                    "level in when instead."
                )
        for name, value in self.when.items():
            to_code(name, value, variables[name])
        ends = [end for end in (self.low, self.high) if end is not None]
        numbers = [*ends, *self.weights.values()]
        if not ends or not all(map(math.isfinite, numbers)):
            raise ValueError(
                "joint_limits needs finite weights, and low or high, got "
                f"{self.weights}, {self.low} and {self.high}."
            )
        if len(ends) == 2 and ends[0] >= ends[1]:
            # Almost no candidate would keep an equation.
            raise ValueError(
                f"joint_limits needs low < high, got {self.low} and {self.high}: where "
                "a sum is fixed, leave one of its variables out."
            )
        ends = [
            sorted(weight * end for end in bounds(variables[name]))
            for name, weight in self.weights.items()
        ]
        least, most = (sum(each) for each in zip(*ends, strict=True))
        slack = 1e-9 * max(abs(least), abs(most))
        if (self.low is not None and self.low > most + slack) or (
            self.high is not None and self.high < least - slack
        ):
            raise ValueError(
                f"joint_limits allows {self.low} to {self.high}, but the sum of "
                f"{', '.join(self.weights)} is {least:g} to {most:g}: change the "
                "limit, or forbid the set in forbidden_sets."
            )

    def permits(
        self,
        names: Sequence[str],
        values: Float[np.ndarray, "points targets"],
        variables: Mapping[str, Action],
    ) -> Bool[np.ndarray, " points"]:
        """Return which experiments on some variables keep the limit."""
        found = np.ones(len(values), bool)
        if not {*self.weights, *self.when} <= {*names}:
            return found
        column = {name: values[:, i] for i, name in enumerate(names)}
        total = sum(weight * column[name] for name, weight in self.weights.items())
        # Sums are rounded: 0.1 + 0.2 keeps a limit of 0.3.
        slack = 1e-9 * sum(
            abs(weight) * max(map(abs, bounds(variables[name])))
            for name, weight in self.weights.items()
        )
        if self.low is not None:
            found &= total >= self.low - slack
        if self.high is not None:
            found &= total <= self.high + slack
        for name, value in self.when.items():
            found |= column[name] != to_code(name, value, variables[name])
        return found


def bounds(action: Action) -> tuple[float, float]:
    """Return the least and the greatest value, or code."""
    if isinstance(action, tuple):
        return action
    if isinstance(action, Logarithmic):
        return action.log_range
    return float(action.codes[0]), float(action.codes[-1])


def snap(
    values: Float[np.ndarray, " points"], action: Action
) -> Float[np.ndarray, " points"]:
    """Move values to the nearest ones that can be set."""
    if isinstance(action, tuple | Logarithmic):
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
    # NumPy's scalars would be printed as `np.str_('Zn')`.
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(action, Categorical):
        if value in action.levels:
            return float(action.levels.index(value))
        if isinstance(value, str) or value not in range(len(action.levels)):
            raise ValueError(
                f"{name!r} must be one of {', '.join(action.levels):.200}, got "
                f"{value!r:.80}."
            )
        if any(
            parse_number(level) is not None and not is_missing(level)
            for level in action.levels
        ):
            # The code 1 stands for the second level, which may be called "2".
            raise ValueError(
                f"{name!r} has levels that look like numbers, got {value!r:.80}: give "
                "levels as text."
            )
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    is_code = not isinstance(action, Binary) or number in (0, 1)
    if isinstance(action, Logarithmic) and number <= 0:
        raise ValueError(
            f"{name!r} has a logarithmic range and must be positive, got {value!r:.80}."
        )
    if isinstance(value, str) or not math.isfinite(number) or not is_code:
        kind = "on or off" if isinstance(action, Binary) else "a finite number"
        raise ValueError(f"{name!r} must be {kind}, got {value!r:.80}.")
    return number


def scale_for_models(
    values: Mapping[str, float], variables: Mapping[str, Action]
) -> dict[str, float]:
    """Convert numbers to those that models have: logarithms of some variables."""
    return {
        name: math.log10(x) if isinstance(variables.get(name), Logarithmic) else x
        for name, x in values.items()
    }


def scale_back(
    values: Mapping[str, float], variables: Mapping[str, Action]
) -> dict[str, float]:
    """Convert the numbers of models to values that can be set."""
    found: dict[str, float] = {}
    for name, x in values.items():
        action = variables.get(name)
        if isinstance(action, Logarithmic):
            # The power of an end's logarithm is rounded to either side of it.
            low, high = action.log_range
            x = min(max(10.0**x, low), high)
        found[name] = x
    return found


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
    return f"do({list_settings(settings)})" if settings else "do nothing"


def list_settings(settings: Mapping[str, Setting]) -> str:
    """List variables with their values: `dose = 2, kind = B`."""
    parts: list[str] = []
    for name, value in sorted(settings.items()):
        if isinstance(value, bool):
            value = "on" if value else "off"
        text = value if isinstance(value, str) else f"{value:g}"
        parts.append(f"{name} = {text}")
    return ", ".join(parts)
