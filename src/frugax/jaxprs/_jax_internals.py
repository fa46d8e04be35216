"""The only module that imports `jax._src` or `jax.extend`: re-exports and wrappers."""

import ctypes
from collections.abc import Sequence
from typing import Any

import jax
from jax._src import xla_bridge  # noqa: PLC2701 - see `keep_clients`
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
from jax.extend.source_info_util import new_source_info, user_context
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
    "is_vmapped",
    "jaxpr_as_fun",
    "jaxprs_in_params",
    "keep_clients",
    "new_source_info",
    "remove_dead_code",
    "static_names",
    "user_context",
    "varying_axes",
]


def close(jaxpr: Any) -> ClosedJaxpr:
    """The program as a ClosedJaxpr, which it may be already.

    JAX 0.12 has a single class for both.
    """
    if isinstance(jaxpr, ClosedJaxpr):
        return jaxpr
    return ClosedJaxpr(jaxpr, ())


def debug_effect() -> Any:
    """The effect of `jax.debug.callback`, which JAX keeps through transformations."""
    traced = jax.make_jaxpr(lambda: jax.debug.callback(lambda: None))()
    (effect,) = traced.effects
    return effect


def is_tracing() -> bool:
    """Whether this thread is inside a transformation of JAX."""
    return not trace_state_clean()


def keep_clients() -> None:
    """Never destroy the clients of JAX in this process, a forked child.

    Their destructors wait for threads that a child does not have, so that a child of a
    process that has used JAX would never end. `jax.extend.backend` takes locks that may
    be held.
    """
    for client in getattr(xla_bridge, "_backends", {}).values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))


def is_vmapped(value: Any) -> bool:
    """Whether a value stands for a whole axis of values, inside of `jax.vmap`."""
    # The class has no public name.
    return type(value).__name__ == "BatchTracer"


def fresh_var(aval: Any) -> Var:
    """A new variable of this shape and type."""
    return Var(aval)


def static_names(jitted: Any) -> frozenset[str]:
    """The static parameters of a jitted function; empty if JAX does not reveal them."""
    info = getattr(jitted, "_jit_info", None)
    return frozenset(getattr(info, "static_argnames", None) or ())


def varying_axes(value: Any) -> frozenset[str]:
    """The mesh axes along which a value differs, inside of `shard_map`."""
    axes = getattr(jax.typeof(value), "mat", None)
    return frozenset(axes.varying) if axes is not None else frozenset()


def remove_dead_code(
    jaxpr: Jaxpr, used_outputs: Sequence[bool]
) -> tuple[Jaxpr, list[bool]]:
    """The program without operations that no used output needs, and the used inputs."""
    live, used_inputs = partial_eval.dce_jaxpr(jaxpr, list(used_outputs))
    return live, list(used_inputs)
