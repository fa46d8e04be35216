"""What a compiled step was compiled for, and where another call differs from it.

XLA compiles for one structure, one shape and one dtype of every leaf. JAX explains
recompiles in its log only, so frugax keeps its own record and names the leaf.
"""

import dataclasses
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from frugax.trees import PyTree

from ._changes import COMMITTED, Change, kind_of, static_changes, structure_changes


@dataclasses.dataclass(frozen=True)
class Signature:
    """Structure, and shape and dtype of every leaf, of named arguments.

    Attributes:
        leaves: path and type of each, such as `("batch['x']", "float32[16,4]")`.
        structure: how the leaves are nested.
        static: the Python values that are part of the program, if any.
        context: the settings of JAX that are part of it.
    """

    leaves: tuple[tuple[str, str], ...]
    structure: Hashable
    static: Hashable = None
    context: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, *, static: Hashable = None, **arguments: PyTree) -> "Signature":
        """Read it off arrays, NumPy arrays, numbers or `jax.ShapeDtypeStruct`s."""
        return cls.read(arguments, static=static)

    @classmethod
    def read(
        cls,
        arguments: Mapping[str, PyTree],
        *,
        static: Hashable = None,
        placed: bool = True,
        committed: bool = False,
    ) -> "Signature":
        """Read it off arguments by name.

        Args:
            arguments: what is traced.
            static: the Python values that are part of the program.
            placed: tell arrays by where they lie, if somebody put them there.
            committed: tell arrays that may be moved from those that may not, as
                `jax.jit` does.

        Raises:
            TypeError: a part is nothing that JAX takes; it is named.
        """
        flat, structure = jax.tree_util.tree_flatten_with_path(dict(arguments))
        leaves = tuple(
            (
                _place(path),
                _type(path, leaf)
                + (_placed(leaf, committed=committed) if placed else ""),
            )
            for path, leaf in flat
        )
        return cls(leaves, structure, static, tuple((k, str(v)) for k, v in settings()))

    @classmethod
    def of_types(cls, **arguments: PyTree) -> "Signature":
        """The same for wherever the arrays lie."""
        return cls.read(arguments, placed=False)

    def changes_to(self, new: "Signature") -> list[Change]:
        """What differs in `new`.

        >>> a = Signature.of(batch={"x": np.zeros((16, 4), np.float32)})
        >>> b = Signature.of(batch={"x": np.zeros((24, 4), np.float32)})
        >>> print(*a.changes_to(b))
        batch['x']: float32[16,4] -> float32[24,4]
        """
        old_types, new_types = dict(self.leaves), dict(new.leaves)
        places = list(old_types) + [p for p in new_types if p not in old_types]
        pairs = [
            (p, old_types.get(p, "absent"), new_types.get(p, "absent")) for p in places
        ]
        found = [
            Change(place, kind_of(old, now), old, now)
            for place, old, now in pairs
            if old != now
        ]
        found += static_changes(self.static, new.static)
        before, after = dict(self.context), dict(new.context)
        found += [
            Change(k, "setting", before.get(k, "unset"), now)
            for k, now in after.items()
            if before.get(k) != now
        ]
        if not found and self.structure != new.structure:
            found = structure_changes(self.structure, new.structure)
        return found


def nearest_changes(known: Iterable[Signature], new: Signature) -> list[Change]:
    """What differs from the nearest of some signatures; the later one of equals."""
    found = [one.changes_to(new) for one in known]
    far = lambda changes: (len(changes), sum(change.aspects for change in changes))
    return min(reversed(found), key=far, default=[])


def _place(path: tuple[object, ...]) -> str:
    """`batch['x'][0].mu` for the path of a leaf, the argument's name first."""
    name, *rest = path
    return f"{getattr(name, 'key', name)}{jax.tree_util.keystr(tuple(rest))}"


def _type(path: tuple[object, ...], leaf: object) -> str:
    """`float32[16,4]`; `weak` for a Python number's.

    Raises:
        TypeError: it is no array and no number.
    """
    try:
        aval = jax.typeof(leaf) if not isinstance(leaf, jax.ShapeDtypeStruct) else leaf
    except TypeError as e:  # JAX's own words do not name the leaf
        raise TypeError(
            f"{_place(path)} is {_said(leaf)}, not a valid JAX type: leave it out, "
            "or give numbers for it."
        ) from e
    weak = " weak" if getattr(aval, "weak_type", False) else ""
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]{weak}"


def _said(leaf: object) -> str:
    if isinstance(leaf, np.ndarray):
        return f"an array of dtype {leaf.dtype}"
    return f"{leaf!r:.60} of type {type(leaf).__name__}"


def _placed(leaf: object, *, committed: bool) -> str:
    """Where an array was put on purpose; nothing for the device that is used anyway.

    JAX itself compiles anew when an array that may be moved is one that may not. A
    program for the one runs the other as well, so frugax does not.
    """
    if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer):
        return ""
    sharding = leaf.sharding
    if isinstance(sharding, jax.NamedSharding):
        return f" split as {sharding.spec} over {dict(sharding.mesh.shape)}"
    (device,) = leaf.devices()
    if device != jax.local_devices()[0]:
        return f" on {device}"
    return COMMITTED if committed and leaf.committed else ""


def settings() -> tuple[tuple[str, Any], ...]:
    """Settings of JAX that change what is compiled."""
    now: Any = jax.config  # its attributes are made at run time
    return (
        ("matmul precision", now.jax_default_matmul_precision),
        ("64-bit numbers", now.jax_enable_x64),
        ("dtype promotion", now.jax_numpy_dtype_promotion),
        ("rank promotion", now.jax_numpy_rank_promotion),
        ("threefry partitionable", now.jax_threefry_partitionable),
        ("default device", now.jax_default_device),
        ("mesh", jax.sharding.get_abstract_mesh()),
    )
