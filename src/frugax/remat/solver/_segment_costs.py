"""The cost model: bytes and flops of each segment of a loss, kept or recomputed.

The model only ranks plans. The memory that a plan needs is measured (`_planner.py`).
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Set

import numpy as np

from frugax.jaxprs import (
    JaxprEqn,
    Var,
    bytes_of,
    flops_of,
    has_checkpoints,
    is_checkpoint,
    is_heavy,
)

from ..rewrite import RematGraph, loop_bodies
from ._residuals import Residuals, find_residuals

# How a segment is treated. Mode 0 keeps all residuals. Mode n recomputes the operations
# that cost at most the n-th of `_price_limits` in flops per byte of their result, and
# keeps the results of the others: large and cheap results are computed twice, and
# expensive ones are kept, as in the selective recomputation of Korthikanti et al. 2022
# ("Reducing activation recomputation in large transformer models"). The last mode
# recomputes everything. If a loss has products with batch axes, such as those of
# attention, the mode before it keeps the other products alone: this is the policy
# `dots_with_no_batch_dims_saveable` of `jax.checkpoint`. Its `dots_saveable` and
# `nothing_saveable` are among the other modes.
Mode = int

# Flops per byte of result up to which an operation counts as cheap. An elementwise
# operation does a quarter (float32) to one (8 bits) for each byte that it writes.
_CHEAP_FLOPS_PER_BYTE = 1.0
# More price limits than this make planning slow and plans no better.
_MAX_PRICES = 4


@dataclasses.dataclass(frozen=True, slots=True)
class SegmentCost:
    """The cost of one segment in one mode.

    Attributes:
        stored: variables kept from the forward to the backward pass.
        stored_bytes: their bytes, and the hidden bytes.
        own_bytes: the part of `stored_bytes` that the segment itself computes.
        hidden_bytes: bytes kept that no variable names, as inside loops.
        transient_bytes: bytes held only while the segment's own backward pass runs.
        flops: recomputed flops.
        kept: operations of a recomputed segment whose results are kept.
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
    """The cost of segments between two cuts, in every mode.

    Attributes:
        of: by first operation, one past the last, and mode.
        modes: the number of modes.
    """

    of: dict[tuple[int, int, Mode], SegmentCost]
    modes: int


def segment_costs(body: RematGraph) -> SegmentCosts:
    """The cost of every segment between two cuts, in every mode."""
    walk, cuts = _BackwardWalk(body), set(body.cuts)
    for stop in body.cuts[1:]:
        walk.add_segments_to(stop, cuts)
    return SegmentCosts(walk.costs, walk.modes)


def costs_of(body: RematGraph, segments: Iterable[tuple[int, int]]) -> SegmentCosts:
    """The cost of these segments, which may start and end anywhere, in every mode."""
    walk = _BackwardWalk(body)
    for start, stop in segments:
        walk.add_segments_to(stop, {start})
    return SegmentCosts(walk.costs, walk.modes)


def whole_body_costs(body: RematGraph) -> list[SegmentCost]:
    """The cost of all operations as one segment, mode by mode."""
    if not body.eqns:
        return []
    walk, stop = _BackwardWalk(body), len(body.eqns)
    walk.add_segments_to(stop, {0})
    return [walk.costs[0, stop, mode] for mode in range(walk.modes)]


def plain_peak(body: RematGraph) -> int:
    """Bytes held during the backward pass, by the model, if everything is kept."""
    costs = whole_body_costs(body)
    if not costs:
        return 0
    return costs[0].stored_bytes + costs[0].transient_bytes


