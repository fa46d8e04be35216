"""What an experimenter does to variables: set, shift, scale, or try to set them.

All kinds are one formula, so that programs need no branch on the kind:

    x_j = keep * natural_j + value + sd * noise    with probability `hit`
    x_j = natural_j                                else

`intervene` keeps nothing, `shift` keeps all and adds, `scale` keeps a multiple.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from ._equations import finite

KINDS = ("perfect", "shift", "scale", "imperfect")


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """What happens to one variable.

    Attributes:
        target: the variable.
        kind: `"perfect"`, `"shift"`, `"scale"` or `"imperfect"`.
        value: what it is set to, shifted by or multiplied by.
        sd: for `"imperfect"`, how far it misses that value: a standard deviation.
        hit: for `"imperfect"`, how often it has an effect at all; in [0, 1].
    """

    target: str
    kind: str
    value: float
    sd: float = 0.0
    hit: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind {self.kind!r} of intervention is none of {KINDS}.")
        for what in ("value", "sd", "hit"):
            number = finite(getattr(self, what), f"{what} for {self.target!r}")
            object.__setattr__(self, what, number)
        if self.sd < 0 or not 0 <= self.hit <= 1:
            raise ValueError(
                f"for {self.target!r}: sd must be >= 0 and hit in [0, 1], got "
                f"{self.sd} and {self.hit}."
            )


@dataclasses.dataclass(frozen=True, slots=True)
class Intervention:
    """Changes to some variables in one experiment; `|` combines two.

    Attributes:
        changes: one for each variable, sorted by name; none is an observation.
    """

    changes: tuple[Change, ...] = ()

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.changes, key=lambda change: change.target))
        object.__setattr__(self, "changes", ordered)
        for one, other in itertools.pairwise(ordered):
            if one.target == other.target:
                raise ValueError(f"{one.target!r} is changed twice: say which it is.")

    @property
    def targets(self) -> tuple[str, ...]:
        """The variables that are changed."""
        return tuple(change.target for change in self.changes)

    @property
    def values(self) -> dict[str, float]:
        """What each is set to, shifted by or multiplied by."""
        return {change.target: change.value for change in self.changes}

    @property
    def kind(self) -> str:
        """The kind that all changes have; `"mixed"`, or `"none"` without any."""
        kinds = {change.kind for change in self.changes}
        return kinds.pop() if len(kinds) == 1 else "mixed" if kinds else "none"

    def __or__(self, other: "Intervention") -> "Intervention":
        if not isinstance(other, Intervention):
            return NotImplemented
        return type(self)(self.changes + other.changes)

    def __str__(self) -> str:
        words = {"perfect": "=", "shift": "+=", "scale": "*=", "imperfect": "~"}
        each = [f"{c.target} {words[c.kind]} {c.value:g}" for c in self.changes]
        return f"do({', '.join(each)})"

    def record(self) -> list[dict[str, Any]]:
        """What JSON can hold; `from_record` reads it."""
        return [dataclasses.asdict(change) for change in self.changes]

    @classmethod
    def from_record(cls, record: Iterable[Mapping[str, Any]]) -> "Intervention":
        """The intervention that was written down.

        Args:
            record: what `record` gave.

        Raises:
            ValueError: it is no such record.
        """
        try:
            return cls(tuple(Change(**change) for change in record))
        except TypeError as error:
            raise ValueError(
                f"this is no record of an intervention: {error}"
            ) from error

    def arrays(
        self, variables: tuple[str, ...], d: int | None = None
    ) -> Float[np.ndarray, "4 D"]:
        """Rows `keep`, `value`, `sd` and `hit`, for `simulate` and its like.

        Args:
            variables: names of the columns.
            d: columns with padding; `len(variables)` by default.

        Raises:
            ValueError: a target is none of the variables.
        """
        table = np.zeros((4, len(variables) if d is None else d), np.float32)
        table[0] = table[3] = 1
        for change in self.changes:
            if change.target not in variables:
                raise ValueError(
                    f"{self} changes {change.target!r}, which is no variable: there "
                    f"are {', '.join(variables):.200}."
                )
            keep = {"shift": 1.0, "scale": change.value}.get(change.kind, 0.0)
            value = 0.0 if change.kind == "scale" else change.value
            table[:, variables.index(change.target)] = (
                keep,
                value,
                change.sd,
                change.hit,
            )
        return table


def _all(kind: str, values: Mapping[str, float], **more: float) -> Intervention:
    return Intervention(
        tuple(Change(name, kind, value, **more) for name, value in values.items())
    )


def intervene(**values: float) -> Intervention:
    """Set variables to values: what caused them before no longer does.

    Args:
        **values: by variable; `intervene(**{"a name": 1.0})` where it is no identifier.

    Raises:
        ValueError: a value is not finite.

    Example:
        >>> print(intervene(x=1.0) | shift(y=-2.0))
        do(x = 1, y += -2)
    """
    return _all("perfect", values)


def shift(**values: float) -> Intervention:
    """Add to variables; their causes stay.

    Args:
        **values: what is added, by variable.

    Raises:
        ValueError: a value is not finite.
    """
    return _all("shift", values)


def scale(**values: float) -> Intervention:
    """Multiply variables; their causes stay, weaker or stronger.

    Args:
        **values: the factor, by variable.

    Raises:
        ValueError: a value is not finite.
    """
    return _all("scale", values)


def imperfect(
    values: Mapping[str, float], *, sd: float = 0.0, hit: float = 1.0
) -> Intervention:
    """Try to set variables: it misses by some noise, and at times has no effect.

    Args:
        values: what each is aimed at, by variable.
        sd: standard deviation of what is reached around what was aimed at; >= 0.
        hit: how often it has an effect, in [0, 1], apart for each variable.

    Raises:
        ValueError: a number is not finite or out of its range.
    """
    return _all("imperfect", values, sd=sd, hit=hit)
