"""A model in two: the weights that are trained, and all else that makes it a model.

A model is a tree of weights already, or a module whose leaves are partly functions,
flags and tables of integers. Of a module the state holds the weights by name, in one
flat dict, which JAX takes apart in C++ at each step; the loss is given it whole.
"""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.tree_util import DictKey, SequenceKey, keystr

from frugax import trees
from frugax.trees import PyTree

from ._static import Frozen

Arrays: TypeAlias = dict[str, Any]


def is_trainable(leaf: object) -> bool:
    """Whether a leaf of a model is trained: an array of floating-point numbers.

    >>> is_trainable(np.ones(2)), is_trainable(np.arange(2)), is_trainable(max)
    (True, False, False)
    """
    return trees.is_array(leaf) and bool(
        jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
    )


class Rest(NamedTuple):
    """What of a model is not trained: a part of the state that no step changes.

    Attributes:
        fixed: its arrays by name, such as tables of integers.
        form: how it is put together, functions and Python values among it: no array,
            but a part of the state's structure. A program is compiled for one form.
    """

    fixed: Any  # a dict of arrays, or whatever JAX puts there for a moment
    form: Any


class Parts(NamedTuple):
    """A model taken apart.

    Attributes:
        params: what is trained.
        carried: what the loss changes itself, such as running averages; None if
            nothing.
        rest: what else there is; None if nothing.
    """

    params: PyTree
    carried: PyTree
    rest: Rest | None


def take_apart(model: PyTree, carried: PyTree = None) -> Parts:
    """The parts of a model; a tree of weights is all `params` and stays as it is.

    Python numbers in dicts and lists are weights, in modules they are settings.

    Args:
        model: any pytree, or a module of equinox or flax.
        carried: what the loss changes itself and gives back.

    Raises:
        TypeError: a part of the model is neither an array nor hashable, or a module of
            flax nnx was given `carried`, which holds that itself.
    """
    nnx: Any = sys.modules.get("flax.nnx")  # who has such a module has imported it
    if nnx is not None and isinstance(model, nnx.Module):
        if carried is not None:
            raise TypeError(
                "a module of flax nnx holds its own variables: leave out carried."
            )
        return _take_nnx_apart(nnx, model)
    found, structure = jax.tree_util.tree_flatten_with_path(model)
    sides = [_side(path, leaf) for path, leaf in found]
    if all(side == "trained" for side in sides):
        return Parts(model, carried, None)
    names = _names([path for path, _ in found])
    of = {
        side: {
            name: leaf
            for name, (_, leaf), its in zip(names, found, sides, strict=True)
            if its == side
        }
        for side in ("trained", "fixed", "static")
    }
    fixed, keys = _without_keys(of["fixed"])
    form = _Tree(type(model).__name__, structure, names, Frozen(of["static"]), keys)
    return Parts(of["trained"], carried, Rest(fixed, form))


def whole(params: PyTree, carried: PyTree, rest: Rest | None) -> PyTree:
    """The model that was taken apart, with these weights."""
    return params if rest is None else rest.form.whole(params, carried, rest.fixed)


def holds_carried(rest: Rest | None) -> bool:
    """Whether the model itself holds what the loss changes, as flax nnx does."""
    return rest is not None and isinstance(rest.form, _Nnx)


def carried_in(model: PyTree, rest: Rest | None) -> PyTree:
    """What such a model holds after the loss was computed."""
    assert rest is not None  # by holds_carried
    assert isinstance(rest.form, _Nnx)
    return rest.form.carried_in(model)


