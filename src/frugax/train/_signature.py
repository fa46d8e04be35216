"""What a compiled step was compiled for, and where another call differs from it.

XLA compiles for one structure, one shape and one dtype of every leaf. JAX explains
recompiles in its log only, so frugax keeps its own record and names the leaf.
"""

import dataclasses
from collections.abc import Hashable

import jax

from frugax.typing import PyTree


@dataclasses.dataclass(frozen=True)
class Signature:
    """Structure, and shape and dtype of every leaf, of named arguments.

    Attributes:
        leaves: path and type of each, such as `("batch['x']", "float32[16,4]")`.
        structure: how the leaves are nested.
    """

    leaves: tuple[tuple[str, str], ...]
    structure: Hashable

    @classmethod
    def of(cls, **arguments: PyTree) -> "Signature":
        """Read it off arrays, NumPy arrays, numbers or `jax.ShapeDtypeStruct`s."""
        abstract = jax.eval_shape(lambda tree: tree, arguments)
        flat, structure = jax.tree_util.tree_flatten_with_path(abstract)
        return cls(tuple((_place(path), _type(leaf)) for path, leaf in flat), structure)

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
        if not found and self.structure != new.structure:
            found = [f"structure: {self.structure} -> {new.structure}"]
        return found


def _place(path: tuple[object, ...]) -> str:
    """`batch['x'][0].mu` for the path of a leaf, the argument's name first."""
    name, *rest = path
    return f"{getattr(name, 'key', name)}{jax.tree_util.keystr(tuple(rest))}"


def _type(leaf: jax.ShapeDtypeStruct) -> str:
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
