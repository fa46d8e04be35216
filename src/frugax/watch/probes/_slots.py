"""Where values will come out of a program: the same walk as `_rebuild`, without values.

Whoever rebuilds a `while` loop must know, before its first round, what its rounds will
give; whoever rebuilds a `cond`, what the other branches would have given.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from frugax.jaxprs import Jaxpr, JaxprEqn

from ._primitive import ALWAYS, COUNT, PRESENT, split, watch_p
from ._probe import Probe
from ._strip import is_nobody, opened

# A call that only wraps its body, and rules that the user made: inlined when there is
# nothing left to differentiate.
CALLS = {"closed_call": "call_jaxpr", "core_call": "call_jaxpr"}
RULES = {
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vmap_call": "call",
}
JITS = frozenset({"jit", "pjit"})
REMATS = frozenset({"checkpoint", "remat", "remat2"})


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """What one probe will give.

    Attributes:
        probe: which.
        meaning: what the mark means, as in `_primitive`.
        mark: its shape; () if there is none.
        values: shapes of the values.
        axes: what their first axes are, as in `_primitive`.
        lanes: the most lanes to keep under a `vmap` further out; None: all.
    """

    probe: Probe
    meaning: str
    mark: tuple[int, ...]
    values: tuple[jax.ShapeDtypeStruct, ...]
    axes: tuple[str, ...] = ()
    lanes: int | None = None

    @property
    def mark_type(self) -> Any:
        """What its mark is made of."""
        return jnp.uint32 if self.meaning == COUNT else jnp.bool_

    def stacked(self, size: int, axis: str) -> "Slot":
        """The same from so many rounds of a loop, or so many devices."""
        values = tuple(
            jax.ShapeDtypeStruct((size, *v.shape), v.dtype) for v in self.values
        )
        mark = self.mark if self.meaning == ALWAYS else (size, *self.mark)
        axes = (axis, *self.axes)
        return dataclasses.replace(self, values=values, mark=mark, axes=axes)

    def blank(self) -> "Taken":
        """What it gives where it does not run: zeros, marked as none."""
        values = [jnp.zeros(v.shape, v.dtype) for v in self.values]
        if self.meaning == ALWAYS:
            return None, values
        return jnp.zeros(self.mark, self.mark_type), values


# The mark, or None, and the values: what fills a slot.
Taken = tuple[Any, list[Any]]


def slots_of(jaxpr: Any, *, rules: bool) -> tuple[Slot, ...]:
    """What a program will give, in the order of the program.

    Args:
        jaxpr: a program.
        rules: leave functions with derivative rules of their own as they are.
    """
    program: Jaxpr = opened(jaxpr)
    return tuple(
        s for eqn in program.eqns for s in slots_of_operation(eqn, rules=rules)
    )


def slots_of_operation(eqn: JaxprEqn, *, rules: bool) -> tuple[Slot, ...]:
    """What one operation will give, with all that is inside it."""
    name, params = eqn.primitive.name, eqn.params
    inner = lambda key: slots_of(params[key], rules=rules)
    if eqn.primitive is watch_p:
        return () if is_nobody(params["probe"]) else (_slot(eqn),)
    if name == "scan":
        return tuple(s.stacked(params["length"], "steps") for s in inner("jaxpr"))
    if name == "while":
        return tuple(map(counted, (*inner("cond_jaxpr"), *inner("body_jaxpr"))))
    if name == "cond":
        branches = [slots_of(b, rules=rules) for b in params["branches"]]
        return tuple(slot for slot, _ in joined(branches))
    if name in JITS or name in REMATS:
        return inner("jaxpr")
    if name == "shard_map":
        size = 1
        for axis in manual_axes(eqn):
            size *= params["mesh"].shape[axis]
        return tuple(s.stacked(size, "devices") for s in inner("jaxpr"))
    if name in CALLS:
        return inner(CALLS[name])
    if name in RULES and not rules:
        return inner(RULES[name])
    return ()  # unknown: it stays as it is, and a probe in it stays a callback


def counted(slot: Slot) -> Slot:
    """What a slot in a `while` loop gives: the last values and how many there were."""
    if slot.meaning == ALWAYS:
        return dataclasses.replace(slot, meaning=COUNT, mark=())
    if slot.meaning == PRESENT and slot.mark == ():
        return dataclasses.replace(slot, meaning=COUNT)
    return slot  # its own mark says where the last values are


def joined(
    branches: Sequence[Sequence[Slot]],
) -> list[tuple[Slot, list[int | None]]]:
    """The slots of a `cond`, and for each branch where in it each of them is.

    What every branch gives is one slot; what only some give may not be there.
    """
    found: dict[Any, list[int | None]] = {}
    first: dict[Any, Slot] = {}
    for i, slots in enumerate(branches):
        seen: dict[Slot, int] = {}
        for place, slot in enumerate(slots):
            seen[slot] = seen.get(slot, 0) + 1
            key = slot, seen[slot]
            found.setdefault(key, [None] * len(branches))[i] = place
            first.setdefault(key, slot)
    result = []
    for key, places in found.items():
        slot = first[key]
        if None in places and slot.meaning == ALWAYS:
            slot = dataclasses.replace(slot, meaning=PRESENT, mark=())
        result.append((slot, places))
    return result


def manual_axes(eqn: JaxprEqn) -> tuple[str, ...]:
    """The mesh axes over which a `shard_map` works by hand, in the mesh's order."""
    names = eqn.params.get("newly_manual_axes", eqn.params.get("manual_axes"))
    return tuple(a for a in eqn.params["mesh"].axis_names if a in (names or ()))


def _slot(eqn: JaxprEqn) -> Slot:
    _, mark, values = split(eqn.invars, **eqn.params)
    return Slot(
        eqn.params["probe"],
        eqn.params["mark"],
        () if mark is None else mark.aval.shape,
        tuple(jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in values),
        eqn.params["axes"],
        eqn.params["lanes"],
    )
