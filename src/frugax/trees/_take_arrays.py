"""Take a loss of modules as one of arrays: their other leaves leave the arguments.

A module of equinox holds its activation functions and its number of heads as leaves,
and one of flax nnx holds random keys. `jax.grad` refuses them; `eqx.filter_grad` and
`nnx.grad` leave them out of the gradient.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from ._partition import is_array

Argnums = int | tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class LossOfArrays:
    """A loss whose arguments hold arrays and numbers only.

    Attributes:
        loss: the function.
        args: its arguments.
        argnums: which of them to differentiate.
        key: tells apart losses that close over different leaves; None where nothing
            was closed over and the loss is that of the caller.
    """

    loss: Callable[..., Any]
    args: tuple[Any, ...]
    argnums: Argnums
    key: Hashable = None


def take_arrays(
    loss: Callable[..., Any],
    args: Sequence[Any],
    argnums: Argnums = 0,
    *,
    moves: bool = True,
) -> LossOfArrays:
    """The same loss as a function of arrays.

    An argument that `jax.grad` takes stays as it is, and so does one that is itself no
    tree. In others, what is not an array is closed over. Arrays of whole numbers in
    arguments that are differentiated, such as random keys, become one more argument. In
    the places of all these is None, and so the gradients have None there.

    Args:
        loss: a function of these arguments.
        args: its arguments: trees of arrays, or of their shapes.
        argnums: which arguments to differentiate, as for `jax.grad`.
        moves: whether arrays of whole numbers are taken out.
    """
    import jax

    count = len(args)
    given = (argnums,) if isinstance(argnums, int) else argnums
    active = {n % count for n in given if -count <= n < count}
    is_whole = [
        all(
            x is arg or _is_taken(x, is_active=n in active)
            for x in jax.tree.leaves(arg)
        )
        for n, arg in enumerate(args)
    ]
    if all(is_whole):  # at each call of a gradient, so it has to be quick
        return LossOfArrays(loss, tuple(args), argnums)
    # None stands for what is taken out, so it has to count as a leaf.
    leaves, tree = jax.tree.flatten(tuple(args), is_leaf=_is_none)
    fates: list[str] = []
    for n, arg in enumerate(args):
        within = jax.tree.leaves(arg, is_leaf=_is_none)
        if is_whole[n]:
            fates += ["kept"] * len(within)
        else:
            fates += [_fate(x, is_active=n in active) for x in within]
    if not moves:
        fates = [f.replace("moved", "kept") for f in fates]
    if all(f == "kept" for f in fates):
        return LossOfArrays(loss, tuple(args), argnums)
    pick = lambda fate: [f == fate for f in fates]
    moved = list(itertools.compress(leaves, pick("moved")))
    static = [x if f == "static" else None for x, f in zip(leaves, fates, strict=True)]

    @functools.wraps(loss)
    def of_arrays(*arrays: Any) -> Any:
        rest = iter(arrays[count] if moved else ())
        found = list(jax.tree.leaves(arrays[:count], is_leaf=_is_none))
        for i, fate in enumerate(fates):
            if fate == "static":
                found[i] = static[i]
            elif fate == "moved":
                found[i] = next(rest)
        return loss(*tree.unflatten(found))

    pairs = zip(leaves, fates, strict=True)
    kept = tree.unflatten([x if f == "kept" else None for x, f in pairs])
    if moved:
        # A negative position would count the new argument.
        from_front = tuple(n % count for n in given)
        argnums = from_front[0] if isinstance(argnums, int) else from_front
    # With their types, since 1, 1.0 and True are equal.
    names = tuple((type(x), x if isinstance(x, Hashable) else id(x)) for x in static)
    key = tree, names, tuple(fates)
    return LossOfArrays(of_arrays, (*kept, moved) if moved else kept, argnums, key)


def _is_none(x: Any) -> bool:
    return x is None


def _is_taken(leaf: Any, *, is_active: bool) -> bool:
    """Whether `jax.grad` takes a leaf, in an argument that is differentiated or not."""
    if not is_array(leaf):
        numbers = (float, complex) if is_active else (bool, int, float, complex)
        return leaf is None or type(leaf) in numbers
    return not is_active or _is_inexact(leaf.dtype)


@functools.lru_cache
def _is_inexact(dtype: Any) -> bool:
    import jax.numpy as jnp

    return jnp.issubdtype(dtype, jnp.inexact)


def _fate(leaf: Any, *, is_active: bool) -> str:
    """Whether a leaf of a module is kept, moved or static."""
    if not is_array(leaf):
        return "static"
    return "kept" if _is_taken(leaf, is_active=is_active) else "moved"
