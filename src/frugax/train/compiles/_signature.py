"""The signature (shapes, dtypes, statics) of a jitted call, and how two calls differ.

JAX explains recompiles in its log only; frugax names the leaf that changed.
"""

import dataclasses
import re
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from frugax.trees import PyTree

from .._frozen import Frozen

_MISSING = object()  # a value that no caller can pass
# The parts of a leaf's text, such as "float32[16,4] weak on cpu:1".
_LEAF = re.compile(
    r"(?P<dtype>[^\[]+)\[(?P<shape>[^\]]*)\](?P<weak> weak)?(?P<where>.*)"
)


class Change(NamedTuple):
    """One reason to compile another program; as text `batch['x']: old -> new`."""

    place: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.place}: {self.old} -> {self.new}"

    @property
    def num_aspects(self) -> int:
        """Number of a leaf's aspects that differ: dtype, shape, weak type, placement.

        It breaks ties between programs that differ in equally many leaves.
        """
        before, after = _LEAF.fullmatch(self.old), _LEAF.fullmatch(self.new)
        if before is None or after is None:
            return 4
        return sum(a != b for a, b in zip(before.groups(), after.groups(), strict=True))


@dataclasses.dataclass(frozen=True)
class Signature:
    """Structure of named arguments, and shape and dtype of every leaf.

    Attributes:
        leaves: path and type of each, such as `("batch['x']", "float32[16,4]")`.
        structure: how the leaves are nested.
        static: the Python values that are part of the program, if any.
        context: the JAX settings that are part of the program.
    """

    leaves: tuple[tuple[str, str], ...]
    structure: Hashable
    static: Hashable = None
    context: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of_types(cls, **arguments: PyTree) -> "Signature":
        """Read the signature without the arrays' placement on devices."""
        return cls.read(arguments, placement=False)

    @classmethod
    def read(
        cls,
        arguments: Mapping[str, PyTree],
        *,
        static: Hashable = None,
        placement: bool = True,
        committed: bool = False,
    ) -> "Signature":
        """Read the signature of arguments by name."""
        flat, structure = jax.tree_util.tree_flatten_with_path(dict(arguments))
        leaves: list[tuple[str, str]] = []
        for path, leaf in flat:
            text = _format_type(path, leaf)
            if placement:
                text += _format_placement(leaf, committed=committed)
            leaves.append((_format_path(path), text))
        context = tuple((name, str(value)) for name, value in read_settings())
        return cls(tuple(leaves), structure, static, context)

    def changes_to(self, new: "Signature") -> list[Change]:
        """List the differences in `new`.

        >>> a = Signature.of_types(batch={"x": np.zeros((16, 4), np.float32)})
        >>> b = Signature.of_types(batch={"x": np.zeros((24, 4), np.float32)})
        >>> print(*a.changes_to(b))
        batch['x']: float32[16,4] -> float32[24,4]
        """
        before, after = dict(self.leaves), dict(new.leaves)
        changes: list[Change] = []
        for place in before | after:
            old_type = before.get(place, "absent")
            new_type = after.get(place, "absent")
            if old_type != new_type:
                changes.append(Change(place, old_type, new_type))
        changes += _static_changes(self.static, new.static)
        old_context = dict(self.context)
        for name, value in new.context:
            old_value = old_context.get(name, "unset")
            if old_value != value:
                changes.append(Change(name, old_value, value))
        # A container's own data matters only where all leaves have the same paths.
        if not changes and self.structure != new.structure:
            changes = _structure_changes(self.structure, new.structure)
        return changes


def find_nearest_changes(known: Iterable[Signature], new: Signature) -> list[Change]:
    """Return the differences of `new` from the nearest known signature.

    Of equally near signatures the later one counts.
    """
    candidates = [signature.changes_to(new) for signature in known]
    distance = lambda changes: (len(changes), sum(c.num_aspects for c in changes))
    # Reversed, because `min` returns the first of equals.
    return min(reversed(candidates), key=distance, default=[])


def read_settings() -> tuple[tuple[str, Any], ...]:
    """Return the JAX settings that are part of a compiled program."""
    config: Any = jax.config  # its attributes are created at run time
    return (
        # Context managers such as `default_matmul_precision` and `set_mesh` can change
        # these between two calls of one function; jax.jit then compiles again.
        ("matmul precision", config.jax_default_matmul_precision),
        ("64-bit numbers", config.jax_enable_x64),
        ("dtype promotion", config.jax_numpy_dtype_promotion),
        ("rank promotion", config.jax_numpy_rank_promotion),
        ("threefry partitionable", config.jax_threefry_partitionable),
        ("default device", config.jax_default_device),
        ("mesh", jax.sharding.get_abstract_mesh()),
    )


