"""Loops whose rounds are done again: a scan in chunks, each of them checkpointed.

Reads: a `Body`. Gives: the choices for its scans (`scan_levels`), and the body in which
they are made (`with_scans`). Inside a scan `jax.checkpoint` survives every compiler:
a loop's body is compiled by itself, so that nothing there can be merged.

A scan of T rounds in chunks of c keeps T/c carries, and, while one chunk is done
again, what c rounds keep: least near c = sqrt(T * carry / kept per round), as in Chen,
Xu, Zhang & Guestrin 2016 ("Training deep nets with sublinear memory cost").
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
from jax import lax

from frugax.jaxprs import (
    Graph,
    JaxprEqn,
    Var,
    bytes_of,
    flops_of,
    jaxpr_as_fun,
    scan_split,
    shape_of,
    trace,
    variables,
)

from ._body import Body, sort_operations
from ._needs import backward_needs
from ._plan import ScanChoice

# Of many scans, so many groups are taken up one after the other.
_STEPS = 4


@dataclasses.dataclass(frozen=True, slots=True)
class _Scan:
    """One scan that may be chunked: where it is, and its bytes per round."""

    place: int
    length: int
    carry: int
    kept: int
    flops: int

    def scratch(self, choice: ScanChoice) -> int:
        """Bytes held inside while its backward pass runs."""
        if choice.redo_rounds:
            return self.kept + (choice.chunk * self.carry if choice.chunk > 1 else 0)
        return choice.chunk * self.kept

    def saved_by(self, choice: ScanChoice) -> int:
        """Bytes that its backward pass needs less than without this choice."""
        needed = self.length // choice.chunk * self.carry + self.scratch(choice)
        return self.length * self.kept - needed

    def best(self, *, twice: bool) -> ScanChoice | None:
        """What saves most if rounds are done again once, or twice; None: nothing."""
        chunks = [c for c in range(2, self.length) if self.length % c == 0]
        choices = [ScanChoice(self.place, c, redo_rounds=twice) for c in chunks]
        if not twice:
            choices.append(ScanChoice(self.place, 1, redo_rounds=True))
        best = max(choices, key=self.saved_by, default=None)
        return best if best and self.saved_by(best) > 0 else None


def scan_levels(body: Body) -> list[tuple[ScanChoice, ...]]:
    """Choices for all scans together, from none to every round again twice.

    Scans are taken up one after the other, those that save most per flop first.
    """
    scans = _scans(body)
    step = -(-len(scans) // _STEPS)
    made: dict[int, ScanChoice] = {}
    levels: list[tuple[ScanChoice, ...]] = [()]
    for twice in (False, True):
        better = [(s, best) for s in scans if (best := s.best(twice=twice))]
        better.sort(key=lambda b: b[0].saved_by(b[1]) / max(b[0].flops, 1))
        while better:
            for _, choice in better[-step:]:
                made[choice.place] = choice
            del better[-step:]
            levels.append(tuple(made.values()))
    return levels


def scan_flops(body: Body, choices: Sequence[ScanChoice]) -> int:
    """Flops that these choices do again, by the model: forward passes of the scans."""
    return sum(
        (1 + (c.redo_rounds and c.chunk > 1)) * flops_of(body.graph.eqns[c.place])
        for c in choices
    )


def with_scans(body: Body, choices: Sequence[ScanChoice]) -> Body:
    """The same loss, with these scans chunked.

    Raises:
        ValueError: a choice names no scan, or chunks that do not divide its rounds.
    """
    if not choices:
        return body
    known = {s.place: s for s in _scans(body)}
    for c in choices:
        if c.place not in known or c.chunk < 1 or known[c.place].length % c.chunk:
            raise ValueError(
                f"a damaged plan: operation {c.place} is no scan that can be cut into "
                f"chunks of {c.chunk} rounds. Plan again with remat.plan."
            )
    chosen = {c.place: c for c in choices}
    graph = body.graph
    eqns: list[JaxprEqn] = []
    consts, values = list(graph.consts), list(graph.const_values)
    renamed: dict[Var, Any] = {}
    scratch: dict[Var, int] = {}
    now = lambda atoms: [renamed.get(v, v) if variables([v]) else v for v in atoms]
    for i, eqn in enumerate(graph.eqns):
        if i not in chosen:
            eqns.append(eqn.replace(invars=now(eqn.invars)))
            continue
        inner = _chunked(eqn, chosen[i])
        here = dict(zip(inner.args, now(eqn.invars), strict=True))
        inside = lambda atoms, here=here: [
            here.get(v, v) if variables([v]) else v for v in atoms
        ]
        eqns += [e.replace(invars=inside(e.invars)) for e in inner.eqns]
        consts += inner.consts
        values += inner.const_values
        renamed |= zip(eqn.outvars, inside(inner.outputs), strict=True)
        (loop,) = [e for e in inner.eqns if e.primitive.name == "scan"]
        scratch[loop.outvars[0]] = known[i].scratch(chosen[i])
    rewritten = dataclasses.replace(
        graph,
        eqns=tuple(eqns),
        consts=tuple(consts),
        const_values=tuple(values),
        outputs=tuple(now(graph.outputs)),
    )
    return sort_operations(rewritten, body.wanted, scratch)


def _scans(body: Body) -> list[_Scan]:
    """The scans that gradients go through and that have no side effects."""
    graph = body.graph
    places = [
        i
        for i, e in enumerate(graph.eqns)
        if e.primitive.name == "scan"
        and e.params["length"] > 1
        and not e.effects
        and any(v in body.active for v in e.outvars)
    ]
    if not places:
        return []
    only = dataclasses.replace(graph, eqns=tuple(graph.eqns[i] for i in places))
    needs = backward_needs(only, body.active)
    return [
        _Scan(
            place=i,
            length=graph.eqns[i].params["length"],
            carry=sum(map(bytes_of, _carry(graph.eqns[i]))),
            kept=n.hidden_bytes // graph.eqns[i].params["length"],
            flops=flops_of(graph.eqns[i]),
        )
        for i, n in zip(places, needs, strict=True)
    ]


def _carry(eqn: JaxprEqn) -> list[Any]:
    consts, carries = scan_split(eqn)
    return eqn.invars[consts : consts + carries]


def _chunked(eqn: JaxprEqn, choice: ScanChoice) -> Graph:
    """The operations that do what this scan does, chunked."""
    length, backwards = eqn.params["length"], eqn.params["reverse"]
    consts, carries = scan_split(eqn)
    run = jaxpr_as_fun(eqn.params["jaxpr"])
    loop = functools.partial(lax.scan, reverse=backwards, unroll=eqn.params["unroll"])
    again = lambda f: jax.checkpoint(f, prevent_cse=False)

    def scan(*args: Any) -> list[Any]:
        held, rest = args[:consts], args[consts:]

        def one_round(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
            outs = run(*held, *carry, *x)
            return outs[:carries], outs[carries:]

        one = again(one_round) if choice.redo_rounds else one_round
        carry, xs = list(rest[:carries]), list(rest[carries:])
        if choice.chunk == 1:
            carry, ys = loop(one, carry, xs, length)
            return [*carry, *ys]

        def one_chunk(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
            return loop(one, carry, x, choice.chunk)

        chunks = length // choice.chunk
        split = [x.reshape(chunks, choice.chunk, *x.shape[1:]) for x in xs]
        carry, ys = lax.scan(again(one_chunk), carry, split, chunks, reverse=backwards)
        return [*carry, *(y.reshape(length, *y.shape[2:]) for y in ys)]

    return trace(scan, list(map(shape_of, eqn.invars)))
