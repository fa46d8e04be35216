"""Remove `jax.checkpoint` regions from a traced function, so remat plans it anew."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from ._jax_internals import (
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    fresh_var,
    jaxpr_as_fun,
)

_REGIONS = ("checkpoint", "remat", "remat2")
# Operations whose bodies are opened as well. The body of a `custom_vjp` stays as it is,
# because its own rule decides which values it keeps.
_BODIES = ("jaxpr", "call_jaxpr", "branches")
_OPENED = ("closed_call", "cond", "jit", "pjit", "scan", "shard_map")


def has_checkpoints(eqns: Iterable[JaxprEqn]) -> bool:
    """Whether `open_checkpoints` would change a program with these operations."""
    return any(
        is_checkpoint(e) or any(has_checkpoints(j.eqns) for j in _inner_programs(e))
        for e in eqns
    )


def is_checkpoint(eqn: JaxprEqn) -> bool:
    """Whether an operation is a `jax.checkpoint` region."""
    return eqn.primitive.name in _REGIONS


def open_checkpoints(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, in which `jax.checkpoint` has no effect.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> fn = open_checkpoints(jax.checkpoint(lambda x: jnp.sin(jnp.cos(x))))
        >>> [e.primitive.name for e in jax.make_jaxpr(fn)(1.0).eqns]
        ['cos', 'sin']
    """

    def opened(*args: Any) -> Any:
        traced, shapes = jax.make_jaxpr(fn, return_shape=True)(*args)
        program = ClosedJaxpr(_open(traced.jaxpr), traced.consts)
        outs = jaxpr_as_fun(program)(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), outs)

    return opened


def _open(jaxpr: Jaxpr) -> Jaxpr:
    eqns: list[JaxprEqn] = []

    def inline(body: Jaxpr, atoms: Sequence[Any], *, is_copy: bool) -> list[Any]:
        env = dict(zip([*body.constvars, *body.invars], atoms, strict=True))
        read = lambda v: v if isinstance(v, Literal) else env[v]
        for e in body.eqns:
            invars = [read(v) for v in e.invars]
            if e.primitive.name in _REGIONS:
                outs = inline(e.params["jaxpr"], invars, is_copy=True)
                env |= zip(e.outvars, outs, strict=True)
                continue
            # One region may occur twice: each copy gets variables of its own.
            outvars = [fresh_var(v.aval) for v in e.outvars] if is_copy else e.outvars
            env |= zip(e.outvars, outvars, strict=True)
            params = e.params | _open_bodies(e)
            eqns.append(e.replace(invars=invars, outvars=outvars, params=params))
        return [read(v) for v in body.outvars]

    outs = inline(jaxpr, [*jaxpr.constvars, *jaxpr.invars], is_copy=False)
    return jaxpr.replace(eqns=eqns, outvars=outs)


def _open_bodies(eqn: JaxprEqn) -> dict[str, Any]:
    if eqn.primitive.name not in _OPENED:
        return {}
    found: dict[str, Any] = {}
    for name in _BODIES:
        value = eqn.params.get(name)
        if isinstance(value, ClosedJaxpr):
            found[name] = _open_closed(value)
        elif isinstance(value, Jaxpr):  # the body of a `shard_map`
            found[name] = _open(value)
        elif isinstance(value, tuple):
            found[name] = tuple(map(_open_closed, value))
    return found


def _open_closed(program: ClosedJaxpr) -> ClosedJaxpr:
    if not has_checkpoints(program.jaxpr.eqns):
        return program  # JAX caches by identity
    return ClosedJaxpr(_open(program.jaxpr), program.consts)


def _inner_programs(eqn: JaxprEqn) -> list[ClosedJaxpr | Jaxpr]:
    if eqn.primitive.name not in _OPENED:
        return []
    found: list[Any] = []
    for name in _BODIES:
        value = eqn.params.get(name)
        found += value if isinstance(value, tuple) else [value]
    return [p for p in found if isinstance(p, ClosedJaxpr | Jaxpr)]
