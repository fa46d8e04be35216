"""Static arguments: Python values that a program is compiled for, hashed once.

`jax.jit` looks a static argument up by hash and equality at every call. `Frozen` reads
a value's structure once, when it is made; after that a look-up costs the same whatever
the size.
"""

import dataclasses
import enum
import struct
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

import jax
import numpy as np

T = TypeVar("T")


class Frozen(Generic[T]):
    """A value as a static argument: equal where the structure is the same.

    Types count: 1, 1.0 and True are three values, a list is no tuple, 0.0 is not -0.0,
    and NaN is itself. The order of a dict counts, because a program may go through it
    in order; that of a set does not.

    Attributes:
        value: the value, its lists, dicts and sets copied when it was frozen.

    Example:
        >>> import jax
        >>> f = jax.jit(lambda x, names: x * len(names.value), static_argnums=1)
        >>> float(f(2.0, Frozen([{"a", "b"}, {"c"}])))
        4.0
    """

    __slots__ = ("_hash", "_key", "value")

    def __init__(self, value: T) -> None:
        """Read the value's structure.

        Args:
            value: containers, numbers, text, None, and anything hashable in them.

        Raises:
            TypeError: an array is in it, or something that cannot be hashed.
            ValueError: a container holds itself.
        """
        self._key, self.value = _read(value, "value", ())
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Frozen) or self._hash != other._hash:
            return False
        # Python compares a tuple with itself member by member, too.
        if self._key is not other._key and self._key != other._key:
            return False
        # Equal for good: sharing the key makes the next comparison one look.
        other._key = self._key
        return True

    def __repr__(self) -> str:
        return f"Frozen({self.value!r:.200})"


def _read(value: Any, place: str, above: tuple[int, ...]) -> tuple[Hashable, Any]:
    """A key that tells the value from all others, and a copy of its containers.

    Raises:
        TypeError: an array is in it, or something that cannot be hashed.
        ValueError: a container holds itself.
    """
    kind = type(value)
    if value is None or kind in (bool, int, str, bytes, complex, range):
        return (kind, value), value
    if kind is float:
        # By bits: NaN is not equal to itself, and 0.0 is equal to -0.0.
        return (float, struct.pack("<d", value)), value
    if isinstance(value, (jax.Array, np.ndarray)):
        raise TypeError(
            f"{place} is an array of shape {value.shape}: a program would be compiled "
            "for each. Pass arrays as traced arguments."
        )
    if isinstance(value, (np.generic, np.dtype)):
        dtype = value.dtype if isinstance(value, np.generic) else value
        data = value.tobytes() if isinstance(value, np.generic) else b""
        return (kind, str(dtype), data), value
    if isinstance(value, (enum.Enum, type)):
        return (kind, value), value
    containers = (dict, list, tuple, set, frozenset)
    is_record = dataclasses.is_dataclass(value)
    if not is_record and not isinstance(value, containers):
        return _hashed(value, place), value
    if id(value) in above:
        raise ValueError(f"{place} holds itself, so it has no end.")
    above = (*above, id(value))
    if is_record:
        fields = [
            _read(getattr(value, f.name), f"{place}.{f.name}", above)[0]
            for f in dataclasses.fields(value)
        ]
        return (kind, *fields), value
    if isinstance(value, dict):
        read = [
            (
                _read(k, f"a key of {place}", above)[0],
                k,
                _read(v, f"{place}[{k!r}]", above),
            )
            for k, v in value.items()
        ]
        copy = {k: v for _, k, (_, v) in read}
        return (
            (kind, *((key, item) for key, _, (item, _) in read)),
            copy if kind is dict else value,
        )
    if isinstance(value, (set, frozenset)):
        keys = frozenset(_read(v, f"a member of {place}", above)[0] for v in value)
        return (kind, keys), set(value) if kind is set else value
    items = [_read(v, f"{place}[{i}]", above) for i, v in enumerate(value)]
    copies = [copy for _, copy in items]
    copied = kind(copies) if kind in (list, tuple) else value
    return (kind, *(key for key, _ in items)), copied


def _hashed(value: Any, place: str) -> Hashable:
    try:
        hash(value)
    except TypeError as e:
        raise TypeError(
            f"{place} is a {type(value).__name__}, which cannot be hashed: make it a "
            "frozen dataclass, or pass it in another form."
        ) from e
    return (type(value), value)
