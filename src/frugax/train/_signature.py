"""What a compiled step was compiled for, and where another call differs from it.

XLA compiles for one structure, one shape and one dtype of every leaf. JAX explains
recompiles in its log only, so frugax keeps its own record and names the leaf.
"""

import dataclasses
import re
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
from jax.core import Tracer

from frugax.typing import PyTree

from ._static import Frozen

_COMMITTED = " put there on purpose"

Kind: TypeAlias = Literal[
    "first",
    "shape",
    "dtype",
    "structure",
    "weak type",
    "static value",
    "placement",
    "committed",
    "setting",
    "function",
]
_TYPE = re.compile(r"(?P<dtype>[^\[]+)\[(?P<shape>[^\]]*)\](?P<weak> weak)?(?P<at>.*)")


class Change(NamedTuple):
    """One reason for another program; as text `batch['x']: old -> new`.

    Attributes:
        place: the leaf, argument or setting.
        kind: what about it.
        old: what the program there is was compiled for.
        new: what it is now.
    """

    place: str
    kind: Kind
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.place}: {self.old} -> {self.new}"

    @property
    def aspects(self) -> int:
        """How much of it is another: of a leaf its shape, dtype and the like."""
        before, after = _TYPE.fullmatch(self.old), _TYPE.fullmatch(self.new)
        if before is None or after is None:
            return 4
        return sum(a != b for a, b in zip(before.groups(), after.groups(), strict=True))


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
        committed: bool = False,
    ) -> "Signature":
        """Read it off arguments by name.

        Args:
            arguments: what is traced.
            static: the Python values that are part of the program.
            committed: tell arrays that may be moved from those that may not, as
                `jax.jit` does.
        """
        flat, structure = jax.tree_util.tree_flatten_with_path(dict(arguments))
        leaves = tuple(
            (_place(path), _type(leaf, committed=committed)) for path, leaf in flat
        )
        return cls(leaves, structure, static, tuple((k, str(v)) for k, v in settings()))

    @classmethod
    def of_types(cls, **arguments: PyTree) -> "Signature":
        """The same for wherever the arrays lie."""
        return cls.of(**jax.eval_shape(lambda tree: tree, arguments))

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
            Change(place, _kind(old, now), old, now)
            for place, old, now in pairs
            if old != now
        ]
        found += _static_changes(self.static, new.static)
        before, after = dict(self.context), dict(new.context)
        found += [
            Change(k, "setting", before.get(k, "unset"), now)
            for k, now in after.items()
            if before.get(k) != now
        ]
        if not found and self.structure != new.structure:
            found = _structure_changes(self.structure, new.structure)
        return found


def nearest_changes(known: Iterable[Signature], new: Signature) -> list[Change]:
    """What differs from the nearest of some signatures; the later one of equals."""
    found = [one.changes_to(new) for one in known]
    far = lambda changes: (len(changes), sum(change.aspects for change in changes))
    return min(reversed(found), key=far, default=[])


def _kind(old: str, new: str) -> Kind:
    """What about a leaf is another."""
    before, after = _TYPE.fullmatch(old), _TYPE.fullmatch(new)
    if before is None or after is None:  # one of them is absent
        return "structure"
    if before["shape"] != after["shape"]:
        return "shape"
    if before["dtype"] != after["dtype"]:
        return "dtype"
    if before["weak"] != after["weak"]:
        return "weak type"
    is_committed = {before["at"], after["at"]} == {"", _COMMITTED}
    return "committed" if is_committed else "placement"


def _static_changes(old: Hashable, new: Hashable) -> list[Change]:
    """Each Python value that is another, by name where they have names."""
    if old == new:
        return []
    before, after = _by_name(old), _by_name(new)
    return [
        _static_change(name, before.get(name, "absent"), after.get(name, "absent"))
        for name in before | after
        if before.get(name) != after.get(name) or (name in before) != (name in after)
    ]


def _by_name(static: Any) -> dict[str, Any]:
    if isinstance(static, Frozen) and isinstance(static.value, dict):
        return {name: Frozen(value) for name, value in static.value.items()}
    if isinstance(static, Mapping):
        return dict(static)
    return {"static": static}


def _static_change(name: str, old: Any, new: Any) -> Change:
    old, new = (x.value if isinstance(x, Frozen) else x for x in (old, new))
    codes = [getattr(x, "__code__", None) for x in (old, new)]
    if codes[0] is not None and codes[0] == codes[1]:
        file = Path(codes[0].co_filename).name
        said = f"the function of {file}:{codes[0].co_firstlineno}"
        return Change(name, "function", said, "the same defined anew")
    return Change(name, "static value", f"{old!r:.60}", f"{new!r:.60}")


def _structure_changes(old: Any, new: Any) -> list[Change]:
    """Where two structures with the same leaves differ: what a container says."""
    before, after = old.node_data(), new.node_data()
    if before != after:
        forms = [data and data[1] for data in (before, after)]
        kept = [getattr(form, "static", None) for form in forms]
        if all(isinstance(x, Frozen) for x in kept) and kept[0] != kept[1]:
            return _static_changes(*kept)
        said = [
            f"{data and data[0].__name__} {data and data[1]}"
            for data in (before, after)
        ]
        return [Change("structure", "structure", *_where_they_differ(*said))]
    pairs = zip(old.children(), new.children(), strict=True)
    return [change for pair in pairs for change in _structure_changes(*pair)]


def _where_they_differ(old: str, new: str) -> tuple[str, str]:
    """Two long texts from a little before the first difference on."""
    same = next(
        (i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b),
        min(len(old), len(new)),
    )
    start = max(same - 20, 0)
    return old[start : start + 60], new[start : start + 60]


def _place(path: tuple[object, ...]) -> str:
    """`batch['x'][0].mu` for the path of a leaf, the argument's name first."""
    name, *rest = path
    return f"{getattr(name, 'key', name)}{jax.tree_util.keystr(tuple(rest))}"


def _type(leaf: object, *, committed: bool) -> str:
    """`float32[16,4]`; `weak` for a Python number's, and where it lies if that is said.

    Raises:
        TypeError: it is no array and no number.
    """
    aval = jax.typeof(leaf) if not isinstance(leaf, jax.ShapeDtypeStruct) else leaf
    placed = _placed(leaf, committed=committed)
    weak = " weak" if getattr(aval, "weak_type", False) else ""
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]{weak}{placed}"


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
    return _COMMITTED if committed and leaf.committed else ""


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