def _format_path(path: tuple[object, ...]) -> str:
    """Format a leaf's path as `batch['x'][0].mu`, the argument's name first."""
    name, *rest = path
    return f"{getattr(name, 'key', name)}{jax.tree_util.keystr(tuple(rest))}"


def _format_type(path: tuple[object, ...], leaf: object) -> str:
    """Format a leaf's type as `float32[16,4]`, with ` weak` for Python numbers."""
    try:
        aval = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
    except TypeError as e:  # JAX's own message does not name the leaf
        found = f"{leaf!r:.60} of type {type(leaf).__name__}"
        if isinstance(leaf, np.ndarray):
            found = f"an array of dtype {leaf.dtype}"
        raise TypeError(
            f"{_format_path(path)} is {found}, not a valid JAX type: leave it out, "
            "make it a static argument, or give numbers for it."
        ) from e
    weak = " weak" if getattr(aval, "weak_type", False) else ""
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]{weak}"


def _format_placement(leaf: object, *, committed: bool) -> str:
    """Format an array's explicit placement; empty for the default device.

    `jax.jit` compiles again when an uncommitted array is replaced by a committed one. A
    program for the one also runs the other, so a training step ignores the difference.
    """
    if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer):
        return ""
    sharding = leaf.sharding
    if isinstance(sharding, jax.NamedSharding):
        return f" sharded as {sharding.spec} over {dict(sharding.mesh.shape)}"
    (device,) = sharding.device_set
    if device != jax.local_devices()[0]:
        return f" on {device}"
    return " committed" if committed and leaf.committed else ""


def _static_changes(old: Hashable, new: Hashable) -> list[Change]:
    """List the static values that differ, by name where they have names."""
    if old == new:
        return []
    before, after = _split_by_name(old), _split_by_name(new)
    changes: list[Change] = []
    for name in before | after:
        old_value, new_value = before.get(name, _MISSING), after.get(name, _MISSING)
        if old_value != new_value:
            changes.append(_static_change(name, old_value, new_value))
    return changes


def _split_by_name(static: Any) -> dict[str, Any]:
    if static is None:
        return {}
    if isinstance(static, Frozen) and isinstance(static.value, dict):
        return {name: Frozen(value) for name, value in static.value.items()}
    if isinstance(static, Mapping):
        return dict(static)
    return {"static": static}


def _static_change(name: str, old: Any, new: Any) -> Change:
    values = [x.value if isinstance(x, Frozen) else x for x in (old, new)]
    codes = [getattr(value, "__code__", None) for value in values]
    # Two functions of the same code differ by identity only: one was defined again.
    if codes[0] is not None and codes[0] == codes[1]:
        file = Path(codes[0].co_filename).name
        source = f"the function of {file}:{codes[0].co_firstlineno}"
        return Change(name, source, "a new definition of the same")
    texts = ["absent" if x is _MISSING else f"{x!r:.60}" for x in values]
    return Change(name, *texts)


def _structure_changes(old: Any, new: Any) -> list[Change]:
    """Find the containers whose own data differ, for structures with equal leaves."""
    before, after = old.node_data(), new.node_data()
    if before == after:
        pairs = list(zip(old.children(), new.children(), strict=False))
        if len(pairs) == len(old.children()) == len(new.children()):
            return [change for pair in pairs for change in _structure_changes(*pair)]
        # A list or tuple with more containers without leaves, such as () and ((),).
        texts = _crop_to_difference(str(old), str(new))
        return [Change("structure", *texts)]
    # A module's static part is a container without leaves: name the values in it.
    forms = [data and data[1] for data in (before, after)]
    statics = [getattr(form, "static", None) for form in forms]
    if all(isinstance(x, Frozen) for x in statics) and statics[0] != statics[1]:
        return _static_changes(*statics)
    texts = [f"{d and d[0].__name__} {d and d[1]}" for d in (before, after)]
    return [Change("structure", *_crop_to_difference(*texts))]


def _crop_to_difference(old: str, new: str) -> tuple[str, str]:
    """Cut two long texts to the surroundings of their first difference."""
    pairs = enumerate(zip(old, new, strict=False))
    first = next((i for i, (a, b) in pairs if a != b), min(len(old), len(new)))
    start = max(first - 20, 0)
    return old[start : start + 60], new[start : start + 60]
