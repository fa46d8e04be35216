"""The one door to what JAX does not promise to keep, such as `jax.extend`."""

from collections.abc import Sequence
from typing import Any

from jax.extend.core import (
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    Primitive,
    Var,
    jaxpr_as_fun,
    jaxprs_in_params,
)
from jax.interpreters import partial_eval

__all__ = [
    "ClosedJaxpr",
    "Jaxpr",
    "JaxprEqn",
    "Literal",
    "Primitive",
    "Var",
    "fresh_var",
    "jaxpr_as_fun",
    "jaxprs_in_params",
    "static_names",
    "without_dead_code",
]


def fresh_var(aval: Any) -> Var:
    """A new variable of this shape and type."""
    return Var(aval)


def static_names(jitted: Any) -> frozenset[str]:
    """The parameters that a jitted function is compiled for; none if JAX hides it."""
    info = getattr(jitted, "_jit_info", None)
    return frozenset(getattr(info, "static_argnames", None) or ())


def without_dead_code(
    jaxpr: Jaxpr, used_outputs: Sequence[bool]
) -> tuple[Jaxpr, list[bool]]:
    """The program without what `used_outputs` do not need, and which inputs remain."""
    live, used_inputs = partial_eval.dce_jaxpr(jaxpr, list(used_outputs))
    return live, list(used_inputs)
