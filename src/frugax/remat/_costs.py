"""What each possible segment would keep, hold and do again, by the planner's model.

Only a model: it ranks plans. What a plan really needs is measured (`_fit.py`).
"""

import dataclasses
from typing import Literal

from frugax.jaxprs import Var, bytes_of, flops_of

from ._body import Body
from ._needs import Needs, backward_needs

Mode = Literal["save", "recompute"]


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """One segment in one mode.

    Attributes:
        stored: variables kept from the forward to the backward pass.
        hidden_bytes: kept besides, as inside loops.
        transient_bytes: held only while the segment's own backward pass runs.
        flops: done a second time.
        possible: False if recomputing would repeat a side effect.
    """

    stored: frozenset[Var]
    hidden_bytes: int
    transient_bytes: int
    flops: int
    possible: bool = True

    @property
    def stored_bytes(self) -> int:
        """Bytes kept from the forward to the backward pass."""
        return sum(map(bytes_of, self.stored)) + self.hidden_bytes


def segment_costs(body: Body) -> dict[tuple[int, int, Mode], Cost]:
    """The cost of every segment between two cuts, kept and recomputed."""
    needs = _needs_of_kept(body)
    flops = [flops_of(e) for e in body.eqns]
    cotangents = body.crossing_bytes(active_only=True)
    work = [
        sum(bytes_of(v) for v in {*body.kept(e.invars), *e.outvars} if v in body.active)
        + sum(body.scratch.get(v, 0) for v in e.outvars)
        for e in body.eqns
    ]
    found: dict[tuple[int, int, Mode], Cost] = {}
    starts = set(body.cuts)
    for stop in body.cuts[1:]:
        needed: set[Var] = set()
        again: set[Var] = set()
        hidden = redone = busiest = pending = 0
        possible = True
        # Walking back from `stop`, what must be done again does not depend on where
        # the walk will end: one walk gives the costs of all segments that end here.
        for i in range(stop - 1, -1, -1):
            eqn = body.eqns[i]
            needed |= needs[i].variables
            again |= needs[i].variables
            hidden += needs[i].hidden_bytes
            busiest = max(busiest, work[i])
            pending = max(pending, cotangents[i], cotangents[i + 1])
            possible = possible and not eqn.effects
            if needs[i].hidden_bytes or any(v in again for v in eqn.outvars):
                redone += flops[i]
                again |= set(body.kept(eqn.invars))
            if i not in starts:
                continue
            outside = frozenset(v for v in again if body.defined_at[v] < i)
            inside = sum(bytes_of(v) for v in needed if body.defined_at[v] >= i)
            holds = busiest + pending
            found[i, stop, "save"] = Cost(frozenset(needed), hidden, holds, 0)
            found[i, stop, "recompute"] = Cost(
                outside, 0, holds + inside + hidden, redone, possible
            )
    return found


def _needs_of_kept(body: Body) -> list[Needs]:
    """What each backward rule reads of that which costs bytes to keep."""
    of_graph = dict(
        zip(
            map(id, body.graph.eqns),
            backward_needs(body.graph, body.active),
            strict=True,
        )
    )
    asked = [of_graph[id(e)] for e in body.eqns]
    return [Needs(frozenset(body.kept(n.variables)), n.hidden_bytes) for n in asked]
