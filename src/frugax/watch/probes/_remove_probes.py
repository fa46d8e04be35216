"""Remove probes of a traced program, and change nothing else.

The jaxpr is edited in place of being evaluated again, so that the rest is the program
that would have been traced without the probes.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from frugax.jaxprs import (
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    debug_effect,
    jaxprs_in_params,
)

from ._primitive import ALWAYS, watch_p
from ._probe import Probe

# Called with a probe, and whether it is in a part that a gradient recomputes.
Predicate: TypeAlias = Callable[[Probe, bool], bool]


def open_jaxpr(jaxpr: Any) -> Jaxpr:
    """Return the open jaxpr of a program, which may be closed or open."""
    return jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr


def is_recomputation(eqn: JaxprEqn) -> bool:
    """Whether a gradient repeats a part of the program, as `jax.checkpoint` does."""
    return bool(eqn.params.get("differentiated", False))


def find_probes(jaxpr: Any, *, again: bool = False) -> Iterator[tuple[Probe, bool]]:
    """Yield every probe of a program, and whether it is in a recomputed part."""
    for eqn in open_jaxpr(jaxpr).eqns:
        if eqn.primitive is watch_p:
            yield eqn.params["probe"], again
        for inner in jaxprs_in_params(eqn.params):
            yield from find_probes(inner, again=again or is_recomputation(eqn))


def remove_probes(jaxpr: Any, unwanted: Predicate) -> Any:
    """Return the program without some of its probes."""
    return _Editor(unwanted).edit(jaxpr, again=False)


class _Editor:
    def __init__(self, unwanted: Predicate) -> None:
        self._unwanted = unwanted
        # By identity: a function that is called twice stays one program, compiled
        # once. The old program is kept as well, so that its id is not reused.
        self._edited: dict[tuple[int, bool], tuple[Any, Any]] = {}

    def edit(self, jaxpr: Any, *, again: bool) -> Any:
        key = id(jaxpr), again
        if key not in self._edited:
            self._edited[key] = jaxpr, self._edit_program(jaxpr, again=again)
        return self._edited[key][1]

    def _edit_program(self, jaxpr: Any, *, again: bool) -> Any:
        inner = open_jaxpr(jaxpr)
        eqns: list[JaxprEqn] = []
        for eqn in inner.eqns:
            eqns += self._edit_operation(eqn, again=again)
        same = len(eqns) == len(inner.eqns)
        if same and all(a is b for a, b in zip(eqns, inner.eqns, strict=True)):
            return jaxpr
        # JAX checks that the effects of a jaxpr are those of its operations.
        effects = set(inner.effects) - {debug_effect()}
        effects |= {e for eqn in eqns for e in eqn.effects if e == debug_effect()}
        new = inner.replace(eqns=eqns, effects=frozenset(effects))
        if isinstance(jaxpr, ClosedJaxpr):
            return ClosedJaxpr(new, jaxpr.consts)
        return new

    def _edit_operation(self, eqn: JaxprEqn, *, again: bool) -> list[JaxprEqn]:
        if eqn.primitive is watch_p:
            return self._edit_probe(eqn, again=again)
        if not any(True for _ in jaxprs_in_params(eqn.params)):
            return [eqn]
        again = again or is_recomputation(eqn)

        def edit_param(value: Any) -> Any:
            if isinstance(value, (Jaxpr, ClosedJaxpr)):
                return self.edit(value, again=again)
            if type(value) is tuple:  # the branches of a `cond`
                return tuple(map(edit_param, value))
            return value

        params = {name: edit_param(value) for name, value in eqn.params.items()}
        if all(params[name] is value for name, value in eqn.params.items()):
            return [eqn]
        kept = any(
            debug_effect() in open_jaxpr(j).effects for j in jaxprs_in_params(params)
        )
        effects = set(eqn.effects)
        if not kept:
            effects -= {debug_effect()}
        return [eqn.replace(params=params, effects=frozenset(effects))]

    def _edit_probe(self, eqn: JaxprEqn, *, again: bool) -> list[JaxprEqn]:
        if not self._unwanted(eqn.params["probe"], again):
            return [eqn]
        if not eqn.params["is_tied"]:
            return []
        # Its first operand must still be returned, since other operations read it.
        params = eqn.params | {"probe": _REMOVED, "mark_kind": ALWAYS, "axes": ()}
        return [eqn.replace(params=params, invars=eqn.invars[:1])]


# A tied operation cannot vanish, so it keeps this probe: like that of a call it gives
# no result.
_REMOVED = Probe.of("removed probe", "call", None, 0)
