"""Choose the segments to recompute by dynamic programming, for all memory limits.

This is the method of Beaumont, Eyraud-Dubois, Herrmann, Joly & Shilova 2019 ("Optimal
checkpointing for heterogeneous chains", arXiv:1911.13214), applied to the cuts of any
graph: a segment's backward pass finds in memory everything that the segments before it
have stored, and adds its own residuals. A segment may be recomputed by its own plan.

References:
    Griewank & Walther 2000, "Algorithm 799: revolve", ACM TOMS 26(1): optimal nested
        checkpoints for a chain of equal steps;
    Feng & Huang 2018, "Optimal gradient checkpoint search for arbitrary computation
        graphs", and Kusumoto et al. 2019, "A graph theoretic framework of
        recomputation algorithms for memory-efficient backpropagation", NeurIPS: cuts of
        a graph, and dynamic programming over them;
    Jain et al. 2020, "Checkmate", MLSys: the integer program that the tests compare
        these plans with.
"""

import dataclasses
import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from frugax.jaxprs import Var, bytes_of, is_heavy

from ..rewrite import RematGraph
from ._segment_costs import Mode, SegmentCost, SegmentCosts, segment_costs

# Bytes are counted in slots, of which the plain program's peak holds this many. With
# fewer slots, plans leave more of a limit unused; the tables grow in proportion.
_NUM_SLOTS = 384
# The limits to solve for form a geometric series from the plain program's peak down.
# Its steps are as fine as the compile search needs, which accepts 95 % of a limit.
_LIMIT_RATIO = 0.95


