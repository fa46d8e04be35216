"""Text and constants of a traced program, equal in every process, for cache keys."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ._jax_internals import ClosedJaxpr, Jaxpr, Literal


def program_text(program: ClosedJaxpr) -> str:
    """Every operation with all its parameters, but without the values of arrays.

    Two parameters that are functions print alike if they have the same name.

    Args:
        program: the result of `jax.make_jaxpr(f)(*args)`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> print(program_text(jax.make_jaxpr(jnp.sin)(jnp.ones(3))))
        { lambda ; a:f32[3]. let b:f32[3] = sin a in (b,) }
    """
    # `source_info` and `name_stack` depend on the caller and not on the computation.
    # JAX itself omits the addresses of functions that are parameters.
    return program.jaxpr.pretty_print(
        source_info=False, name_stack=False, print_shapes=True, use_color=False
    )


def constants(program: ClosedJaxpr) -> tuple[Any, ...]:
    """The arrays that a program closes over at any depth, in a fixed order.

    Args:
        program: the result of `jax.make_jaxpr(f)(*args)`.

    Example:
        >>> import jax, numpy as np
        >>> table = np.arange(3)
        >>> (found,) = constants(jax.make_jaxpr(lambda i: i + table)(table))
        >>> found.tolist()
        [0, 1, 2]
    """
    return tuple(_constants(program))


def _constants(part: ClosedJaxpr | Jaxpr) -> Iterator[Any]:
    if isinstance(part, ClosedJaxpr):
        yield from part.consts
        part = part.jaxpr
    for eqn in part.eqns:
        # JAX may also embed an array in an operation, depending on its settings.
        yield from (
            v.val for v in eqn.invars if isinstance(v, Literal) and np.ndim(v.val)
        )
        for value in eqn.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if isinstance(inner, ClosedJaxpr | Jaxpr):
                    yield from _constants(inner)
