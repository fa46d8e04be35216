"""Interventions on the variables of an SCM: hard (do), shift, scale, imperfect.

One formula covers all kinds, so programs need no branch on the kind:

    x_j = keep * natural_j + value + sd * noise    with probability `hit`
    x_j = natural_j                                otherwise

A hard intervention has `keep = 0`, a shift `keep = 1`, and a scaling `value = 0`.

References:
    Pearl 2009, "Causality", ch. 3 (do); Eaton & Murphy 2007, AISTATS (imperfect and
    uncertain interventions).
"""

import dataclasses
import itertools
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from frugax.options import check_choice, check_instance

from ._equations import to_finite
from ._scm import SCM

KINDS = ("perfect", "shift", "scale", "imperfect")


@dataclasses.dataclass(frozen=True, slots=True)
class VariableIntervention:
    """The intervention on one variable.

    Attributes:
        target: the variable.
        kind: `"perfect"` (do), `"shift"`, `"scale"` or `"imperfect"`.
        value: the value that is set, added or multiplied by.
        sd: for `"imperfect"`, standard deviation of the reached value around `value`.
        hit: for `"imperfect"`, probability of having an effect at all.
    """

    target: str
    kind: str
    value: float
    sd: float = 0.0
    hit: float = 1.0

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, KINDS)
        for what in ("value", "sd", "hit"):
            number = to_finite(getattr(self, what), f"{what} for {self.target!r}")
            object.__setattr__(self, what, number)
        if self.sd < 0 or not 0 <= self.hit <= 1:
            raise ValueError(
                f"for {self.target!r}: sd must be >= 0 and hit in [0, 1], got "
                f"{self.sd} and {self.hit}."
            )


@dataclasses.dataclass(frozen=True, slots=True)
class Intervention:
    """Interventions on some variables in one experiment; `|` combines two.

    Attributes:
        parts: one for each intervened variable, sorted by name; empty for an
            observation.
    """

    parts: tuple[VariableIntervention, ...] = ()

    def __post_init__(self) -> None:
        # In a fixed order `do(x) | do(y)` and `do(y) | do(x)` are equal and have one
        # hash.
        ordered = tuple(sorted(self.parts, key=lambda part: part.target))
        object.__setattr__(self, "parts", ordered)
        for one, other in itertools.pairwise(ordered):
            if one.target == other.target:
                raise ValueError(f"{one.target!r} is changed twice: keep one of them.")

    @property
    def targets(self) -> tuple[str, ...]:
        """The intervened variables."""
        return tuple(part.target for part in self.parts)

    @property
    def values(self) -> dict[str, float]:
        """For each target the value that is set, added or multiplied by."""
        return {part.target: part.value for part in self.parts}

    @property
    def kind(self) -> str:
        """The kind common to all parts; `"mixed"`, or `"none"` for an observation."""
        kinds = {part.kind for part in self.parts}
        if len(kinds) > 1:
            return "mixed"
        return kinds.pop() if kinds else "none"

    def __or__(self, other: "Intervention") -> "Intervention":
        if not isinstance(other, Intervention):
            return NotImplemented
        return type(self)(self.parts + other.parts)

    def __str__(self) -> str:
        signs = {"perfect": "=", "shift": "+=", "scale": "*=", "imperfect": "~"}
        each = [f"{p.target} {signs[p.kind]} {p.value:g}" for p in self.parts]
        return f"do({', '.join(each)})"

    def arrays(
        self, variables: tuple[str, ...], d: int | None = None
    ) -> Float[np.ndarray, "4 D"]:
        """Return the rows `keep`, `value`, `sd` and `hit`.

        Args:
            variables: names of the columns.
            d: columns with padding; `len(variables)` by default.

        Raises:
            ValueError: a target is not among the variables.
        """
        table = np.zeros((4, d or len(variables)), np.float32)
        # A variable whose column stays like this keeps its natural value.
        table[0] = table[3] = 1
        for part in self.parts:
            if part.target not in variables:
                raise ValueError(
                    f"{self} changes {part.target!r}, which is not a variable: there "
                    f"are {', '.join(variables):.200}."
                )
            # Hard and imperfect interventions cut a variable off from its parents
            # (Pearl 2009, section 3.2); the others leave the edges in place.
            keep = {"shift": 1.0, "scale": part.value}.get(part.kind, 0.0)
            value = part.value * (part.kind != "scale")
            table[:, variables.index(part.target)] = keep, value, part.sd, part.hit
        return table


def _intervene(kind: str, values: Mapping[str, float], **more: float) -> Intervention:
    return Intervention(
        tuple(
            VariableIntervention(name, kind, value, **more)
            for name, value in values.items()
        )
    )


def intervene(**values: float) -> Intervention:
    """Set variables to values (do): their usual causes no longer matter.

    Args:
        **values: by variable; `intervene(**{"a name": 1.0})` if a name is not an
            identifier.

    Raises:
        ValueError: a value is not finite.

    Example:
        >>> print(intervene(x=1.0) | shift(y=-2.0))
        do(x = 1, y += -2)
    """
    return _intervene("perfect", values)


def shift(**values: float) -> Intervention:
    """Add to variables; the effects of their causes stay.

    Args:
        **values: the addends, by variable.

    Raises:
        ValueError: a value is not finite.
    """
    return _intervene("shift", values)


def scale(**values: float) -> Intervention:
    """Multiply variables; the effects of their causes stay, weaker or stronger.

    Args:
        **values: the factors, by variable.

    Raises:
        ValueError: a value is not finite.
    """
    return _intervene("scale", values)


def intervene_imperfectly(
    values: Mapping[str, float], *, sd: float = 0.0, hit: float = 1.0
) -> Intervention:
    """Try to set variables: the value is noisy, and some attempts have no effect.

    Args:
        values: the intended value, by variable.
        sd: standard deviation of the reached value around the intended one; >= 0.
        hit: probability of having an effect, in [0, 1], independent by variable.

    Raises:
        ValueError: a number is not finite or out of its range.
    """
    return _intervene("imperfect", values, sd=sd, hit=hit)


def intervention_table(
    scm: SCM, intervention: Intervention, d: int
) -> Float[np.ndarray, "4 {d}"]:
    """`Intervention.arrays` for one model, checked against its variables."""
    check_instance(
        "intervention", intervention, Intervention, example="intervene(x=1.0)"
    )
    return intervention.arrays(scm.variables, d)
