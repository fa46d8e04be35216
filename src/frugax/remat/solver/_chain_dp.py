"""Which segments to recompute, for every memory limit at once, by dynamic programming.

The chain method of Beaumont, Herrmann, Pallez & Shilova 2020 ("Optimal memory-aware
backpropagation of deep join networks", Phil. Trans. R. Soc. A 378) over the cuts of
any graph: a segment's backward pass finds in memory what all segments before it have
stored, and what it needs itself. A segment may be done again by a plan of its own.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float

from frugax.jaxprs import Var, bytes_of

from .._plan import Segment
from ..rewrite import RematGraph
from ._segment_costs import Mode, SegmentCost, SegmentCosts, segment_costs

# Bytes are counted in this many steps of what the plain program holds.
_SLOTS = 384
# Limits that are tried, from the plain program down: each this share of the last.
_STEP = 0.95


@dataclasses.dataclass(frozen=True, slots=True)
class SegmentChoice:
    """A segment of a plan on paper.

    Attributes:
        start: first operation.
        stop: one past the last.
        mode: how it is treated, see `_costs.py`.
        inside: the plan by which it is done again; () if by keeping everything.
    """

    start: int
    stop: int
    mode: Mode
    inside: tuple["SegmentChoice", ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class DraftPlan:
    """A plan on paper: its segments, and what the model thinks of it.

    Attributes:
        steps: the segments in order, covering all operations.
        peak_bytes: most bytes held during the backward pass, by the model.
        flops: done a second time, by the model.
    """

    steps: tuple[SegmentChoice, ...]
    peak_bytes: int
    flops: int


def draft_plans(
    body: RematGraph, block_size: int | None = None
) -> tuple[SegmentCosts, list[DraftPlan]]:
    """Plans for ever smaller limits, the plain one first, by falling peak.

    No recomputed segment holds more than `block_size` operations, if that is given.
    """
    costs = segment_costs(body)
    plain = _draft(costs, (SegmentChoice(0, len(body.eqns), 0),) if body.eqns else ())
    if not body.eqns:
        return costs, [plain]
    tables = _Tables(body, costs, plain.peak_bytes, block_size)
    found = [plain]
    limit = float(plain.peak_bytes)
    while (limit := limit * _STEP) > tables.unit:
        steps = tables.cheapest(limit)
        if steps is None:
            break
        draft = _draft(costs, _cheaper(costs, steps, limit))
        if draft.peak_bytes < found[-1].peak_bytes:
            found.append(draft)
    return costs, found


def model_peak(body: RematGraph, segments: Sequence[Segment]) -> int:
    """Most bytes held during the backward pass with these segments; () keeps all."""
    if not body.eqns:
        return 0
    costs = segment_costs(body)

    def step(s: Segment) -> SegmentChoice:
        if s.gate is None:
            return SegmentChoice(s.start, s.stop, 0)
        modes = range(1, costs.modes)
        mode = next(m for m in modes if costs.of[s.start, s.stop, m].kept == s.kept)
        return SegmentChoice(s.start, s.stop, mode, tuple(map(step, s.inside)))

    steps = tuple(map(step, segments)) or (SegmentChoice(0, len(body.eqns), 0),)
    return _draft(costs, steps).peak_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class _SegmentOption:
    """A way to treat the operations from one cut to another.

    Attributes:
        stop: index of the cut where it ends.
        mode: how they are treated.
        stored: slots kept from the forward to the backward pass.
        own: of these, slots for what the segment makes itself.
        held: slots that must be free besides; 0 if a plan of its own says.
        flops: done a second time.
    """

    stop: int
    mode: Mode
    stored: int
    own: int
    held: int
    flops: int


class _Tables:
    """Fewest flops from each cut to each later one, for each number of free slots.

    `whole[s, t, m]`: any plan. `inner[s, t, m]`: plans by which the segment from s to
    t is done again. So what the first of them wants from before s is there already,
    and does not count; and none is the whole segment again by a plan of its own.
    """

    def __init__(
        self, body: RematGraph, costs: SegmentCosts, most: int, block_size: int | None
    ) -> None:
        self.unit = max(most / _SLOTS, 1.0)
        self._cuts, self._last = body.cuts, costs.modes - 1
        n = len(body.cuts)
        shape = (n, n, _SLOTS + 1)
        self.whole, self.inner = np.full(shape, np.inf), np.full(shape, np.inf)
        self.choice = {
            "whole": np.full(shape, -1, np.int16),
            "inner": np.full(shape, -1, np.int16),
        }
        self.options: list[list[_SegmentOption]] = [[] for _ in range(n)]
        self.whole[range(n), range(n)] = 0.0
        for s in reversed(range(n - 1)):
            for t in range(s + 1, n):
                self._first(s, t, costs, block_size)

    def _first(
        self, s: int, t: int, costs: SegmentCosts, block_size: int | None
    ) -> None:
        """Take up all plans from s whose first segment ends at t."""
        start, stop = self._cuts[s], self._cuts[t]
        small = block_size is None or stop - start <= block_size
        for mode in range(costs.modes if small else 1):
            cost = costs.of[start, stop, mode]
            stored = round(cost.stored_bytes / self.unit)
            own = min(round(cost.own_bytes / self.unit), stored)
            held = int(np.ceil(cost.transient_bytes / self.unit))
            if not cost.possible or own + held > _SLOTS:
                continue
            if mode < self._last:
                here = np.where(
                    np.arange(_SLOTS + 1) >= held, float(cost.flops), np.inf
                )
            else:
                here = self.inner[s, t] + cost.flops
            self.options[s].append(
                _SegmentOption(t, mode, stored, own, held, cost.flops)
            )
            self._improve("whole", self.whole, s, t, stored, here)
            # Done again as a whole inside itself it would never end.
            self._improve("inner", self.inner, s, t + (mode == self._last), own, here)

    def _improve(
        self,
        name: str,
        table: Float[np.ndarray, "cuts cuts slots"],
        s: int,
        first: int,
        stored: int,
        here: Float[np.ndarray, " slots"],
    ) -> None:
        """Put the last option of s before what follows, where that is better."""
        if stored > _SLOTS:
            return
        u = self.options[s][-1].stop
        room = _SLOTS + 1 - stored
        reached = here[:room] + self.whole[u, first:, :room]
        best, choice = table[s, first:, stored:], self.choice[name][s, first:, stored:]
        better = reached < best
        np.copyto(best, reached, where=better)
        np.copyto(choice, len(self.options[s]) - 1, where=better)

    def cheapest(self, limit: float) -> tuple[SegmentChoice, ...] | None:
        """The plan with fewest flops within this many bytes, or None."""
        slots, end = min(int(limit / self.unit), _SLOTS), len(self._cuts) - 1
        if not np.isfinite(self.whole[0, end, slots]):
            return None
        return _joined(list(self._read("whole", 0, end, slots)))

    def _read(self, name: str, s: int, t: int, slots: int) -> Iterator[SegmentChoice]:
        while s < t:
            option = self.options[s][self.choice[name][s, t, slots]]
            slots -= option.stored if name == "whole" else option.own
            inside: tuple[SegmentChoice, ...] = ()
            if option.mode == self._last:
                inside = _joined(list(self._read("inner", s, option.stop, slots)))
                inside = () if [i.mode for i in inside] == [0] else inside
            yield SegmentChoice(
                self._cuts[s], self._cuts[option.stop], option.mode, inside
            )
            s, name = option.stop, "whole"


def _joined(steps: list[SegmentChoice]) -> tuple[SegmentChoice, ...]:
    """Neighbours that both keep everything are one segment."""
    found: list[SegmentChoice] = []
    for step in steps:
        if found and step.mode == found[-1].mode == 0:
            found[-1] = SegmentChoice(found[-1].start, step.stop, 0)
        else:
            found.append(step)
    return tuple(found)


def _draft(costs: SegmentCosts, steps: tuple[SegmentChoice, ...]) -> DraftPlan:
    """The draft of these segments, with what several of them store counted once."""
    found = evaluate_segments(costs, steps)
    peak = max((w.peak_bytes for w in found), default=0)
    return DraftPlan(steps, peak, sum(w.flops for w in found))


@dataclasses.dataclass(frozen=True, slots=True)
class SegmentUsage:
    """What a segment comes to within a plan.

    Attributes:
        peak_bytes: most bytes held while its backward pass runs.
        flops: done a second time, with all that is inside it.
        inside: of the segments inside it.
    """

    peak_bytes: int
    flops: int
    inside: tuple["SegmentUsage", ...] = ()


def evaluate_segments(
    costs: SegmentCosts,
    steps: Sequence[SegmentChoice],
    held: frozenset[Var] = frozenset(),
    hidden: int = 0,
) -> list[SegmentUsage]:
    """Peak bytes and flops of each of these segments.

    Args:
        costs: of all segments.
        steps: those of the plan, in order.
        held: variables that are there already, for as long.
        hidden: bytes that are there besides.
    """
    stored = set(held)
    total = sum(map(bytes_of, held)) + hidden
    found: list[SegmentUsage] = []
    for step in steps:
        cost = costs.of[step.start, step.stop, step.mode]
        new = cost.stored - stored
        stored |= new
        total += sum(map(bytes_of, new)) + cost.hidden_bytes
        hidden += cost.hidden_bytes
        if step.inside:
            inner = evaluate_segments(costs, step.inside, frozenset(stored), hidden)
            flops = cost.flops + sum(w.flops for w in inner)
            peak = max(w.peak_bytes for w in inner)
            found.append(SegmentUsage(peak, flops, tuple(inner)))
        else:
            found.append(SegmentUsage(total + cost.transient_bytes, cost.flops))
    return found


def _cheaper(
    costs: SegmentCosts, steps: tuple[SegmentChoice, ...], limit: float
) -> tuple[SegmentChoice, ...]:
    """The same plan where segments that need not do so much again do less.

    The tables count twice what two segments store; here it is counted once.
    """
    order = sorted(range(len(steps)), key=lambda i: -_cost(costs, steps[i]).flops)
    for i in order:
        s = steps[i]
        ways = [SegmentChoice(s.start, s.stop, mode) for mode in range(s.mode)]
        ways.sort(key=lambda w: _cost(costs, w).flops)
        for way in ways:
            if not _cost(costs, way).possible:
                continue
            tried = (*steps[:i], way, *steps[i + 1 :])
            if _draft(costs, tried).peak_bytes <= limit:
                steps = tried
                break
    return _joined(list(steps))


def _cost(costs: SegmentCosts, step: SegmentChoice) -> SegmentCost:
    return costs.of[step.start, step.stop, step.mode]
