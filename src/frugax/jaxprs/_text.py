"""A traced program as text, the same in every process, and the arrays in it."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ._jax_internals import ClosedJaxpr, Jaxpr, Literal


def program_text(closed: ClosedJaxpr) -> str:
    """Every operation with all its parameters, but without the values of arrays.

    Two functions that are parameters look alike if they have the same name.

    Args:
        closed: what `jax.make_jaxpr(f)(*args)` gives.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> print(program_text(jax.make_jaxpr(jnp.sin)(jnp.ones(3))))
        { lambda ; a:f32[3]. let b:f32[3] = sin a in (b,) }
    """
    # JAX itself leaves out where in memory such functions are.
    return closed.jaxpr.pretty_print(
        source_info=False, name_stack=False, print_shapes=True, use_color=False
    )


def constants(closed: ClosedJaxpr) -> tuple[Any, ...]:
    """The arrays that a program closes over, wherever in it, in a fixed order.

    Args:
        closed: what `jax.make_jaxpr(f)(*args)` gives.

    Example:
        >>> import jax, numpy as np
        >>> table = np.arange(3)
        >>> (found,) = constants(jax.make_jaxpr(lambda i: i + table)(table))
        >>> found.tolist()
        [0, 1, 2]
    """
    return tuple(_constants(closed))


def _constants(part: ClosedJaxpr | Jaxpr) -> Iterator[Any]:
    if isinstance(part, ClosedJaxpr):
        yield from part.consts
        part = part.jaxpr
    for eqn in part.eqns:
        # Depending on JAX's settings, an array stands in the operation itself.
        yield from (
            v.val for v in eqn.invars if isinstance(v, Literal) and np.ndim(v.val)
        )
        for value in eqn.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if isinstance(inner, ClosedJaxpr | Jaxpr):
                    yield from _constants(inner)
