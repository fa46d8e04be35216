"""Find the programs inside an operation, and what loops and branches return of them.

The interpreter of a `while` loop must know the results before the first round, and that
of a `cond` must know the results of the other branches. A spec is a `ProbeResult` of
shapes.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from frugax.jaxprs import JaxprEqn

from ._primitive import ALWAYS, COUNT, PRESENT, watch_p
from ._remove_probes import open_jaxpr
from ._results import ProbeResult

# The parameter that holds the body, by the name of the primitive. Calls only wrap their
# body; user-defined rules are inlined when no derivative is needed any more.
CALLS = {"closed_call": "call_jaxpr", "core_call": "call_jaxpr"}
RULES = {
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vmap_call": "call",
}
JITS = frozenset({"jit", "pjit"})
# Several names each, because JAX has renamed these primitives between versions.
REMATS = frozenset({"checkpoint", "remat", "remat2"})
_BODIES = {
    **CALLS,
    **dict.fromkeys((*JITS, *REMATS, "scan", "shard_map"), "jaxpr"),
    "while": "body_jaxpr",
}


def has_results(eqn: JaxprEqn, *, keep_rules: bool) -> bool:
    """Whether an operation has a probe in it whose values can become outputs."""
    name, params = eqn.primitive.name, eqn.params
    if eqn.primitive is watch_p:
        return params["probe"].kind != "call"
    key = _BODIES.get(name)
    if key is None and not keep_rules:
        key = RULES.get(name)
    if name == "cond":
        bodies = params["branches"]
    elif key is not None:
        bodies = (params[key],)
    else:  # it stays as it is, and a probe in it stays a callback
        return False
    return any(
        has_results(inner, keep_rules=keep_rules)
        for body in bodies
        for inner in open_jaxpr(body).eqns
    )


def keep_last(spec: ProbeResult, lanes: tuple[int, ...]) -> ProbeResult:
    """Return the spec in a `while` loop: the last values and their number.

    Args:
        spec: the spec in the body or the condition.
        lanes: the shape of the condition, which has a value for each lane of a `vmap`.
    """
    if spec.mark_kind == ALWAYS:
        # Each lane ends in a round of its own, so each has a count of its own.
        shape = ()
        if lanes and spec.axes[: len(lanes)] == ("lanes",) * len(lanes):
            shape = spec.values[0].shape[: len(lanes)]
    elif spec.mark_kind == PRESENT and spec.mark.shape == ():
        shape = ()
    else:
        return spec  # its own mark already marks the last values
    count = jax.ShapeDtypeStruct(shape, jnp.uint32)
    return dataclasses.replace(spec, mark_kind=COUNT, mark=count)


def merge_branches(
    branches: Sequence[Sequence[ProbeResult]],
) -> list[tuple[ProbeResult, list[int | None]]]:
    """The specs of a `cond`, and for each branch where in it each of them is.

    What every branch gives is one spec; what only some give may not be there.
    """
    # Equal results of several branches are one output. The number of earlier equal
    # results is part of the key, since a branch may have the same probe twice.
    found: dict[Any, list[int | None]] = {}
    first: dict[Any, ProbeResult] = {}
    for i, specs in enumerate(branches):
        seen: dict[ProbeResult, int] = {}
        for place, spec in enumerate(specs):
            seen[spec] = seen.get(spec, 0) + 1
            key = spec, seen[spec]
            if key not in found:
                found[key] = [None] * len(branches)
                first[key] = spec
            found[key][i] = place
    result = []
    for key, places in found.items():
        spec = first[key]
        if None in places and spec.mark_kind == ALWAYS:
            mark = jax.ShapeDtypeStruct((), jnp.bool_)
            spec = dataclasses.replace(spec, mark_kind=PRESENT, mark=mark)
        result.append((spec, places))
    return result


def manual_axes(eqn: JaxprEqn) -> tuple[str, ...]:
    """Return the mesh axes that a `shard_map` makes manual, in mesh order."""
    # JAX renamed the parameter; `manual_axes` also names those of outer shard_maps.
    names = eqn.params.get("newly_manual_axes", eqn.params.get("manual_axes"))
    return tuple(a for a in eqn.params["mesh"].axis_names if a in (names or ()))
