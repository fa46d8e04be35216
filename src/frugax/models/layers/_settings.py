"""Check the constructor arguments of layers, and pass them to ops as attributes.

Most checks follow from the type of a field, such as `Count`; the others are called from
`__post_init__`. A wrong setting is so reported where it is written, with the field, the
value and the allowed values.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import numpy as np

from frugax.models.graph import Layer, Primitive
from frugax.options import check_integer, check_number

Sizes = int | Sequence[int]
Padding = str | int | Sequence[int | Sequence[int]]


@dataclasses.dataclass(frozen=True)
class FieldOp(Primitive):
    """An op whose attributes are the fields of the layer.

    Attributes:
        own_fields: the fields that are not attributes of the op.
    """

    own_fields: ClassVar[frozenset[str]] = frozenset()

    def attrs(self) -> dict[str, Any]:
        # The exceptions are listed, so that a new field reaches the op by itself.
        hidden = {"name", *self.own_fields}
        fields = dataclasses.fields(self)
        return {f.name: getattr(self, f.name) for f in fields if f.name not in hidden}


@dataclasses.dataclass(frozen=True)
class Weightless(FieldOp):
    """An op without weights, whose attributes are the fields of the layer."""

    weight_names = frozenset()


def check_sizes(layer: Layer, *names: str, axes: int, least: int = 1) -> None:
    """Check that fields are one integer, or one for each axis of space, or None."""
    for name in names:
        value = getattr(layer, name)
        numbers = (value,) * axes
        if isinstance(value, tuple):
            numbers = value
        # True is an int in Python, and as a size it is surely a mistake.
        valid = all(isinstance(n, int) and not isinstance(n, bool) for n in numbers)
        if value is not None and (
            len(numbers) != axes or not valid or any(n < least for n in numbers)
        ):
            count = ""
            if axes > 1:
                count = f" or {axes} of them"
            raise ValueError(
                f"{_label(layer, name)} must be a whole number >= {least}{count}, "
                f"got {value!r:.60}."
            )


def check_padding(layer: Layer, axes: int) -> None:
    """Check the field `padding`, and turn lists in it into tuples."""
    value: Any = getattr(layer, "padding")  # noqa: B009 - not every layer has it
    if isinstance(value, Sequence) and not isinstance(value, str):
        pairs, numbers = [], []
        for p in value:
            if not isinstance(p, int):
                p = tuple(p)
            pairs.append(p)
            numbers += np.atleast_1d(np.array(p, object)).tolist()
        # Tuples, so that equal layers compare equal and hash.
        object.__setattr__(layer, "padding", value := tuple(pairs))
        is_known = len(value) == axes and all(isinstance(n, int) for n in numbers)
        valid = is_known and min(numbers) >= 0
    elif isinstance(value, int):
        valid = value >= 0
    else:
        valid = value in ("same", "valid")
    if not valid:
        raise ValueError(
            f'{_label(layer, "padding")} must be "same", "valid", a whole number >= 0, '
            f"or a number or a pair (before, after) for each of {axes} axes, got "
            f"{value!r:.60}."
        )


def check_fraction(name: str, value: float) -> None:
    """Require a number in [0, 1]."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be in [0, 1], got {value!r}.")


def check_epsilon(name: str, value: float) -> None:
    """Require a number between 0 and 1."""
    check_number(name, value, above=0)
    if value >= 1:  # torch's LayerNorm(8), GroupNorm(4, 16)
        raise ValueError(
            f"{name} must be below 1, got {value!r}; the number of features is "
            "inferred and not given."
        )


def check_divides(layer: Layer, name: str, of: str) -> None:
    """Check that one field divides another; the error lists divisors that are close."""
    part, total = getattr(layer, name), getattr(layer, of)
    if part is not None and total is not None and total % part:
        near = [n for n in range(1, total + 1) if total % n == 0]
        near.sort(key=lambda n: abs(n - part))
        close = ", ".join(map(str, sorted(near[:4])))
        raise ValueError(
            f"{_label(layer, name)}={part} does not divide {of}={total}; of the "
            f"numbers that do, {close} are the closest."
        )


def _label(layer: Layer, name: str) -> str:
    return f"{type(layer).__name__}.{name}"


# Types of fields; `Layer.__post_init__` calls the functions in them.
Count = Annotated[int, check_integer]
Natural = Annotated[int, functools.partial(check_integer, minimum=0)]
Label = Annotated[int, functools.partial(check_integer, minimum=-(2**31))]
Fraction = Annotated[float, check_fraction]
NonNegative = Annotated[float, functools.partial(check_number, minimum=0)]
Positive = Annotated[float, functools.partial(check_number, above=0)]
Epsilon = Annotated[float, check_epsilon]