class _BackwardWalk:
    """Walk back over the operations, collecting the costs of segments.

    Attributes:
        costs: by first operation, one past the last, and mode.
        modes: the number of modes.
    """

    def __init__(self, body: RematGraph) -> None:
        self.costs: dict[tuple[int, int, Mode], SegmentCost] = {}
        self._body = body
        self._is_stand_in: dict[tuple[int, float], bool] = {}
        self._residuals = _stored_residuals(body)
        self._flops = [flops_of(e) for e in body.eqns]
        sizes = [sum(map(bytes_of, e.outvars)) for e in body.eqns]
        pairs = zip(self._flops, sizes, strict=True)
        self._price = [f / max(b, 1) for f, b in pairs]
        # How many operations, rules and results read each intermediate.
        self._readers = Counter(
            v for e in body.eqns for v in {*body.intermediates(e.invars)}
        )
        self._readers.update(v for r in self._residuals for v in r.variables)
        self._readers.update(body.intermediates(body.graph.outputs))
        self._limits = [0.0, *self._price_limits(), float("inf")]
        self._plain_products: Mode | None = None
        if any(_has_batch_axes(e) for e in body.eqns):
            self._plain_products = len(self._limits) - 1
            self._limits.insert(-1, float("nan"))  # this mode has no limit
        self.modes = len(self._limits)
        self._gradient_bytes = np.array(body.gradient_bytes, dtype=int)
        self._gradient_bytes += [_region_bytes(e, body) for e in body.eqns]

    def _price_limits(self) -> list[float]:
        """Rising prices that separate the heavy operations of the loss."""
        eqns = self._body.eqns
        heavy = sorted(
            {round(self._price[i], 3) for i, e in enumerate(eqns) if is_heavy(e)}
            - {0.0}
        )
        steps = [p for p in heavy[:-1] if p > _CHEAP_FLOPS_PER_BYTE]
        stride = -(-len(steps) // (_MAX_PRICES - 1)) or 1
        # A little above the price itself, which was rounded.
        return [
            _CHEAP_FLOPS_PER_BYTE,
            *(1.001 * p for p in steps[stride - 1 :: stride]),
        ]

    def _stands_in(self, i: int, limit: float) -> bool:
        """Whether operation `i` is better kept than the expensive one that it reads.

        So it is if nothing else reads that one, and this result is not larger.
        """
        if (i, limit) not in self._is_stand_in:
            self._is_stand_in[i, limit] = self._find_stand_in(i, limit)
        return self._is_stand_in[i, limit]

    def _find_stand_in(self, i: int, limit: float) -> bool:
        body = self._body
        size = sum(map(bytes_of, body.eqns[i].outvars))
        for v in body.intermediates(body.eqns[i].invars):
            source = body.defined_at[v]
            if self._readers[v] > 1 or bytes_of(v) < size:
                continue
            hidden = self._residuals[source].hidden_bytes
            if self._price[source] > limit and not hidden:
                return True
            if self._stands_in(source, limit):
                return True
        return False

    def add_segments_to(self, stop: int, starts: Set[int]) -> None:
        """Add the costs of the segments from `starts` to `stop`, in every mode."""
        for mode in range(self.modes):
            self._walk_back(stop, mode, starts)

    def _walk_back(self, stop: int, mode: Mode, starts: Set[int]) -> None:
        # The operations that must be recomputed do not depend on where a segment
        # starts. So one walk back from its end gives the costs of all segments that end
        # there: the work is quadratic in the operations and not cubic.
        body, residuals, limit = self._body, self._residuals, self._limits[mode]
        outside: set[Var] = set()  # needed, and defined before this place of the walk
        first_read: dict[Var, int] = {}  # the last backward rule that needs a variable
        # Bytes of the segment's own that are held as each backward rule runs.
        held = self._gradient_bytes[:stop].copy()
        kept: list[int] = []
        kept_vars: set[Var] = set()
        hidden = recomputed = own_stored = 0
        possible = True
        for i in range(stop - 1, min(starts) - 1, -1):
            eqn = body.eqns[i]
            outside |= residuals[i].variables
            first_read |= dict.fromkeys(residuals[i].variables, i)
            hidden += residuals[i].hidden_bytes
            # A second run would repeat prints and callbacks.
            possible = possible and not eqn.effects
            needed = [v for v in eqn.outvars if v in outside]
            outside -= set(needed)
            if mode == self._plain_products:
                is_cheap = eqn.primitive.name != "dot_general" or _has_batch_axes(eqn)
            else:
                is_cheap = self._price[i] <= limit and not self._stands_in(i, limit)
            is_cheap = is_cheap or residuals[i].hidden_bytes > 0
            if needed and not (mode and is_cheap):
                kept.append(i)
                kept_vars.update(needed)
                own_stored += sum(map(bytes_of, needed))
            elif mode and (needed or residuals[i].hidden_bytes):
                recomputed += self._flops[i]
                outside |= set(body.intermediates(eqn.invars))
            # Backward rules run from the last to the first: a variable is held from the
            # start of the segment's backward pass until the rule that reads it last.
            for v in needed:
                held[first_read.get(v, stop) :] += bytes_of(v)
            if i not in starts:
                continue
            stored = frozenset(outside | kept_vars)
            stored_bytes, transient = sum(map(bytes_of, stored)), int(held[i:].max())
            # Mode 0 keeps hidden residuals from the forward pass on; the other modes
            # have them only while the segment's own backward pass runs.
            hidden_kept, hidden_transient = 0, hidden
            if mode == 0:
                hidden_kept, hidden_transient = hidden, 0
            self.costs[i, stop, mode] = SegmentCost(
                stored=stored,
                stored_bytes=stored_bytes + hidden_kept,
                own_bytes=own_stored + hidden_kept,
                hidden_bytes=hidden_kept,
                # What only recomputation reads is stored, and no rule holds it.
                transient_bytes=max(transient - own_stored, 0) + hidden_transient,
                flops=recomputed,
                kept=tuple(reversed(kept)) if mode else (),
                possible=possible or not mode,
            )


def _region_bytes(eqn: JaxprEqn, body: RematGraph) -> int:
    """Bytes inside the loss's own `jax.checkpoint` regions during a backward pass."""
    # A loop that was rewritten comes with its bytes.
    if not body.active & {*eqn.outvars} or eqn.outvars[0] in body.scratch_bytes:
        return 0

    def count() -> tuple[int, object]:
        held = 0
        if is_checkpoint(eqn):
            if costs := whole_body_costs(loop_bodies(eqn, body)[0]):
                held = costs[0].own_bytes + costs[0].transient_bytes
        elif eqn.primitive.name in ("scan", "cond") and has_checkpoints([eqn]):
            # One iteration or one branch at a time.
            bodies = loop_bodies(eqn, body)
            held = max(_region_bytes(e, b) for b in bodies for e in b.eqns)
        # Stored with the parameters, so that no other object gets the same id.
        return held, eqn.params

    return body.remember(("region", id(eqn.params)), count)[0]


def _has_batch_axes(eqn: JaxprEqn) -> bool:
    if eqn.primitive.name != "dot_general":
        return False
    _, (left, _) = eqn.params["dimension_numbers"]
    return bool(left)


def _stored_residuals(body: RematGraph) -> list[Residuals]:
    """The residuals of each of `body.eqns` that cost bytes to keep."""
    found = find_residuals(body.graph, body.active, body.memo)
    by_eqn = dict(zip(map(id, body.graph.eqns), found, strict=True))
    own = [by_eqn[id(e)] for e in body.eqns]
    return [
        Residuals(frozenset(body.intermediates(r.variables)), r.hidden_bytes)
        for r in own
    ]
