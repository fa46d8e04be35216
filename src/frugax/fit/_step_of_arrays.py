"""Take a training step of modules as one of arrays, whose shapes a compiler is given.

A module of equinox holds functions and numbers among its arrays, and its step returns
such a module. An object of flax nnx is changed by its step in place.
"""

from collections.abc import Callable
from typing import Any

import jax

from frugax.jaxprs import take_arrays
from frugax.trees import is_array


def take_step(
    step: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[Callable[..., Any], Any]:
    """The same step as a function of arrays.

    Leaves other than arrays stay out of arguments and results, with None in their
    place; see `take_arrays`. All variables of flax nnx objects become one more
    argument, the last.

    Args:
        step: the function.
        args: its arguments: arrays or shapes, in trees or modules.

    Returns:
        The step and its arguments.
    """
    taken = take_arrays(step, args, (), moves=False)
    if taken.key is None:  # arrays alone
        return step, as_shapes(args)

    def of_arrays(*arrays: Any) -> Any:
        keep = lambda x: x if is_array(x) or _is_number(x) else None
        return jax.tree.map(keep, taken.loss(*arrays))

    # Not `functools.wraps`: JAX reads the number of arguments.
    of_arrays.__name__ = getattr(step, "__name__", "step")
    return of_arrays, as_shapes(taken.args)


def holds_variables(args: tuple[Any, ...], given: tuple[Any, ...]) -> bool:
    """Whether `take_step` has added the variables of nnx objects to the arguments."""
    return len(given) > len(args)


def as_shapes(args: tuple[Any, ...]) -> Any:
    """Return arguments with shapes for numbers; arrays keep where they lie."""
    shape = lambda x: jax.eval_shape(lambda x: x, x) if _is_number(x) else x
    return jax.tree.map(shape, args)


def _is_number(leaf: object) -> bool:
    return isinstance(leaf, bool | int | float | complex)
