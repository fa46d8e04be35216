"""Take the variables of flax nnx objects out of arguments, and put changed ones back.

A module of flax nnx is changed in place by its loss: batch statistics, dropout counts,
caches. As a pytree it would be copied into the traced program, and the changes lost. So
its variables become arguments, and what the loss changed becomes one more result, as
`nnx.value_and_grad` does it. Its gradient is the `nnx.State` of its `nnx.Param`s.
"""

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class FunctionOfVariables:
    """A function of nnx objects as a function of their variables.

    Attributes:
        function: takes the arguments, with a `State` of the trained variables in the
            place of each object, and then a `State` of all others. It returns the same
            result, to which the variables that it changed are added: `(result,
            changed)`, or `(number, (aux, changed))` of a loss that has aux.
        args: its arguments.
        key: tells apart functions of objects with different structure.
        put_back: changes the objects as the function changed its copies.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    key: Any
    put_back: Callable[[Any], None]


def take_variables(
    function: Callable[..., Any],
    args: Sequence[Any],
    active: set[int],
    *,
    has_aux: bool,
) -> FunctionOfVariables | None:
    """Take the variables of nnx objects out of arguments; None if there are none.

    Args:
        function: the function of these arguments.
        args: its arguments.
        active: the positions of those that are differentiated: their `nnx.Param`s stay
            in their place.
        has_aux: whether `function` returns (number, anything).

    Raises:
        TypeError: the function changes an attribute of an object that is not a
            variable; raised where it is traced.
    """
    # A caller who has such an object has imported flax; we never do.
    nnx: Any = sys.modules.get("flax.nnx")
    if nnx is None or not any(map(_holds_objects, args)):
        return None
    import jax

    is_object = functools.partial(_is_object, nnx)
    flat = [jax.tree.flatten(arg, is_leaf=is_object) for arg in args]
    trees = [tree for _, tree in flat]
    # Each object's place: the position of its argument, and among that one's leaves.
    places = [
        (n, i)
        for n, (leaves, _) in enumerate(flat)
        for i in _positions(leaves, is_object)
    ]
    objects = [flat[n][0][i] for n, i in places]

    def is_trained(path: tuple[Any, ...], variable: Any) -> bool:
        return places[path[0]][0] in active and isinstance(variable, nnx.Param)

    # As one graph, so that variables which objects share stay shared.
    graph, trained, others = nnx.split(objects, is_trained, ...)

    @functools.wraps(function)
    def of_variables(*given: Any) -> Any:
        *placed, rest = given
        found = [t.flatten_up_to(arg) for t, arg in zip(trees, placed, strict=True)]
        weights = {k: found[n][i] for k, (n, i) in enumerate(places) if k in trained}
        copies = nnx.merge(graph, nnx.State(weights), rest, copy=True)
        before = _read_variables(nnx, copies)
        for (n, i), copy in zip(places, copies, strict=True):
            found[n][i] = copy
        result = function(*map(_unflatten, trees, found))
        changed = _find_changed(nnx, before, _read_variables(nnx, copies))
        return (result[0], (result[1], changed)) if has_aux else (result, changed)

    found = [list(leaves) for leaves, _ in flat]
    for k, (n, i) in enumerate(places):
        found[n][i] = trained[k] if k in trained else nnx.State({})
    return FunctionOfVariables(
        of_variables,
        (*map(_unflatten, trees, found), others),
        (graph, tuple(places)),
        functools.partial(nnx.update, objects),
    )


def changes_weights(changed: Any) -> bool:
    """Whether a function that changed these variables is a step, and not a loss."""
    nnx: Any = sys.modules["flax.nnx"]
    return any(isinstance(v, nnx.Param) for _, v in nnx.to_flat_state(changed))


class LostUpdateWarning(UserWarning):
    """A jitted function changes a module of flax nnx, which `jax.jit` does not see."""


def call_noting_changes(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, list[str]]:
    """Call a function with tracers; also name the nnx objects that it changes.

    `jax.jit` gives it copies of these arguments, so that the changes are lost.
    """
    try:
        names = [*inspect.signature(function).parameters]
    except (TypeError, ValueError):  # a function of C has none
        names = []
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    # Asked by name: flax may not be installed.
    is_object = lambda x: any(
        c.__module__ == "flax.nnx.pytreelib" for c in type(x).__mro__
    )
    objects = {n: x for n, x in given.items() if is_object(x)}
    before = {n: _leaves(x) for n, x in objects.items()}
    result = function(*args, **kwargs)
    after = {n: _leaves(x) for n, x in objects.items()}
    is_same = lambda n: [*map(id, before[n])] == [*map(id, after[n])]
    return result, [n for n in objects if not is_same(n)]


def _leaves(tree: Any) -> list[Any]:
    import jax

    return jax.tree.leaves(tree)


def _unflatten(tree: Any, leaves: Sequence[Any]) -> Any:
    return tree.unflatten(leaves)


def _positions(leaves: Sequence[Any], select: Callable[[Any], bool]) -> list[int]:
    return [i for i, leaf in enumerate(leaves) if select(leaf)]


def _read_variables(
    nnx: Any, objects: Any
) -> tuple[Any, dict[Any, Any], dict[Any, Any]]:
    """The structure of objects, their variables by path, and the values of these."""
    graph, state = nnx.split(objects)
    variables = dict(nnx.to_flat_state(state))
    values = {
        path: v.get_raw_value() if isinstance(v, nnx.Variable) else v
        for path, v in variables.items()
    }
    return graph, variables, values


def _find_changed(nnx: Any, before: tuple[Any, ...], after: tuple[Any, ...]) -> Any:
    """The `State` of the variables that are new, or hold another value."""
    old_graph, _, old = before
    graph, variables, values = after
    if graph != old_graph and values.keys() == old.keys():
        raise TypeError(
            "the function changes an attribute of a flax nnx object that is no "
            "variable, which only its first call would do: hold it in an nnx.Variable."
        )
    changed = {
        path: variables[path]
        for path, value in values.items()
        if path not in old or old[path] is not value
    }
    return nnx.from_flat_state(changed)


def _holds_objects(arg: Any) -> bool:
    """Whether an argument is, or holds, an object of nnx."""
    import jax

    leaves, tree = jax.tree.flatten(arg)
    nnx: Any = sys.modules["flax.nnx"]
    if any(isinstance(x, nnx.Pytree) for x in leaves):
        return True
    try:
        return _has_object(tree)
    except TypeError:  # an attribute of a module that has no hash
        return _has_object.__wrapped__(tree)


# At each call of a gradient, so it has to be quick.
@functools.lru_cache(maxsize=1024)
def _has_object(tree: Any) -> bool:
    nnx: Any = sys.modules["flax.nnx"]
    data = tree.node_data()
    if data is None or issubclass(data[0], nnx.State):
        return False
    own = issubclass(data[0], nnx.Pytree | nnx.Variable)
    return own or any(map(_has_object.__wrapped__, tree.children()))


def _is_object(nnx: Any, x: Any) -> bool:
    """Whether this is an object of nnx; a `State` is an ordinary tree to JAX."""
    return isinstance(x, nnx.Pytree | nnx.Variable)
