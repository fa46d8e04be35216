"""An operation whose result is there already: only its derivative is left to do.

The rules of `tanh`, `exp` and the like read their own result. Taken from what was
kept, the operation need not run again for it, nor all that leads to it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from frugax.jaxprs import trace, variables


def reuse_results(
    run: Callable[[Sequence[Any], Sequence[Any]], list[Any]],
    moving: Sequence[Any],
    rest: Sequence[Any],
    results: Sequence[Any],
) -> list[Any]:
    """`results`, which are those of `run(moving, rest)`, with the derivative of `run`.

    Args:
        run: what made them.
        moving: arrays that gradients may go through.
        rest: what else `run` reads. It must close over nothing: its derivative may be
            taken when what it closed over is no more.
        results: what it made.
    """
    if not all(jnp.issubdtype(r.dtype, jnp.inexact) for r in results):
        return run(moving, rest)

    @jax.custom_jvp
    def made(moving: list[Any], rest: list[Any], results: list[Any]) -> list[Any]:
        return results

    @made.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        moving, rest, results = primals

        def there(moving: Any, tangents: Any, rest: Any) -> Any:
            return jax.jvp(lambda x: run(x, rest), (moving,), (tangents,))

        graph = trace(there, (moving, tangents[0], rest))
        wanted = graph.outputs[len(results) :]
        given: dict[Any, Any] = dict(zip(graph.outputs, results, strict=False))
        given = {v: r for v, r in given.items() if variables([v])}
        others = [e for e in graph.eqns if not set(e.outvars) <= given.keys()]
        made_here = {v for e in others for v in e.outvars} | set(graph.inputs)
        given = {v: r for v, r in given.items() if v not in made_here}
        turn = graph.run(others, [*graph.inputs, *given], wanted)
        known = [*graph.const_values, *moving, *tangents[0], *rest, *given.values()]
        return results, turn(*known)

    return made(list(moving), list(rest), list(results))