@dataclasses.dataclass(frozen=True, slots=True)
class SegmentChoice:
    """A segment of a draft plan.

    Attributes:
        start: first operation.
        stop: one past the last operation.
        mode: how it is treated, see `_segment_costs.py`.
        nested: the plan by which it is recomputed; () to keep all its residuals then.
    """

    start: int
    stop: int
    mode: Mode
    nested: tuple["SegmentChoice", ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class DraftPlan:
    """A plan that was not compiled, and its figures by the model.

    Attributes:
        choices: the segments in order, covering all operations.
        peak_bytes: most bytes held during the backward pass.
        flops: recomputed flops.
    """

    choices: tuple[SegmentChoice, ...]
    peak_bytes: int
    flops: int


def check_block_size(block_size: int | None) -> None:
    """Check the largest number of operations in a recomputed segment.

    Raises:
        TypeError: `block_size` is neither an integer nor None.
        ValueError: `block_size` is less than 1.
    """
    if block_size is None:
        return
    if not isinstance(block_size, int):
        raise TypeError(
            f"block_size must be a whole number of operations, got {block_size!r}; "
            "None allows any number."
        )
    if block_size < 1:
        raise ValueError(
            f"block_size must be at least 1 operation, got {block_size}; None allows "
            "any number."
        )


def draft_plans(
    body: RematGraph, block_size: int | None = None
) -> tuple[SegmentCosts, list[DraftPlan]]:
    """Plans for ever smaller limits, the plain one first, by falling peak."""
    costs = segment_costs(body)
    if not body.eqns:
        return costs, [DraftPlan((), 0, 0)]
    plain = evaluate_choices(costs, (SegmentChoice(0, len(body.eqns), 0),))
    # Checkmate (Jain et al. 2020) decides about each value at each step by an integer
    # program. With contiguous segments the work is polynomial, and one table answers
    # for every limit.
    tables = _ChainTables(body, costs, plain.peak_bytes, block_size)
    found = [plain]
    limit = float(plain.peak_bytes)
    while (limit := limit * _LIMIT_RATIO) > tables.bytes_per_slot:
        choices = tables.cheapest(limit)
        if choices is None:
            break
        choices = _relax(costs, choices, limit)
        choices = _absorb(body, costs, choices, block_size)
        draft = evaluate_choices(costs, choices)
        if draft.peak_bytes < found[-1].peak_bytes:
            found.append(draft)
    return costs, found


@dataclasses.dataclass(frozen=True, slots=True)
class _SegmentOption:
    """One way to treat the operations up to the cut with index `stop`.

    It keeps `stored` slots from the forward to the backward pass, of which the segment
    itself computes `own`. Its own backward pass needs `held` slots, and costs `flops`:
    in the last mode, as many as the best nested plan with these slots or more.
    """

    stop: int
    mode: Mode
    stored: int
    own: int
    held: int
    flops: Any


class _ChainTables:
    """The fewest recomputed flops from each cut to each later one, by free slots.

    The recurrence, where m is the number of free slots and the first segment ends at u:

        whole[s, t, m] = min over u, mode of
            flops(s, u, mode) + inside(s, u, mode, m) + whole[u, t, m - stored]

    `inside` is infinite where the segment's own backward pass does not fit in m. For
    the last mode it is `inner[s, u, m]`, the cost of the best nested plan. `inner`
    differs from `whole` in two points. The values from before s that its first segment
    stores are in memory already and do not count again. And it excludes the plan that
    is the whole segment in the last mode, which would nest forever.

    Attributes:
        bytes_per_slot: bytes of a slot.
    """

    def __init__(
        self,
        body: RematGraph,
        costs: SegmentCosts,
        plain_peak: int,
        block_size: int | None,
    ) -> None:
        self.bytes_per_slot = max(plain_peak / _NUM_SLOTS, 1.0)
        self._cuts, self._last_mode = body.cuts, costs.modes - 1
        n = len(body.cuts)
        shape = (n, n, _NUM_SLOTS + 1)
        # Half the bytes of float64 take less time; what rounding loses is a few flops
        # of billions.
        self._whole = np.full(shape, np.inf, np.float32)
        self._inner = self._whole.copy()
        # To allocate it for each option takes longer than to compute it.
        self._total = np.empty(shape[1] * shape[2], np.float32)
        self._options: list[list[_SegmentOption]] = [[] for _ in range(n)]
        self._whole[range(n), range(n)] = 0.0
        # Starts fall and stops rise, so that `whole[u, ...]` of every later cut and the
        # shorter nested plans are complete when they are read.
        for s in reversed(range(n - 1)):
            for t in range(s + 1, n):
                self._add_first_segments(s, t, costs, block_size)

    def _add_first_segments(
        self, s: int, t: int, costs: SegmentCosts, block_size: int | None
    ) -> None:
        """Take up all plans from s whose first segment ends at t."""
        start, stop = self._cuts[s], self._cuts[t]
        modes = range(costs.modes)
        if block_size is not None and stop - start > block_size:
            modes = range(1)
        seen: list[tuple[float, int, int, int]] = []
        for mode in modes:
            cost = costs.of[start, stop, mode]
            # Stored bytes are rounded to the nearest slot, so that the errors of many
            # segments cancel; bytes held at one moment are rounded up.
            stored = round(cost.stored_bytes / self.bytes_per_slot)
            own = min(round(cost.own_bytes / self.bytes_per_slot), stored)
            held = math.ceil(cost.transient_bytes / self.bytes_per_slot)
            if not cost.possible or own + held > _NUM_SLOTS:
                continue
            is_last = mode == self._last_mode
            flops: Any = float(cost.flops)
            if is_last:
                flops = self._inner[s, t] + cost.flops
                # More slots never cost more, so the plans that fit come last.
                held = int(np.isinf(flops).sum())
                flops = flops[held:]
            else:
                figures = (flops, stored, own, held)
                if any(all(map(operator.le, f, figures)) for f in seen):
                    continue  # another mode needs no more of anything
                seen.append(figures)
            option = _SegmentOption(t, mode, stored, own, held, flops)
            self._options[s].append(option)
            # Feng & Huang 2018 and Kusumoto et al. 2019 choose cuts of a graph in this
            # way. The second table adds recomputation within recomputation (Beaumont et
            # al. 2020).
            self._improve(self._whole[s], option, stored, t)
            self._improve(self._inner[s], option, own, t + is_last)

    def _improve(
        self,
        table: Float[np.ndarray, "cuts slots"],
        option: _SegmentOption,
        stored: int,
        first: int,
    ) -> None:
        """Put an option before the plans that follow it, where that costs less.

        The segment's own backward pass must fit into the slots that are free at its
        turn.
        """
        held, room = option.held, _NUM_SLOTS + 1 - stored
        if held >= room:
            return
        flops = option.flops
        if np.ndim(flops):
            flops = flops[: room - held]
        rest = self._whole[option.stop, first:, held:room]
        best = table[first:, stored + held :]
        total = self._total[: rest.size].reshape(rest.shape)
        np.add(flops, rest, out=total)
        np.minimum(best, total, out=best)

    def _find_option(
        self, s: int, t: int, slots: int, *, inner: bool
    ) -> _SegmentOption:
        """The first option from s whose plans to t cost the fewest flops."""
        least = (self._inner if inner else self._whole)[s, t, slots]
        for option in self._options[s]:
            left = slots - (option.own if inner else option.stored)
            is_whole = inner and option.mode == self._last_mode and option.stop == t
            if option.stop > t or left < option.held or is_whole:
                continue
            flops = option.flops
            if np.ndim(flops):
                flops = flops[left - option.held]
            if np.float32(flops) + self._whole[option.stop, t, left] == least:
                return option
        raise AssertionError("no option has the cost of the table")

    def cheapest(self, limit: float) -> tuple[SegmentChoice, ...] | None:
        """The plan with the fewest flops within this many bytes, or None."""
        slots = min(int(limit / self.bytes_per_slot), _NUM_SLOTS)
        end = len(self._cuts) - 1
        if not np.isfinite(self._whole[0, end, slots]):
            return None
        return _join_kept(self._read(0, end, slots, inner=False))

    def _read(
        self, s: int, t: int, slots: int, *, inner: bool
    ) -> Iterator[SegmentChoice]:
        while s < t:
            option = self._find_option(s, t, slots, inner=inner)
            slots -= option.own if inner else option.stored
            nested: tuple[SegmentChoice, ...] = ()
            if option.mode == self._last_mode:
                nested = _join_kept(self._read(s, option.stop, slots, inner=True))
                if [n.mode for n in nested] == [0]:
                    nested = ()  # keeping everything is what () means
            stop = self._cuts[option.stop]
            yield SegmentChoice(self._cuts[s], stop, option.mode, nested)
            s, inner = option.stop, False


def _join_kept(choices: Iterator[SegmentChoice]) -> tuple[SegmentChoice, ...]:
    """Join neighbours that both keep everything."""
    found: list[SegmentChoice] = []
    for choice in choices:
        if found and choice.mode == found[-1].mode == 0:
            found[-1] = SegmentChoice(found[-1].start, choice.stop, 0)
        else:
            found.append(choice)
    return tuple(found)


def evaluate_choices(
    costs: SegmentCosts, choices: tuple[SegmentChoice, ...]
) -> DraftPlan:
    """These segments, with their peak and flops by the model."""
    found = evaluate_segments(costs, choices)
    peak = max((u.peak_bytes for u in found), default=0)
    return DraftPlan(choices, peak, sum(u.flops for u in found))


@dataclasses.dataclass(frozen=True, slots=True)
class SegmentUsage:
    """The bytes and flops of a segment within a plan.

    Attributes:
        peak_bytes: most bytes held while its backward pass runs.
        flops: recomputed flops, including those of nested segments.
        nested: the same for the nested segments.
    """

    peak_bytes: int
    flops: int
    nested: tuple["SegmentUsage", ...] = ()


def evaluate_segments(
    costs: SegmentCosts,
    choices: Sequence[SegmentChoice],
    held: frozenset[Var] = frozenset(),
    hidden_bytes: int = 0,
) -> list[SegmentUsage]:
    """Peak bytes and flops of each segment of a plan.

    A variable that several segments store counts once here; the tables of the dynamic
    programme, in which segments know nothing of each other, count it for each.
    """
    stored = set(held)
    total = sum(map(bytes_of, held)) + hidden_bytes
    found: list[SegmentUsage] = []
    for choice in choices:
        cost = _cost(costs, choice)
        new = cost.stored - stored
        stored |= new
        total += sum(map(bytes_of, new)) + cost.hidden_bytes
        hidden_bytes += cost.hidden_bytes
        if choice.nested:
            held_now = frozenset(stored)
            inner = evaluate_segments(costs, choice.nested, held_now, hidden_bytes)
            flops = cost.flops + sum(u.flops for u in inner)
            peak = max(u.peak_bytes for u in inner)
            found.append(SegmentUsage(peak, flops, tuple(inner)))
        else:
            found.append(SegmentUsage(total + cost.transient_bytes, cost.flops))
    return found


def _relax(
    costs: SegmentCosts, choices: tuple[SegmentChoice, ...], limit: float
) -> tuple[SegmentChoice, ...]:
    """Recompute less in segments, the costliest first, where the limit still holds.

    The tables count a variable twice that two segments store, so their plans may leave
    room; this spends it.
    """
    order = sorted(range(len(choices)), key=lambda i: -_cost(costs, choices[i]).flops)
    for i in order:
        c = choices[i]
        cheaper = [SegmentChoice(c.start, c.stop, mode) for mode in range(c.mode)]
        cheaper.sort(key=lambda choice: _cost(costs, choice).flops)
        for choice in cheaper:
            if not _cost(costs, choice).possible:
                continue
            changed = (*choices[:i], choice, *choices[i + 1 :])
            if evaluate_choices(costs, changed).peak_bytes <= limit:
                choices = changed
                break
    return _join_kept(iter(choices))


def _absorb(
    body: RematGraph,
    costs: SegmentCosts,
    choices: tuple[SegmentChoice, ...],
    block_size: int | None,
) -> tuple[SegmentChoice, ...]:
    """Let recomputed segments end after the light operations that follow for free.

    The sum at the end of a residual layer is one: in the segment, its gradient can be
    added up in place. To the model both are equal.
    """
    found: list[SegmentChoice] = [*choices]
    for c, rest in itertools.pairwise(choices):
        if not c.mode or rest.mode:
            continue
        i, longer = found.index(rest), found
        peak = evaluate_choices(costs, tuple(found)).peak_bytes
        last = rest.stop
        if block_size is not None:
            last = min(last, c.start + block_size)
        for stop in [p for p in body.cuts if c.stop < p <= last]:
            cost = costs.of[c.start, stop, c.mode]
            is_free = cost.possible and cost.flops <= _cost(costs, c).flops
            if not is_free or any(map(is_heavy, body.eqns[c.stop : stop])):
                break
            nested = (*c.nested, SegmentChoice(c.stop, stop, 0)) if c.nested else ()
            changed = (
                *found[: i - 1],
                SegmentChoice(c.start, stop, c.mode, _join_kept(iter(nested))),
                *([SegmentChoice(stop, rest.stop, 0)] if stop < rest.stop else []),
                *found[i + 1 :],
            )
            if evaluate_choices(costs, changed).peak_bytes <= peak:
                longer = [*changed]
        found = longer
    return tuple(found)


def _cost(costs: SegmentCosts, choice: SegmentChoice) -> SegmentCost:
    return costs.of[choice.start, choice.stop, choice.mode]
