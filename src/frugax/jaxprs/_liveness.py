"""Liveness analysis: bytes that a traced program holds at each of its operations."""

from ._graph import Graph, bytes_of, variables


def live_bytes(graph: Graph) -> tuple[int, ...]:
    """Bytes of intermediate results alive while each operation runs.

    The operands and results of the operation count; inputs of the program do not.

    Example:
        >>> import jax.numpy as jnp
        >>> from frugax.jaxprs import trace
        >>> live_bytes(trace(lambda x: jnp.sin(jnp.cos(x)), (jnp.ones(4),)))
        (16, 32)
    """
    dies_at: dict[int, list[int]] = {}
    for v, position in graph.last_use.items():
        if graph.defined_at[v] >= 0:
            dies_at.setdefault(position, []).append(bytes_of(v))
    alive, found = 0, []
    for i, eqn in enumerate(graph.eqns):
        # A result without readers is dead code, which compilers drop.
        used = [v for v in variables(eqn.outvars) if v in graph.last_use]
        alive += sum(map(bytes_of, used))
        found.append(alive)
        alive -= sum(dies_at.get(i, ()))
    return tuple(found)
