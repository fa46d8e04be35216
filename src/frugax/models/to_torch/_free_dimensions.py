"""Represent free (symbolic) dimensions in torch's shape inference by prime numbers.

torch's meta device knows numbers only. Each name gets two unlikely primes, and every
op is asked for shapes twice, once with each; where the two answers differ, the length
depends on free dimensions, and the answers say how: `2*batch`, `batch*time`,
`time + 1`. A number that happens to fit one of the primes does not fit the other, so a
mistake is found as it would be with a true symbol.
"""

import dataclasses
import itertools
import math
import operator
from collections.abc import Callable, Iterator

import numpy as np

_LARGEST_OFFSET = 256  # far below the primes: another rule would not come so near


@dataclasses.dataclass(frozen=True, slots=True)
class FreeLength:
    """A length that depends on free dimensions.

    Attributes:
        at: its value with either stand-in.
        names: the free dimensions it may depend on.
    """

    at: tuple[int, int]
    # Two lengths are equal by their values alone. The names are a hint for the text,
    # and differ by the op that the length came from.
    names: tuple[str, ...] = dataclasses.field(compare=False)

    def __add__(self, other: "int | FreeLength") -> "int | FreeLength":
        return self._with(operator.add, self, other)

    def __sub__(self, other: "int | FreeLength") -> "int | FreeLength":
        return self._with(operator.sub, self, other)

    def __rsub__(self, other: "int | FreeLength") -> "int | FreeLength":
        return self._with(operator.sub, other, self)

    def __mul__(self, other: "int | FreeLength") -> "int | FreeLength":
        return self._with(operator.mul, self, other)

    def __floordiv__(self, other: "int | FreeLength") -> "int | FreeLength":
        return self._with(operator.floordiv, self, other)

    def __rfloordiv__(self, other: "int | FreeLength") -> "int | FreeLength":
        return self._with(operator.floordiv, other, self)

    def __mod__(self, other: "int | FreeLength") -> "int | FreeLength":
        return self._with(operator.mod, self, other)

    def __neg__(self) -> "int | FreeLength":
        return self * -1

    __radd__, __rmul__ = __add__, __mul__

    @staticmethod
    def _with(
        operate: Callable[[int, int], int],
        left: "int | FreeLength",
        right: "int | FreeLength",
    ) -> "int | FreeLength":
        """The result of arithmetic with either stand-in."""
        answers = [(operate(at(left, i), at(right, i)),) for i in (0, 1)]
        names = {
            n: None for x in (left, right) if isinstance(x, FreeLength) for n in x.names
        }
        return lengths(answers[0], answers[1], tuple(names))[0]

    def __str__(self) -> str:
        return _as_text(self.at, self.names)

    __repr__ = __str__


def free(name: str) -> FreeLength:
    """The free dimension of that name; the same for the same name."""
    return FreeLength(_stand_ins(name), (name,))


def at(length: int | FreeLength, which: int) -> int:
    """A length with the first (0) or second (1) stand-ins."""
    return length.at[which] if isinstance(length, FreeLength) else length


def fill_free(value: object, which: int) -> object:
    """An attribute with the first (0) or second (1) stand-ins for its lengths."""
    if isinstance(value, tuple):
        return tuple(fill_free(v, which) for v in value)
    return at(value, which) if isinstance(value, FreeLength) else value


def free_names(value: object) -> list[str]:
    """The free dimensions that an attribute depends on."""
    if isinstance(value, tuple):
        return [name for part in value for name in free_names(part)]
    return list(value.names) if isinstance(value, FreeLength) else []


def lengths(
    first: tuple[int, ...], second: tuple[int, ...], names: tuple[str, ...]
) -> tuple[int | FreeLength, ...]:
    """The shape behind the answers with either stand-in."""
    return tuple(
        a if a == b else FreeLength((a, b), names)
        for a, b in zip(first, second, strict=True)
    )


def _as_text(at: tuple[int, int], names: tuple[str, ...]) -> str:
    """The length as a multiple of a product of names and a little more or less."""
    # Products of more than three free lengths do not occur in practice.
    for count in (1, 2, 3):
        for factors in itertools.combinations_with_replacement(names, count):
            product = [math.prod(_stand_ins(f)[i] for f in factors) for i in (0, 1)]
            # The difference of the two answers cancels the constant part, so the
            # quotient is the factor, and the rest of the length is the offset.
            times, rest = divmod(at[0] - at[1], product[0] - product[1])
            more = at[0] - times * product[0]
            if rest == 0 and times and abs(more) <= _LARGEST_OFFSET:
                text = "*".join(factors)
                text = text if times == 1 else f"{times}*{text}"
                return (
                    f"{text} {'+' if more > 0 else '-'} {abs(more)}" if more else text
                )
    # Such as a half of it: two numbers do not tell how it is rounded.
    return f"?({', '.join(names)})"


# For the whole process: a cached shape must mean the same dimension in every model.
_CHOSEN: dict[str, tuple[int, int]] = {}


def _stand_ins(name: str) -> tuple[int, int]:
    if name not in _CHOSEN:
        _CHOSEN[name] = (next(_FIRST), next(_SECOND))
    return _CHOSEN[name]


def _primes(start: int, step: int) -> Iterator[int]:
    while True:
        start = next(n for n in itertools.count(start) if _is_prime(n))
        yield start
        start += step


def _is_prime(number: int) -> bool:
    return all(number % d for d in range(2, math.isqrt(number) + 1))


# Longer than any window, and short enough to compute indices of that length. The steps
# differ, so that each name has its own distance between the two.
_FIRST, _SECOND = _primes(1009, 100), _primes(3001, 300)


def dimension(key: str, length: object, unnamed: Iterator[int]) -> int | FreeLength:
    """Parse a dimension: a length, a name, or None."""
    if isinstance(length, FreeLength):
        return length
    if isinstance(length, (int, np.integer)) and not isinstance(length, bool):
        if length < 0:
            raise ValueError(f"shapes[{key!r}]: a length cannot be {length}.")
        return int(length)
    if length is None:
        length = f"free{next(unnamed)}"
    if isinstance(length, str) and length.isidentifier():
        return free(length)
    raise ValueError(
        f"shapes[{key!r}]: a dimension is a length, a name or None, got {length!r}."
    )
