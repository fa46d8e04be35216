"""`Frozen`: a static argument of a jitted function, hashed once, compared by structure.

`jax.jit` looks a static argument up by hash and equality at every call. `Frozen` reads
a value's structure once, when it is made; afterwards a look-up costs the same whatever
the size of the value.
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
    """A value as a static argument, compared by structure.

    Types count: 1, 1.0 and True are three values, a list differs from a tuple, and 0.0
    from -0.0; NaN equals itself. The order of a dict counts, because a program may
    iterate over it; that of a set does not.

    Attributes:
        value: the value, with its lists, dicts and sets copied when it was frozen.

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
            value: containers, numbers, text, None, and any hashable values in them.

        Raises:
            TypeError: it contains an array or an unhashable value.
            ValueError: a container contains itself.
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
        # Python compares a tuple with itself member by member, hence the `is not`.
        if self._key is not other._key and self._key != other._key:
            return False
        # Equal values share one key from now on, so the next comparison is one look.
        other._key = self._key
        return True

    def __repr__(self) -> str:
        return f"Frozen({self.value!r:.200})"


def _read(value: Any, place: str, ancestors: tuple[int, ...]) -> tuple[Hashable, Any]:
    """Return a key that is unique to the value, and a copy of its containers."""
    cls = type(value)
    if value is None or cls in (bool, int, str, bytes, complex, range):
        return (cls, value), value
    if cls is float:
        # By its bits: NaN does not equal itself, and 0.0 equals -0.0.
        return (float, struct.pack("<d", value)), value
    if isinstance(value, (jax.Array, np.ndarray)):
        raise TypeError(
            f"{place} is an array of shape {value.shape}: a program would be compiled "
            "for each. Pass arrays as traced arguments."
        )
    # By dtype and bytes: np.float32(1) == np.float64(1), but they trace to different
    # programs.
    if isinstance(value, np.generic):
        return (cls, str(value.dtype), value.tobytes()), value
    if isinstance(value, np.dtype):
        return (cls, str(value)), value
    # Before the containers, because an enum member may be a tuple or a dataclass.
    if isinstance(value, (enum.Enum, type)):
        return (cls, value), value
    is_record = dataclasses.is_dataclass(value)
    if not is_record and not isinstance(value, (dict, list, tuple, set, frozenset)):
        return _hash_key(value, place), value
    if id(value) in ancestors:
        raise ValueError(f"{place} contains itself, so it has no end.")
    ancestors = (*ancestors, id(value))
    if is_record:
        names = [field.name for field in dataclasses.fields(value)]
        keys = [_read(getattr(value, n), f"{place}.{n}", ancestors)[0] for n in names]
        return (cls, *keys), value
    if isinstance(value, dict):
        return _read_dict(value, place, ancestors)
    if isinstance(value, (set, frozenset)):
        members = frozenset(
            _read(v, f"a member of {place}", ancestors)[0] for v in value
        )
        return (cls, members), set(value) if cls is set else value
    items = [_read(v, f"{place}[{i}]", ancestors) for i, v in enumerate(value)]
    # Subclasses, such as named tuples, may not be constructible from a list.
    copied = cls(copy for _, copy in items) if cls in (list, tuple) else value
    return (cls, *(key for key, _ in items)), copied


def _read_dict(
    value: dict[Any, Any], place: str, ancestors: tuple[int, ...]
) -> tuple[Hashable, Any]:
    keys: list[Hashable] = []
    copies: dict[Any, Any] = {}
    for k, v in value.items():
        name_key, _ = _read(k, f"a key of {place}", ancestors)
        item_key, copies[k] = _read(v, f"{place}[{k!r}]", ancestors)
        # In order: a program may iterate over a dict, and then its order is code.
        keys.append((name_key, item_key))
    return (type(value), *keys), copies if type(value) is dict else value


def _hash_key(value: Any, place: str) -> Hashable:
    try:
        hash(value)
    except TypeError as e:
        raise TypeError(
            f"{place} is a {type(value).__name__}, which cannot be hashed: make it a "
            "frozen dataclass, or pass it in another form."
        ) from e
    return (type(value), value)