class _Form:
    """Part of a structure, which JAX compares at each call: mostly with itself."""

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, _Form) or type(self) is not type(other):
            return False
        return self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self._parts())

    def _parts(self) -> tuple[Any, ...]:
        return tuple(vars(self).values())


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)
class _Tree(_Form):
    """How a pytree is put together from leaves by name."""

    kind: str
    structure: Any
    names: tuple[str, ...]
    static: Frozen[dict[str, Any]]
    keys: tuple[tuple[str, str], ...]

    def whole(self, params: Arrays, _: PyTree, fixed: Arrays) -> PyTree:
        leaves = {**params, **_with_keys(fixed, self.keys), **self.static.value}
        return jax.tree.unflatten(self.structure, [leaves[n] for n in self.names])

    def __str__(self) -> str:
        said = (f"{n}={getattr(v, '__name__', v)!s:.40}" for n, v in self._static())
        return f"{self.kind} with {', '.join(said) or 'fixed arrays'}"

    def _static(self) -> list[tuple[str, Any]]:
        return list(self.static.value.items())


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)
class _Nnx(_Form):
    """How a module of flax nnx is put together: what is no `nnx.Param` is carried."""

    kind: str
    graph: Any
    params: tuple[Any, tuple[str, ...]]
    others: tuple[Any, tuple[str, ...]]
    keys: tuple[tuple[str, str], ...]

    def whole(self, params: Arrays, carried: PyTree, _: Arrays) -> PyTree:
        from flax import nnx

        arrays = _with_keys(carried or {}, self.keys)
        return nnx.merge(
            self.graph,
            jax.tree.unflatten(self.params[0], [params[n] for n in self.params[1]]),
            jax.tree.unflatten(self.others[0], [arrays[n] for n in self.others[1]]),
        )

    def carried_in(self, model: PyTree) -> PyTree:
        from flax import nnx

        _, _, others = nnx.split(model, nnx.Param, ...)
        return _without_keys(_by_name(others))[0] or None

    def __str__(self) -> str:
        return f"{self.kind} of flax nnx"


def _take_nnx_apart(nnx: Any, model: Any) -> Parts:
    graph, params, others = nnx.split(model, nnx.Param, ...)
    trained, carried = _by_name(params), _by_name(others)
    arrays, keys = _without_keys(carried)
    form = _Nnx(
        type(model).__name__,
        graph,
        (jax.tree.structure(params), tuple(trained)),
        (jax.tree.structure(others), tuple(carried)),
        keys,
    )
    return Parts(trained, arrays or None, Rest({}, form))


def _by_name(variables: PyTree) -> Arrays:
    """The arrays of nnx variables, by names such as `layers.0.kernel`."""
    return {
        ".".join(str(getattr(key, "key", key)) for key in path[:-1]): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(variables)
    }


def _names(paths: Sequence[Any]) -> tuple[str, ...]:
    """A name for each leaf, such as `layers.0.weight`; longer if two had the same."""
    short = tuple(keystr(path, simple=True, separator=".") for path in paths)
    return short if len(set(short)) == len(short) else tuple(map(keystr, paths))


def _side(path: Sequence[Any], leaf: object) -> str:
    """Where a leaf belongs.

    Raises:
        TypeError: it is an array of no numbers.
    """
    try:
        if is_trainable(leaf):
            return "trained"
    except TypeError as e:  # JAX's own words do not name the leaf
        kind = getattr(leaf, "dtype", type(leaf).__name__)
        raise TypeError(
            f"the model's {keystr(tuple(path))} is an array of dtype {kind}, which "
            "JAX cannot hold: leave it out, or give numbers for it."
        ) from e
    in_module = not all(isinstance(key, (DictKey, SequenceKey)) for key in path)
    if trees.is_array(leaf):
        # In a dict that somebody wrote these are a slip, and refused by name later.
        return "fixed" if in_module else "trained"
    is_number = isinstance(leaf, (bool, int, float, complex))
    return "trained" if is_number and not in_module else "static"


def _without_keys(
    arrays: Mapping[str, Any],
) -> tuple[Arrays, tuple[tuple[str, str], ...]]:
    """Random keys as the plain integers that files and layouts can take."""
    keys = tuple(
        (name, str(jax.random.key_impl(x)))
        for name, x in arrays.items()
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    )
    plain = {name: jax.random.key_data(arrays[name]) for name, _ in keys}
    return {**arrays, **plain}, keys


def _with_keys(arrays: Mapping[str, Any], keys: tuple[tuple[str, str], ...]) -> Arrays:
    made = {
        name: jax.random.wrap_key_data(arrays[name], impl=impl) for name, impl in keys
    }
    return {**arrays, **made}
