"""Predict the shapes of a program's probe results, which `_interpreter` needs in loops.

The interpreter of a `while` loop must know the results before the first round, and that
of a `cond` must know the results of the other branches.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from frugax.jaxprs import Jaxpr, JaxprEqn, shape_of

from ._primitive import ALWAYS, COUNT, PRESENT, split_operands, watch_p
from ._probe import Probe
from ._remove_probes import is_removed, open_jaxpr

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


@dataclasses.dataclass(frozen=True, slots=True)
class ResultSpec:
    """The shapes of one probe's result.

    Attributes:
        probe: the probe.
        mark_kind: the meaning of the mark, as in `_primitive`.
        mark: the shape of the mark; () without a mark.
        values: the shapes of the values.
        axes: the meaning of their first axes, as in `_primitive`.
        lanes: the number of lanes to keep under an outer `vmap`; None for all.
    """

    probe: Probe
    mark_kind: str
    mark: tuple[int, ...]
    values: tuple[jax.ShapeDtypeStruct, ...]
    axes: tuple[str, ...] = ()
    lanes: int | None = None

    @property
    def mark_dtype(self) -> Any:
        """The dtype of the mark."""
        return jnp.uint32 if self.mark_kind == COUNT else jnp.bool_

    def stacked(self, size: int, axis: str) -> "ResultSpec":
        """Return the spec of this result stacked along a new first axis."""
        values = tuple(
            jax.ShapeDtypeStruct((size, *v.shape), v.dtype) for v in self.values
        )
        mark = self.mark
        if self.mark_kind != ALWAYS:
            mark = (size, *mark)
        axes = (axis, *self.axes)
        return dataclasses.replace(self, values=values, mark=mark, axes=axes)

    def blank(self) -> "Taken":
        """Return zeros that are marked as missing, for a part that does not run."""
        values = [jnp.zeros(v.shape, v.dtype) for v in self.values]
        if self.mark_kind == ALWAYS:
            return None, values
        return jnp.zeros(self.mark, self.mark_dtype), values


# The mark, or None, and the values of one result.
Taken = tuple[Any, list[Any]]


def result_specs(jaxpr: Any, *, keep_rules: bool) -> tuple[ResultSpec, ...]:
    """Return the specs of a program's results, in the order of the program."""
    program: Jaxpr = open_jaxpr(jaxpr)
    return tuple(
        spec
        for eqn in program.eqns
        for spec in operation_specs(eqn, keep_rules=keep_rules)
    )


def operation_specs(eqn: JaxprEqn, *, keep_rules: bool) -> tuple[ResultSpec, ...]:
    """Return the specs of one operation, including the programs inside it."""
    name, params = eqn.primitive.name, eqn.params
    inner = lambda key: result_specs(params[key], keep_rules=keep_rules)
    if eqn.primitive is watch_p:
        if is_removed(params["probe"]):
            return ()
        return (_probe_spec(eqn),)
    if name == "scan":
        return tuple(s.stacked(params["length"], "steps") for s in inner("jaxpr"))
    if name == "while":
        lanes = shape_of(open_jaxpr(params["cond_jaxpr"]).outvars[0]).shape
        specs = (*inner("cond_jaxpr"), *inner("body_jaxpr"))
        return tuple(keep_last(spec, lanes) for spec in specs)
    if name == "cond":
        branches = [result_specs(b, keep_rules=keep_rules) for b in params["branches"]]
        return tuple(spec for spec, _ in merge_branches(branches))
    if name in JITS or name in REMATS:
        return inner("jaxpr")
    if name == "shard_map":
        size = 1
        for axis in manual_axes(eqn):
            size *= params["mesh"].shape[axis]
        return tuple(s.stacked(size, "devices") for s in inner("jaxpr"))
    if name in CALLS:
        return inner(CALLS[name])
    if name in RULES and not keep_rules:
        return inner(RULES[name])
    # An unknown primitive stays as it is, and a probe in it stays a callback.
    return ()


def keep_last(spec: ResultSpec, lanes: tuple[int, ...] = ()) -> ResultSpec:
    """Return the spec in a `while` loop: the last values and their number.

    Args:
        spec: the spec in the body or the condition.
        lanes: the shape of the condition, which has a value for each lane of a `vmap`.
    """
    if spec.mark_kind == ALWAYS:
        # Each lane ends in a round of its own, so each has a count of its own.
        count = ()
        if lanes and spec.axes[: len(lanes)] == ("lanes",) * len(lanes):
            count = spec.values[0].shape[: len(lanes)]
        return dataclasses.replace(spec, mark_kind=COUNT, mark=count)
    if spec.mark_kind == PRESENT and spec.mark == ():
        return dataclasses.replace(spec, mark_kind=COUNT)
    return spec  # its own mark already marks the last values


def merge_branches(
    branches: Sequence[Sequence[ResultSpec]],
) -> list[tuple[ResultSpec, list[int | None]]]:
    """The specs of a `cond`, and for each branch where in it each of them is.

    What every branch gives is one spec; what only some give may not be there.
    """
    # Equal results of several branches are one output. The number of earlier equal
    # results is part of the key, since a branch may have the same probe twice.
    found: dict[Any, list[int | None]] = {}
    first: dict[Any, ResultSpec] = {}
    for i, specs in enumerate(branches):
        seen: dict[ResultSpec, int] = {}
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
            spec = dataclasses.replace(spec, mark_kind=PRESENT, mark=())
        result.append((spec, places))
    return result


def manual_axes(eqn: JaxprEqn) -> tuple[str, ...]:
    """Return the mesh axes that a `shard_map` makes manual, in mesh order."""
    # JAX renamed the parameter; `manual_axes` also names those of outer shard_maps.
    names = eqn.params.get("newly_manual_axes", eqn.params.get("manual_axes"))
    return tuple(a for a in eqn.params["mesh"].axis_names if a in (names or ()))


def _probe_spec(eqn: JaxprEqn) -> ResultSpec:
    _, mark, values = split_operands(eqn.invars, **eqn.params)
    mark_shape = ()
    if mark is not None:
        mark_shape = mark.aval.shape
    return ResultSpec(
        eqn.params["probe"],
        eqn.params["mark_kind"],
        mark_shape,
        tuple(jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in values),
        eqn.params["axes"],
        eqn.params["lanes"],
    )
