"""Which segments to recompute, for a range of memory limits, by dynamic programming.

The chain method of Beaumont, Herrmann, Pallez & Shilova 2020 ("Optimal memory-aware
backpropagation of deep join networks", Phil. Trans. R. Soc. A 378), one level deep
and over the cuts of any graph: a segment's backward pass finds in memory what all
segments up to it have stored, and what it needs itself.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from frugax.jaxprs import Var, bytes_of

from ._body import Body
from ._costs import Cost, Mode, segment_costs
from ._plan import Segment

# Stored bytes are counted in this many steps of what the plain program stores.
_SLOTS = 512
# Limits that are tried, from the plain program down: each this share of the last.
_STEP = 0.93


Key = tuple[int, int, Mode]  # a segment from one cut to another, and what is done


@dataclasses.dataclass(frozen=True, slots=True)
class Draft:
    """A plan on paper: its segments, and what the model thinks of it.

    Attributes:
        segments: (start, stop, mode) in order, covering all operations, each with
            the bytes it stores and the flops it does again.
        peak_bytes: most bytes held during the backward pass, by the model.
        flops: done a second time.
    """

    segments: tuple[tuple[Key, int, int], ...]
    peak_bytes: int
    flops: int


def drafts(body: Body, block_size: int | None = None) -> list[Draft]:
    """Plans for ever smaller limits, the plain one first, by falling peak.

    No recomputed segment holds more than `block_size` operations, if that is given.
    """
    if not body.eqns:
        return [Draft((), 0, 0)]
    costs = segment_costs(body)
    fits_block = lambda size: block_size is None or size <= block_size
    found = [_draft(((0, len(body.eqns), "save"),), costs)]
    unit = max(found[0].peak_bytes / _SLOTS, 1.0)
    limit = float(found[0].peak_bytes)
    options = [
        (key, round(c.stored_bytes / unit), c.transient_bytes / unit, c.flops)
        for key, c in costs.items()
        if c.possible and (key[2] == "save" or fits_block(key[1] - key[0]))
    ]
    into: dict[int, list[tuple[Key, int, float, int]]] = {}
    for option in options:
        into.setdefault(option[0][1], []).append(option)
    while (limit := limit * _STEP) > unit:
        segments = _cheapest(body.cuts, into, int(limit / unit))
        if segments is None:
            break
        draft = _draft(segments, costs)
        if draft.peak_bytes < found[-1].peak_bytes:
            found.append(draft)
    return found


def model_peak(body: Body, segments: Sequence[Segment]) -> int:
    """Most bytes held during the backward pass with these segments; () keeps all."""
    if not body.eqns:
        return 0
    all_kept: tuple[Key, ...] = ((0, len(body.eqns), "save"),)
    key = lambda s: (s.start, s.stop, "recompute" if s.gate else "save")
    chosen = tuple(map(key, segments)) or all_kept
    return _draft(chosen, segment_costs(body)).peak_bytes


def _cheapest(
    cuts: tuple[int, ...],
    into: dict[int, list[tuple[Key, int, float, int]]],
    slots: int,
) -> tuple[Key, ...] | None:
    """The segments with fewest flops that stay within `slots`, or None."""
    # Fewest flops to each cut, by slots stored so far: none at the first.
    best = {0: np.where(np.arange(slots + 1) == 0, 0.0, np.inf)}
    choice: dict[int, list[tuple[Key, int] | None]] = {}
    for stop in cuts[1:]:
        least = np.full(slots + 1, np.inf)
        chosen = np.full(slots + 1, -1)
        for n, ((start, _, _), stored, transient, flops) in enumerate(into[stop]):
            room = int(slots - transient)  # what may be stored when it runs
            if room < stored:
                continue
            reached = best[start][: room - stored + 1] + flops
            part = slice(stored, room + 1)
            better = reached < least[part]
            least[part] = np.where(better, reached, least[part])
            chosen[part] = np.where(better, n, chosen[part])
        best[stop] = least
        choice[stop] = [
            None if n < 0 else (into[stop][n][0], into[stop][n][1]) for n in chosen
        ]
    end = cuts[-1]
    at = int(np.argmin(best[end]))
    if not np.isfinite(best[end][at]):
        return None
    segments: list[Key] = []
    while end:
        picked = choice[end][at]
        assert picked is not None  # a finite cost has a choice behind it
        segments.append(picked[0])
        end, at = picked[0][0], at - picked[1]
    return _joined(segments[::-1])


def _joined(segments: list[Key]) -> tuple[Key, ...]:
    """Neighbours that both keep everything are one segment."""
    found: list[Key] = []
    for start, stop, mode in segments:
        if found and mode == found[-1][2] == "save":
            found[-1] = (found[-1][0], stop, mode)
        else:
            found.append((start, stop, mode))
    return tuple(found)


def _draft(segments: tuple[Key, ...], costs: dict[Key, Cost]) -> Draft:
    """The draft of these segments, with what several of them store counted once."""
    stored: set[Var] = set()
    total = peak = 0
    for key in segments:
        new = costs[key].stored - stored
        stored |= new
        total += sum(map(bytes_of, new)) + costs[key].hidden_bytes
        peak = max(peak, total + costs[key].transient_bytes)
    told = tuple((k, costs[k].stored_bytes, costs[k].flops) for k in segments)
    return Draft(told, peak, sum(flops for _, _, flops in told))
