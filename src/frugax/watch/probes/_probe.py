"""What is watched in a program: a name, a class, and the shape of its values."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path

from ..journal import check_size

Kind: TypeAlias = Literal["scalar", "summary", "frame", "call"]
KINDS: frozenset[Kind] = frozenset({"scalar", "summary", "frame", "call"})


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """One thing that is watched; hashable, and its handler is told by identity.

    Attributes:
        name: what its records are called.
        kind: its class: `"scalar"` (numbers of each step), `"summary"` (never lost),
            `"frame"` (an array, dropped first) or `"call"` (a function on the host).
        handler: a function on the host for the values, or None; whoever delivers the
            records calls it.
        tree: how the values are nested.
        fields: their names, as many as there are; `("",)` for one alone.
    """

    name: str
    kind: Kind
    handler: Callable[..., Any] | None
    tree: Any  # a PyTreeDef: pyright does not know that class
    fields: tuple[str, ...]

    @classmethod
    def of(
        cls,
        name: str,
        kind: str,
        handler: Callable[..., Any] | None,
        example: Any,
    ) -> "Probe":
        """A probe for values nested as in `example`.

        Args:
            name: what its records are called; not empty.
            kind: one of `KINDS`.
            handler: a function on the host, or None.
            example: a pytree of arrays or numbers.

        Raises:
            ValueError: the name is empty, the kind unknown, or there is no value.
        """
        if not isinstance(name, str) or not name:
            raise ValueError(f"a probe needs a name that is not empty, got {name!r}.")
        if kind not in KINDS:
            known = ", ".join(sorted(KINDS))
            raise ValueError(f"probe {name!r} has kind {kind!r}; write one of {known}.")
        leaves, tree = tree_flatten_with_path(example)
        if not leaves:
            raise ValueError(f"probe {name!r} has no value: give it an array.")
        fields = tuple(keystr(path, simple=True, separator="/") for path, _ in leaves)
        return cls(name, cast(Kind, kind), handler, tree, fields)

    def nested(self, values: Sequence[Any]) -> Any:
        """The values of its fields in the tree in which they were given."""
        return jax.tree.unflatten(self.tree, values)

    def _key(self) -> tuple[Any, ...]:
        return self.name, self.kind, id(self.handler), self.tree, self.fields

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Probe) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


def check_values(name: str, values: Sequence[Any], fields: Sequence[str]) -> None:
    """Refuse what cannot be kept as an array of numbers.

    Raises:
        TypeError: text, an object, a random key.
    """
    for value, field in zip(values, fields, strict=True):
        dtype = getattr(value, "dtype", None)
        plain = isinstance(value, (bool, int, float, complex, np.ndarray, np.generic))
        known = plain or isinstance(value, jax.Array)
        if not known or (dtype is not None and not _is_number(dtype)):
            place = f"{name!r}[{field!r}]" if field else repr(name)
            what = dtype if known else type(value).__name__
            raise TypeError(
                f"probe {place} must be an array of numbers, got {what}: convert it, "
                "or leave it out."
            )


def check_keepable(name: str, field: str, shape: tuple[int, ...], dtype: Any) -> None:
    """Refuse what no journal can keep, while there is a line to point at.

    Raises:
        TypeError: it is one complex number.
        ValueError: it is over 1 GiB, or has more than 32 axes.
    """
    place = f"{name}[{field!r}]" if field else name
    if shape == () and jnp.issubdtype(dtype, np.complexfloating):
        raise TypeError(
            f"probe {place!r} must be a real number, got {dtype}: watch its real and "
            "imaginary parts."
        )
    check_size(place, shape, dtype.itemsize)


def _is_number(dtype: Any) -> bool:
    if jnp.issubdtype(dtype, jax.dtypes.extended):  # random keys
        return False
    return jnp.issubdtype(dtype, np.number) or dtype == np.bool_
