"""What a compiled step was compiled for, and where another call differs from it.

XLA compiles for one structure, one shape and one dtype of every leaf. JAX explains
recompiles in its log only, so frugax keeps its own record and names the leaf.
"""

import dataclasses
from collections.abc import Hashable
from typing import Any

import jax
from jax.core import Tracer

from frugax.typing import PyTree


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
        flat, structure = jax.tree_util.tree_flatten_with_path(arguments)
        leaves = tuple((_place(path), _type(leaf)) for path, leaf in flat)
        return cls(leaves, structure, static, _context())

    @classmethod
    def of_types(cls, **arguments: PyTree) -> "Signature":
        """The same for wherever the arrays lie."""
        return cls.of(**jax.eval_shape(lambda tree: tree, arguments))

    def changes_to(self, new: "Signature") -> list[str]:
        """What differs in `new`, one line a leaf: `batch['x']: old -> new`.

        >>> a = Signature.of(batch={"x": np.zeros((16, 4), np.float32)})
        >>> b = Signature.of(batch={"x": np.zeros((24, 4), np.float32)})
        >>> a.changes_to(b)
        ["batch['x']: float32[16,4] -> float32[24,4]"]
        """
        old_types, new_types = dict(self.leaves), dict(new.leaves)
        places = list(old_types) + [p for p in new_types if p not in old_types]
        found = [
            f"{p}: {old_types.get(p, 'absent')} -> {new_types.get(p, 'absent')}"
            for p in places
            if old_types.get(p) != new_types.get(p)
        ]
        if self.static != new.static:
            found.append(f"static: {self.static!r:.60} -> {new.static!r:.60}")
        before, after = dict(self.context), dict(new.context)
        found += [
            f"{k}: {before[k]} -> {after[k]}" for k in before if before[k] != after[k]
        ]
        if not found and self.structure != new.structure:
            found = [f"structure: {self.structure} -> {new.structure}"]
        return found


def _place(path: tuple[object, ...]) -> str:
    """`batch['x'][0].mu` for the path of a leaf, the argument's name first."""
    name, *rest = path
    return f"{getattr(name, 'key', name)}{jax.tree_util.keystr(tuple(rest))}"


def _type(leaf: object) -> str:
    """`float32[16,4]`; `weak` for a Python number's, and where it lies if that is said.

    Raises:
        TypeError: it is no array and no number.
    """
    aval = jax.typeof(leaf) if not isinstance(leaf, jax.ShapeDtypeStruct) else leaf
    weak = " weak" if getattr(aval, "weak_type", False) else ""
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]{weak}{_placed(leaf)}"


def _placed(leaf: object) -> str:
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
    return "" if device == jax.local_devices()[0] else f" on {device}"


def _context() -> tuple[tuple[str, str], ...]:
    """Settings of JAX that change what is compiled."""
    settings: Any = jax.config  # its attributes are made at run time
    return (
        ("matmul precision", str(settings.jax_default_matmul_precision)),
        ("64-bit numbers", str(settings.jax_enable_x64)),
    )
