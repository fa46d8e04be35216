"""Take a loss of modules as one of arrays: their other leaves leave the arguments.

A module of equinox holds its activation functions and its number of heads as leaves.
`jax.grad` refuses them; `eqx.filter_grad` leaves them out of the gradient. Objects of
flax nnx are taken apart as `nnx.grad` does it, and what the loss changes in them is put
back.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from frugax.trees import is_array

from ._nnx_objects import take_variables

Argnums = int | tuple[int, ...]


def _same(value_and_gradients: tuple[Any, Any]) -> tuple[Any, Any]:
    return value_and_gradients


@dataclasses.dataclass(frozen=True)
class LossOfArrays:
    """A loss whose arguments hold arrays and numbers only.

    Attributes:
        loss: the function.
        args: its arguments.
        argnums: which of them to differentiate.
        key: tells apart losses that close over different leaves; None where nothing
            was closed over and the loss is that of the caller.
        has_aux: whether it returns (number, anything): what it changed in objects of
            flax nnx comes last in there.
        finish: turns the value and gradients of this loss into those of the caller's,
            and changes the objects in the caller's arguments.
    """

    loss: Callable[..., Any]
    args: tuple[Any, ...]
    argnums: Argnums
    has_aux: bool = False
    key: Hashable = None
    finish: Callable[[tuple[Any, Any]], tuple[Any, Any]] = _same


def take_arrays(
    loss: Callable[..., Any],
    args: Sequence[Any],
    argnums: Argnums = 0,
    *,
    has_aux: bool = False,
    moves: bool = True,
) -> LossOfArrays:
    """The same loss as a function of arrays.

    An argument that `jax.grad` takes stays as it is, and so does one that is itself no
    tree. In others, all but arrays is closed over. Arrays of whole numbers in
    arguments that are differentiated, such as random keys, become one more argument. In
    the places of all these is None, and so the gradients have None there. An object of
    flax nnx becomes the `nnx.State` of its trained variables.

    Args:
        loss: a function of these arguments.
        args: its arguments: trees of arrays, or of their shapes.
        argnums: which arguments to differentiate, as for `jax.grad`.
        has_aux: whether the loss returns (number, anything).
        moves: whether arrays of whole numbers are taken out.
    """
    count = len(args)
    active = _positions(argnums, count)
    taken = take_variables(loss, args, active, has_aux=has_aux)
    if taken is None:
        return _take_leaves(loss, args, argnums, has_aux=has_aux, moves=moves)
    # A negative position would count the new argument.
    argnums = _from_front(argnums, count)
    found = _take_leaves(taken.function, taken.args, argnums, has_aux=True, moves=moves)

    def finish(value_and_gradients: tuple[Any, Any]) -> tuple[Any, Any]:
        (value, aux), gradients = value_and_gradients
        if has_aux:
            aux, changed = aux
            value = value, aux
        else:
            changed = aux
        taken.put_back(changed)
        return value, gradients

    key = taken.key, found.key
    return dataclasses.replace(found, key=key, finish=finish)


def _positions(argnums: Argnums, count: int) -> set[int]:
    given = (argnums,) if isinstance(argnums, int) else argnums
    return {n % count for n in given if -count <= n < count}


def _from_front(argnums: Argnums, count: int) -> Argnums:
    if isinstance(argnums, int):
        return argnums % count
    return tuple(n % count for n in argnums)


def _take_leaves(
    loss: Callable[..., Any],
    args: Sequence[Any],
    argnums: Argnums,
    *,
    has_aux: bool,
    moves: bool,
) -> LossOfArrays:
    """The same, of arguments without objects of flax nnx."""
    import jax

    count = len(args)
    active = _positions(argnums, count)
    is_whole = [
        all(
            x is arg or _is_taken(x, is_active=n in active)
            for x in jax.tree.leaves(arg)
        )
        for n, arg in enumerate(args)
    ]
    if all(is_whole):  # at each call of a gradient, so it has to be quick
        return LossOfArrays(loss, tuple(args), argnums, has_aux)
    # None stands for each array taken out, so it has to count as a leaf.
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
        return LossOfArrays(loss, tuple(args), argnums, has_aux)
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
        argnums = _from_front(argnums, count)
    # With their types, since 1, 1.0 and True are equal.
    names = tuple((type(x), x if isinstance(x, Hashable) else id(x)) for x in static)
    key = tree, names, tuple(fates)
    args = (*kept, moved) if moved else kept
    return LossOfArrays(of_arrays, args, argnums, has_aux, key)


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
