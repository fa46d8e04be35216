"""Split a model into trained weights and everything else, and join them again.

A model is a tree of weights, or a module whose leaves are partly functions, flags and
tables of integers. For a module the state holds the weights in one flat dict by name,
which JAX flattens in C++ at each step; the loss receives the whole module.
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

from .._frozen import Frozen

Arrays: TypeAlias = dict[str, Any]
# Name and implementation of each random key that is stored as plain integers.
_KeyTypes: TypeAlias = tuple[tuple[str, str], ...]


def is_trainable(leaf: object) -> bool:
    """Return whether a leaf of a model is trained: an array of floats.

    >>> is_trainable(np.ones(2)), is_trainable(np.arange(2)), is_trainable(max)
    (True, False, False)
    """
    return trees.is_array(leaf) and bool(
        jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
    )


class StaticPart(NamedTuple):
    """The part of a model that is not trained and that no step changes.

    Attributes:
        fixed: its arrays by name, such as tables of integers.
        form: how the model is assembled, including its functions and Python values. It
            holds no array, so it is part of the state's structure: a program is
            compiled for one form.
    """

    fixed: Any  # a dict of arrays, or JAX's own placeholders during a transformation
    form: Any


class ModelParts(NamedTuple):
    """A model that was split."""

    params: PyTree
    carried: PyTree
    rest: StaticPart | None


def split_model(model: PyTree, carried: PyTree = None) -> ModelParts:
    """Split a model; a tree of weights is all `params` and stays as it is."""
    # Python numbers in dicts and lists are weights, in modules they are settings.
    # A caller who has such a module has imported flax; we never do.
    nnx: Any = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(model, nnx.Module):
        if carried is not None:
            raise TypeError(
                "a flax nnx module holds its own variables: leave out carried."
            )
        return _split_nnx(nnx, model)
    flat, structure = jax.tree_util.tree_flatten_with_path(model)
    roles = [_leaf_role(path, leaf) for path, leaf in flat]
    if all(role == "trained" for role in roles):
        return ModelParts(model, carried, None)
    # One flat dict: JAX flattens it in C++, but a module through Python callbacks.
    names = _leaf_names([path for path, _ in flat])
    by_role: dict[str, Arrays] = {"trained": {}, "fixed": {}, "static": {}}
    for name, (_, leaf), role in zip(names, flat, roles, strict=True):
        by_role[role][name] = leaf
    fixed, keys = _unwrap_keys(by_role["fixed"])
    static = Frozen(by_role["static"])
    # The structure holds no leaves, so two modules of one class share a program.
    form = _TreeForm(type(model).__name__, structure, names, static, keys)
    return ModelParts(by_role["trained"], carried, StaticPart(fixed, form))


def join_model(params: PyTree, carried: PyTree, rest: StaticPart | None) -> PyTree:
    """Join the parts of a model, with these weights."""
    if rest is None:
        return params
    return rest.form.join(params, carried, rest.fixed)


def holds_carried(rest: StaticPart | None) -> bool:
    """Return whether the model itself holds its carried arrays, as flax nnx does."""
    return rest is not None and isinstance(rest.form, _NnxForm)


def read_carried(model: PyTree, rest: StaticPart | None) -> PyTree:
    """Read the carried arrays of such a model after the loss was computed."""
    assert rest is not None  # by holds_carried
    assert isinstance(rest.form, _NnxForm)
    return rest.form.read_carried(model)


class _Form:
    """Part of a tree's structure, which JAX compares, mostly with itself, each call.

    A dataclass's own `__eq__` would compare every field even with itself.
    """

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)
class _TreeForm(_Form):
    """How a pytree is assembled from named leaves."""

    kind: str
    structure: Any
    names: tuple[str, ...]
    static: Frozen[dict[str, Any]]
    keys: _KeyTypes

    def join(self, params: Arrays, _: PyTree, fixed: Arrays) -> PyTree:
        leaves = {**params, **_wrap_keys(fixed, self.keys), **self.static.value}
        return jax.tree.unflatten(self.structure, [leaves[n] for n in self.names])

    def __str__(self) -> str:
        values = self.static.value.items()
        texts = [f"{n}={getattr(v, '__name__', v)!s:.40}" for n, v in values]
        return f"{self.kind} with {', '.join(texts) or 'fixed arrays'}"


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)
class _NnxForm(_Form):
    """How a flax nnx module is assembled; variables other than `nnx.Param` are carried.

    `params` and `others` are the structure of these variables and their leaves' names.
    """

    kind: str
    graph: Any
    params: tuple[Any, tuple[str, ...]]
    others: tuple[Any, tuple[str, ...]]
    keys: _KeyTypes

    def join(self, params: Arrays, carried: PyTree, _: Arrays) -> PyTree:
        from flax import nnx

        arrays = _wrap_keys(carried or {}, self.keys)
        return nnx.merge(
            self.graph,
            jax.tree.unflatten(self.params[0], [params[n] for n in self.params[1]]),
            jax.tree.unflatten(self.others[0], [arrays[n] for n in self.others[1]]),
        )

    def read_carried(self, model: PyTree) -> PyTree:
        from flax import nnx

        _, _, others = nnx.split(model, nnx.Param, ...)
        return _unwrap_keys(_nnx_arrays(others))[0] or None

    def __str__(self) -> str:
        return f"{self.kind} of flax nnx"


def _split_nnx(nnx: Any, model: Any) -> ModelParts:
    graph, params, others = nnx.split(model, nnx.Param, ...)
    trained, variables = _nnx_arrays(params), _nnx_arrays(others)
    carried, keys = _unwrap_keys(variables)
    form = _NnxForm(
        type(model).__name__,
        graph,
        (jax.tree.structure(params), tuple(trained)),
        (jax.tree.structure(others), tuple(variables)),
        keys,
    )
    return ModelParts(trained, carried or None, StaticPart({}, form))


def _nnx_arrays(variables: PyTree) -> Arrays:
    """Return the arrays of nnx variables by names such as `layers.0.kernel`."""
    return {
        # The last key of a path is the variable's own `value`.
        ".".join(str(getattr(key, "key", key)) for key in path[:-1]): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(variables)
    }


def _leaf_names(paths: Sequence[Any]) -> tuple[str, ...]:
    """Name each leaf, as in `layers.0.weight`; by its full path if names collide."""
    names = tuple(keystr(path, simple=True, separator=".") for path in paths)
    if len(set(names)) < len(names):
        return tuple(map(keystr, paths))
    return names


def _leaf_role(path: Sequence[Any], leaf: object) -> str:
    """Return "trained", "fixed" or "static"."""
    try:
        if is_trainable(leaf):
            return "trained"
    except TypeError as e:  # JAX's own message does not name the leaf
        kind = getattr(leaf, "dtype", type(leaf).__name__)
        raise TypeError(
            f"the model's {keystr(tuple(path))} is an array of dtype {kind}, which "
            "JAX cannot hold: leave it out, or give numbers for it."
        ) from e
    is_in_module = not all(isinstance(key, (DictKey, SequenceKey)) for key in path)
    if trees.is_array(leaf):
        # Integers in a hand-written dict are a mistake, and refused by name later.
        return "fixed" if is_in_module else "trained"
    if isinstance(leaf, (bool, int, float, complex)) and not is_in_module:
        return "trained"
    return "static"


def _unwrap_keys(arrays: Mapping[str, Any]) -> tuple[Arrays, _KeyTypes]:
    """Replace random keys by plain integers, which files and layouts can hold."""
    keys = tuple(
        (name, str(jax.random.key_impl(x)))
        for name, x in arrays.items()
        if trees.is_random_key(x)
    )
    data = {name: jax.random.key_data(arrays[name]) for name, _ in keys}
    return {**arrays, **data}, keys


def _wrap_keys(arrays: Mapping[str, Any], keys: _KeyTypes) -> Arrays:
    wrapped = {
        name: jax.random.wrap_key_data(arrays[name], impl=impl) for name, impl in keys
    }
    return {**arrays, **wrapped}
