"""What each possible segment would keep, hold and do again, by the planner's model.

Only a model: it ranks plans. What a plan really needs is measured (`_fit.py`).
"""

import dataclasses
from collections import Counter

import numpy as np

from frugax.jaxprs import Var, bytes_of, flops_of, is_heavy

from ..rewrite import RematGraph
from ._residuals import Residuals, find_residuals

# How a segment is treated: 0 keeps all that its backward pass needs; mode n does the
# operations again whose results are cheap for their size, up to the n-th price of
# `prices`, and keeps those of the rest; the last mode does everything again.
Mode = int

# Flops per byte of result up to which an operation counts as cheap: an elementwise
# one does a quarter (float32) to one (8 bits) for each byte that it makes.
_CHEAP = 1.0
# More prices than this make planning slow and plans no better.
_MOST_PRICES = 4


@dataclasses.dataclass(frozen=True, slots=True)
class SegmentCost:
    """One segment in one mode.

    Attributes:
        stored: variables kept from the forward to the backward pass.
        stored_bytes: of these, and of what is hidden.
        own_bytes: of what is kept, bytes of what the segment makes itself.
        hidden_bytes: kept besides, as inside loops.
        transient_bytes: held only while the segment's own backward pass runs.
        flops: done a second time.
        kept: operations inside whose results are kept, though others are done again.
        possible: False if recomputing would repeat a side effect.
    """

    stored: frozenset[Var]
    stored_bytes: int
    own_bytes: int
    hidden_bytes: int
    transient_bytes: int
    flops: int
    kept: tuple[int, ...] = ()
    possible: bool = True


@dataclasses.dataclass(frozen=True, eq=False)
class SegmentCosts:
    """The cost of every segment between two cuts, in every mode.

    Attributes:
        of: by first operation, one past the last, and mode.
        modes: how many modes there are; the last does everything again.
    """

    of: dict[tuple[int, int, Mode], SegmentCost]
    modes: int


def segment_costs(body: RematGraph) -> SegmentCosts:
    """The cost of every segment between two cuts, kept and recomputed."""
    found: dict[tuple[int, int, Mode], SegmentCost] = {}
    walk = _BackwardWalk(body, found)
    for stop in body.cuts[1:]:
        for mode in range(walk.modes):
            walk.back(stop, mode)
    return SegmentCosts(found, walk.modes)


def costs_of_all(body: RematGraph) -> list[SegmentCost]:
    """The cost of all operations as one segment, mode by mode."""
    if not body.eqns:
        return []
    found: dict[tuple[int, int, Mode], SegmentCost] = {}
    walk, stop = _BackwardWalk(body, found), len(body.eqns)
    for mode in range(walk.modes):
        walk.back(stop, mode)
    return [found[0, stop, mode] for mode in range(walk.modes)]


def _prices(body: RematGraph, price: list[float]) -> list[float]:
    """Prices, rising, between which operations worth telling apart lie."""
    heavy = sorted(
        {round(price[i], 3) for i, e in enumerate(body.eqns) if is_heavy(e)} - {0.0}
    )
    steps = [p for p in heavy[:-1] if p > _CHEAP]
    every = -(-len(steps) // (_MOST_PRICES - 1)) or 1
    return [_CHEAP, *(1.001 * p for p in steps[every - 1 :: every])]


class _BackwardWalk:
    """Walks back over the operations, adding the costs of segments to `found`."""

    def __init__(
        self, body: RematGraph, found: dict[tuple[int, int, Mode], SegmentCost]
    ) -> None:
        self._body, self._found = body, found
        self._stand_ins: dict[tuple[int, float], bool] = {}
        self._needs = _needs_of_kept(body)
        self._flops = [flops_of(e) for e in body.eqns]
        made = [sum(map(bytes_of, e.outvars)) for e in body.eqns]
        pairs = zip(self._flops, made, strict=True)
        self._price = [f / max(b, 1) for f, b in pairs]
        self._readers = Counter(v for e in body.eqns for v in {*body.kept(e.invars)})
        self._readers.update(v for n in self._needs for v in n.variables)
        self._readers.update(body.kept(body.graph.outputs))
        self._limits = [0.0, *_prices(body, self._price), float("inf")]
        self.modes = len(self._limits)

    def _stands_in(self, i: int, limit: float) -> bool:
        """Whether this operation is better kept than the costly one it is made from.

        So if all that is wanted of that one is this, and this is no larger.
        """
        if (i, limit) not in self._stand_ins:
            self._stand_ins[i, limit] = self._find_stand_in(i, limit)
        return self._stand_ins[i, limit]

    def _find_stand_in(self, i: int, limit: float) -> bool:
        body = self._body
        size = sum(map(bytes_of, body.eqns[i].outvars))
        for v in body.kept(body.eqns[i].invars):
            before = body.defined_at[v]
            if self._readers[v] > 1 or bytes_of(v) < size:
                continue
            hidden = self._needs[before].hidden_bytes
            if self._price[before] > limit and not hidden:
                return True
            if self._stands_in(before, limit):
                return True
        return False

    def back(self, stop: int, mode: Mode) -> None:
        """The costs of all segments that end at `stop`.

        What must be done again does not depend on where a segment starts: walking
        back from its end, one walk gives the costs of all of them.
        """
        body, needs, limit = self._body, self._needs, self._limits[mode]
        starts = set(body.cuts)
        outside: set[Var] = set()  # wanted, and made before the place of the walk
        first_read: dict[Var, int] = {}  # which backward rule is the last to want it
        # What is there, of this segment's own, as each operation's backward pass runs.
        held = np.array(body.turning_bytes[:stop])
        kept: list[int] = []
        kept_vars: set[Var] = set()
        hidden = redone = inside_stored = 0
        possible = True
        for i in range(stop - 1, -1, -1):
            eqn = body.eqns[i]
            outside |= needs[i].variables
            first_read |= dict.fromkeys(needs[i].variables, i)
            hidden += needs[i].hidden_bytes
            possible = possible and not eqn.effects
            wanted = [v for v in eqn.outvars if v in outside]
            outside -= set(wanted)
            cheap = self._price[i] <= limit and not self._stands_in(i, limit)
            cheap = cheap or needs[i].hidden_bytes > 0
            if wanted and not (mode and cheap):
                kept.append(i)
                kept_vars.update(wanted)
                inside_stored += sum(map(bytes_of, wanted))
            elif mode and (wanted or needs[i].hidden_bytes):
                redone += self._flops[i]
                outside |= set(body.kept(eqn.invars))
            for v in wanted:
                held[first_read.get(v, stop) :] += bytes_of(v)
            if i not in starts:
                continue
            stored = frozenset(outside | kept_vars)
            hidden_kept = 0 if mode else hidden
            self._found[i, stop, mode] = SegmentCost(
                stored=stored,
                stored_bytes=sum(map(bytes_of, stored)) + hidden_kept,
                own_bytes=inside_stored + hidden_kept,
                hidden_bytes=hidden_kept,
                transient_bytes=int(held[i:].max())
                - inside_stored
                + (hidden if mode else 0),
                flops=redone,
                kept=tuple(reversed(kept)) if mode else (),
                possible=possible or not mode,
            )


def _needs_of_kept(body: RematGraph) -> list[Residuals]:
    """What each backward rule reads of that which costs bytes to keep."""
    of_graph = dict(
        zip(
            map(id, body.graph.eqns),
            find_residuals(body.graph, body.active, body.known),
            strict=True,
        )
    )
    asked = [of_graph[id(e)] for e in body.eqns]
    return [Residuals(frozenset(body.kept(n.variables)), n.hidden_bytes) for n in asked]
