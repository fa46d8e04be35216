"""Take a training step of modules as one of arrays, whose shapes a compiler is given.

A module of equinox holds functions and numbers among its arrays, and its step returns
such a module. An object of flax nnx is changed by its step in place.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
from jax.tree_util import DictKey, SequenceKey

from frugax.jaxprs import take_variables
from frugax.trees import is_array

Factory = Callable[[Callable[..., Any]], Callable[..., Any]]


def take_step(make_step: Factory, args: tuple[Any, ...]) -> tuple[Factory, Any]:
    """The same step as a function of arrays.

    What is not an array stays out of the arguments and of the results, with None in its
    place. Numbers in dicts, lists and tuples are arguments; in modules they are
    settings. All variables of flax nnx objects become one more argument, the last.

    Args:
        make_step: makes the step from the `value_and_grad` that it calls.
        args: arguments of the step: arrays or shapes, in trees or modules.

    Returns:
        The function that makes the step, and the step's arguments.
    """
    found = take_variables(make_step, args, set(), has_aux=False)
    given = args if found is None else found.args
    paths, tree = jax.tree_util.tree_flatten_with_path(given, is_leaf=_is_none)
    leaves = [leaf for _, leaf in paths]
    is_kept = [leaf is None or _is_argument(path, leaf) for path, leaf in paths]
    if found is None and all(is_kept):
        return make_step, as_shapes(args)
    static = [None if kept else x for x, kept in zip(leaves, is_kept, strict=True)]

    def make_step_of_arrays(value_and_grad: Callable[..., Any]) -> Callable[..., Any]:
        step = make_step(value_and_grad)
        taken = take_variables(step, args, set(), has_aux=False)
        inner = step if taken is None else taken.function

        def of_arrays(*arrays: Any) -> Any:
            traced = jax.tree.leaves(arrays, is_leaf=_is_none)
            pairs = zip(traced, static, strict=True)
            result = inner(*tree.unflatten([x if s is None else s for x, s in pairs]))
            keep = lambda x: x if is_array(x) or _is_number(x) else None
            return jax.tree.map(keep, result)

        # Not `functools.wraps`: JAX reads the number of arguments.
        of_arrays.__name__ = getattr(step, "__name__", "step")
        return of_arrays

    kept = tree.unflatten(
        [x if keep else None for x, keep in zip(leaves, is_kept, strict=True)]
    )
    return make_step_of_arrays, as_shapes(kept)


def holds_variables(args: tuple[Any, ...], given: tuple[Any, ...]) -> bool:
    """Whether `take_step` has added the variables of nnx objects to the arguments."""
    return len(given) > len(args)


def as_shapes(args: tuple[Any, ...]) -> Any:
    """Return arguments with shapes for numbers; arrays keep where they lie."""
    shape = lambda x: jax.eval_shape(lambda x: x, x) if _is_number(x) else x
    return jax.tree.map(shape, args)


def _is_argument(path: tuple[Any, ...], leaf: object) -> bool:
    if is_array(leaf):
        return True
    # The first key is the argument's own position.
    inside = itertools.islice(path, 1, None)
    is_plain = all(isinstance(key, DictKey | SequenceKey) for key in inside)
    return is_plain and _is_number(leaf)


def _is_number(leaf: object) -> bool:
    return isinstance(leaf, bool | int | float | complex)


def _is_none(leaf: object) -> bool:
    return leaf is None
