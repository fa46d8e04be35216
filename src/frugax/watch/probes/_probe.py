"""`Probe`: the name, the kind and the tree structure of one watched value."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path

from ..journal import check_name, check_size

Kind: TypeAlias = Literal["scalar", "summary", "frame", "call"]
RECORDED_KINDS: frozenset[Kind] = frozenset({"scalar", "summary", "frame"})
KINDS = RECORDED_KINDS | {"call"}


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """One watched value; hashable, with its handler compared by identity.

    Attributes:
        name: the name of its records.
        kind: `"scalar"` (numbers of each step), `"summary"` (never lost), `"frame"` (an
            array, dropped first) or `"call"` (for a function on the host). A call is
            always a callback, never an output.
        handler: the function on the host that gets the values of the fields, one by
            one, or None. That of a record shows it where no watcher does.
        fields: the names of the leaves; `("",)` for a single one.
    """

    name: str
    kind: Kind
    handler: Callable[..., Any] | None
    fields: tuple[str, ...]

    @classmethod
    def of(
        cls,
        name: str,
        kind: str,
        handler: Callable[..., Any] | None,
        example: Any,
    ) -> "Probe":
        """Make a probe for values nested as in `example`.

        Args:
            name: the name of its records; not empty.
            kind: one of `KINDS`.
            handler: a function on the host, or None.
            example: a pytree of arrays or numbers.

        Raises:
            ValueError: the name is empty, the kind is unknown, or values are missing or
                have one name.
        """
        if not isinstance(name, str) or not name:
            raise ValueError(f"a probe needs a name that is not empty, got {name!r}.")
        if kind not in KINDS:
            known = ", ".join(sorted(KINDS))
            raise ValueError(f"probe {name!r} has kind {kind!r}; write one of {known}.")
        leaves, _ = tree_flatten_with_path(example)
        if not leaves:
            raise ValueError(f"probe {name!r} has no value: give it an array.")
        fields = tuple(keystr(path, simple=True, separator="/") for path, _ in leaves)
        if len({*fields}) < len(fields):
            twice = max(fields, key=fields.count)
            raise ValueError(
                f"probe {name!r} has two values {twice!r}: a '/' in a key looks like a "
                "nested one; rename it."
            )
        if kind != "call":  # the others are names in a journal
            for field in fields:
                label = f"{name}/{field}" if len(fields) > 1 else name
                check_name(label, "a probe's name")
        return cls(name, cast(Kind, kind), handler, fields)

    def _key(self) -> tuple[Any, ...]:
        # By identity: handlers need not be hashable, and equal ones may differ.
        return self.name, self.kind, id(self.handler), self.fields

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Probe) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


def check_values(name: str, values: Sequence[Any], fields: Sequence[str]) -> None:
    """Refuse values that are not arrays of numbers."""
    for value, field in zip(values, fields, strict=True):
        dtype = getattr(value, "dtype", None)
        # Lists are refused although `jnp.asarray` takes them: a pytree has already
        # split them into leaves.
        numbers = (bool, int, float, complex, np.ndarray, np.generic)
        is_known = isinstance(value, (*numbers, jax.Array))
        if not is_known or (dtype is not None and not _is_number(dtype)):
            place = f"{name!r}[{field!r}]" if field else repr(name)
            given = type(value).__name__
            if is_known:
                given = dtype
            raise TypeError(
                f"probe {place} must be an array of numbers, got {given}: convert it, "
                "or leave it out."
            )


def check_storable(name: str, field: str, shape: tuple[int, ...], dtype: Any) -> None:
    """Refuse values that a journal cannot store, at the line that records them."""
    place = f"{name}[{field!r}]" if field else name
    if shape == () and jnp.issubdtype(dtype, np.complexfloating):
        raise TypeError(
            f"probe {place!r} must be a real number, got {dtype}: watch its real and "
            "imaginary parts."
        )
    check_size(place, shape, dtype.itemsize)


def _is_number(dtype: Any) -> bool:
    # Random keys have an extended dtype, which NumPy cannot represent.
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        return False
    return jnp.issubdtype(dtype, np.number) or dtype == np.bool_
