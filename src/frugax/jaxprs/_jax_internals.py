"""The one door to what JAX does not promise to keep, such as `jax.extend`."""

from collections.abc import Sequence
from typing import Any

import jax
from jax._src.core import trace_state_clean  # noqa: PLC2701 - no public name has it
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
    "close",
    "debug_effect",
    "fresh_var",
    "is_tracing",
    "jaxpr_as_fun",
    "jaxprs_in_params",
    "remove_dead_code",
    "static_names",
    "varying_axes",
]


def close(jaxpr: Any) -> ClosedJaxpr:
    """A program that may be open as one with its constants; JAX 0.12 has one class."""
    if isinstance(jaxpr, ClosedJaxpr):
        return jaxpr
    return ClosedJaxpr(jaxpr, ())


def debug_effect() -> Any:
    """The effect of `jax.debug.callback`: JAX keeps it through every transformation."""
    traced = jax.make_jaxpr(lambda: jax.debug.callback(lambda: None))()
    (effect,) = traced.effects
    return effect


def is_tracing() -> bool:
    """Whether this thread is inside a transformation of JAX."""
    return not trace_state_clean()


def fresh_var(aval: Any) -> Var:
    """A new variable of this shape and type."""
    return Var(aval)


def static_names(jitted: Any) -> frozenset[str]:
    """The parameters that a jitted function is compiled for; none if JAX hides it."""
    info = getattr(jitted, "_jit_info", None)
    return frozenset(getattr(info, "static_argnames", None) or ())


def varying_axes(value: Any) -> frozenset[str]:
    """The mesh axes along which a value differs, inside of `shard_map`."""
    kind = jax.typeof(value)
    held = getattr(kind, "mat", None)
    axes = getattr(kind, "vma", ()) if held is None else held.varying
    return frozenset(axes or ())


def remove_dead_code(
    jaxpr: Jaxpr, used_outputs: Sequence[bool]
) -> tuple[Jaxpr, list[bool]]:
    """The program without what `used_outputs` do not need, and which inputs remain."""
    live, used_inputs = partial_eval.dce_jaxpr(jaxpr, list(used_outputs))
    return live, list(used_inputs)
