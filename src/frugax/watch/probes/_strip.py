"""Take probes out of a traced program, or silence them, and change nothing else.

The operations are edited where they stand, so what is left is the program that would
have been there without the probes.
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

from ._primitive import ALWAYS, CALLED, HUSHED, TIED, stride_p, watch_p
from ._probe import Probe

# What to do with a probe, and whether it stands where a gradient is worked out for
# which the program runs a second time.
Choice: TypeAlias = Callable[[Probe, bool], bool]


def opened(jaxpr: Any) -> Jaxpr:
    """The operations of a program, with or without its constants."""
    return jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr


def is_rerun(eqn: JaxprEqn) -> bool:
    """Whether it does again, for a gradient, what the program has done before."""
    return bool(eqn.params.get("differentiated", False))


def probes_in(jaxpr: Any, *, again: bool = False) -> Iterator[tuple[Probe, bool]]:
    """Every probe of a program, and whether it stands in what is done again."""
    for eqn in opened(jaxpr).eqns:
        if eqn.primitive is watch_p:
            yield eqn.params["probe"], again
        for inner in jaxprs_in_params(eqn.params):
            yield from probes_in(inner, again=again or is_rerun(eqn))


def is_watched(eqn: JaxprEqn) -> bool:
    """Whether a probe is in it, or what reads the stride."""
    if eqn.primitive is watch_p or eqn.primitive is stride_p:
        return True
    return any(
        is_watched(e)
        for inner in jaxprs_in_params(eqn.params)
        for e in opened(inner).eqns
    )


def without_probes(jaxpr: Any, unwanted: Choice, *, hush: bool = False) -> Any:
    """The program without some of its probes.

    Args:
        jaxpr: a program, open or closed.
        unwanted: says of each probe whether it goes.
        hush: it stays instead, without an effect, where only `collect` finds it.
    """
    return _Edit(unwanted, hush=hush).program(jaxpr, again=False)


class _Edit:
    def __init__(self, unwanted: Choice, *, hush: bool) -> None:
        self._unwanted = unwanted
        self._hush = hush
        # What is called twice stays one program, compiled once.
        self._done: dict[tuple[int, bool], tuple[Any, Any]] = {}

    def program(self, jaxpr: Any, *, again: bool) -> Any:
        key = id(jaxpr), again
        if key not in self._done:
            self._done[key] = jaxpr, self._edited(jaxpr, again=again)
        return self._done[key][1]

    def _edited(self, jaxpr: Any, *, again: bool) -> Any:
        inner = opened(jaxpr)
        eqns: list[JaxprEqn] = []
        for eqn in inner.eqns:
            eqns += self._operation(eqn, again=again)
        same = len(eqns) == len(inner.eqns)
        if same and all(a is b for a, b in zip(eqns, inner.eqns, strict=True)):
            return jaxpr
        effects = set(inner.effects) - {debug_effect()}
        effects |= {e for eqn in eqns for e in eqn.effects if e == debug_effect()}
        new = inner.replace(eqns=eqns, effects=frozenset(effects))
        if isinstance(jaxpr, ClosedJaxpr):
            return ClosedJaxpr(new, jaxpr.consts)
        return new

    def _operation(self, eqn: JaxprEqn, *, again: bool) -> list[JaxprEqn]:
        if eqn.primitive is watch_p:
            return self._probe(eqn, again=again)
        if not any(True for _ in jaxprs_in_params(eqn.params)):
            return [eqn]
        again = again or is_rerun(eqn)

        def edit(value: Any) -> Any:
            if isinstance(value, (Jaxpr, ClosedJaxpr)):
                return self.program(value, again=again)
            return tuple(map(edit, value)) if type(value) is tuple else value

        params = {name: edit(value) for name, value in eqn.params.items()}
        if all(params[name] is value for name, value in eqn.params.items()):
            return [eqn]
        kept = any(
            debug_effect() in opened(j).effects for j in jaxprs_in_params(params)
        )
        effects = eqn.effects if kept else set(eqn.effects) - {debug_effect()}
        return [eqn.replace(params=params, effects=frozenset(effects))]

    def _probe(self, eqn: JaxprEqn, *, again: bool) -> list[JaxprEqn]:
        if not self._unwanted(eqn.params["probe"], again):
            return [eqn]
        how = eqn.params["how"]
        if self._hush:
            params = eqn.params | {"how": HUSHED if how == CALLED else how}
            return [eqn.replace(params=params, effects=frozenset())]
        if how != TIED:
            return []
        # It gives its first operand back; it is nothing else any more.
        params = eqn.params | {"probe": _NOBODY, "mark": ALWAYS, "axes": ()}
        return [eqn.replace(params=params, invars=eqn.invars[:1])]


_NOBODY = Probe.of("nothing is watched here", "call", None, 0)


def is_nobody(probe: Probe) -> bool:
    """Whether only its tied value is left of a probe."""
    return probe == _NOBODY
