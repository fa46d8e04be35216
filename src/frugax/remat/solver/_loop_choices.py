"""What could be done again inside a loss's scans and conds, from least to most.

A scan of T rounds that keeps only the carry before each chunk of c rounds keeps T/c
carries, and, while one chunk is done again, what c rounds keep: least near
c = sqrt(T * carry / kept per round), as in Chen, Xu, Zhang & Guestrin 2016 ("Training
deep nets with sublinear memory cost"). Between that and keeping all lie: rounds that
keep some of their results, and chunks of which only a part is done again.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from frugax.jaxprs import JaxprEqn, Var, bytes_of, flops_of, split_scan

from .._plan import BodyPlan, Chunk, Recompute
from ..rewrite import RematGraph, loop_bodies, rewrite_loops
from ._chain_dp import SegmentChoice, draft_plans
from ._segment_costs import SegmentCosts, costs_of_all

# More choices than this for a whole loss make planning slow and plans no better.
_MOST_LEVELS = 32
# Chunks with parts: so many rounds, where that divides them; finer ones cost slices.
_PARTS = range(4, 26)
# Of the choices for loops inside a body, so many are tried, evenly from all.
_INNER = 6
# Of the plans that cut a body into pieces, so many are tried, evenly from all.
_MOST_CUT = 4


@dataclasses.dataclass(frozen=True, slots=True)
class BodyStrategy:
    """One way to do a body again.

    Attributes:
        pieces: as in `Recompute`.
        saved: bytes kept each time it runs, its inputs left out.
        held: bytes there while its backward pass runs.
        flops: done again each time.
    """

    pieces: tuple[Chunk, ...]
    saved: int
    held: int
    flops: int


@dataclasses.dataclass(frozen=True, slots=True)
class LoopChoices:
    """Choices for all scans and conds of a loss together.

    Attributes:
        insides: the choices; those that are not named stay as they are.
        flops: done again, by the model.
        scratch: bytes that each holds while its backward pass runs, by place.
    """

    insides: tuple[BodyPlan, ...] = ()
    flops: int = 0
    scratch: tuple[tuple[int, int], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class _Choice:
    """One choice for one operation.

    Attributes:
        inside: the choice; None if all is kept.
        saved: bytes kept from its forward to its backward pass.
        scratch: bytes held besides while its backward pass runs.
        flops: done again.
    """

    inside: BodyPlan | None
    saved: int
    scratch: int
    flops: int

    @property
    def bytes(self) -> int:
        """Of both together."""
        return self.saved + self.scratch


def list_loop_choices(body: RematGraph) -> list[LoopChoices]:
    """Choices for everything together, from none on, by rising flops.

    Each step takes up the next choice for the scan or cond where that costs least for
    each byte it saves.
    """
    menus = [_menu(i, e, body) for i, e in enumerate(body.graph.eqns)]
    menus = [m for m in menus if len(m) > 1]
    at = [0] * len(menus)
    found = [LoopChoices()]

    def price(k: int) -> float:
        now, new = menus[k][at[k]], menus[k][at[k] + 1]
        return (new.flops - now.flops) / max(now.bytes - new.bytes, 1)

    while open_ := [k for k in range(len(menus)) if at[k] + 1 < len(menus[k])]:
        at[min(open_, key=price)] += 1
        taken = [m[n] for m, n in zip(menus, at, strict=True) if n]
        insides = [c.inside for c in taken if c.inside]
        found.append(
            LoopChoices(
                tuple(insides),
                sum(c.flops for c in taken),
                tuple(
                    (i.place, c.scratch) for i, c in zip(insides, taken, strict=True)
                ),
            )
        )
    return list(thin_evenly(found, _MOST_LEVELS))


def _menu(place: int, eqn: JaxprEqn, body: RematGraph) -> list[_Choice]:
    """Choices for one operation by falling bytes and rising flops, plain first."""
    name = eqn.primitive.name
    if eqn.effects or not any(v in body.active for v in eqn.outvars):
        return []
    if name == "scan" and eqn.params["length"] > 1:
        choices = _scan_choices(place, eqn, body)
    elif name == "cond" and flops_of(eqn):
        choices = _cond_choices(place, eqn, body)
    else:
        return []
    found: list[_Choice] = []
    plain = next(choices)
    least, least_saved = plain.bytes, plain.saved
    for c in sorted(choices, key=lambda c: (c.flops, c.bytes, c.inside is not None)):
        # What is held only for a while may fit where the peak is elsewhere.
        if c.bytes < least or (name == "cond" and c.saved < least_saved):
            least, least_saved = min(least, c.bytes), min(least_saved, c.saved)
            found.append(c)
    return [plain, *thin_evenly(found, _MOST_LEVELS)]


def _cond_choices(place: int, eqn: JaxprEqn, body: RematGraph) -> Iterator[_Choice]:
    branches = loop_bodies(eqn, body)
    inner = [list_loop_choices(b) for b in branches]
    for deep in (False, True):
        chosen = [(found[-1] if deep else found[0]) for found in inner]
        made = [_ways(b, level) for b, level in zip(branches, chosen, strict=True)]
        most = max(map(len, made))
        if deep and not any(level.insides for level in chosen):
            continue
        for n in range(most):
            taken = [w[min(n, len(w) - 1)] for w in made]
            pairs = zip(taken, chosen, strict=True)
            bodies = tuple(Recompute(w.pieces, inner=lv.insides) for w, lv in pairs)
            plain = n == 0 and not deep
            yield _Choice(
                None if plain else BodyPlan(place, bodies, "cond"),
                max(w.saved for w in taken),
                max(w.held for w in taken),
                max(w.flops + lv.flops for w, lv in zip(taken, chosen, strict=True)),
            )


def _scan_choices(place: int, eqn: JaxprEqn, body: RematGraph) -> Iterator[_Choice]:
    (inner,) = loop_bodies(eqn, body)
    length = eqn.params["length"]
    held, carried = split_scan(eqn)
    carry = sum(map(bytes_of, eqn.invars[held : held + carried]))
    scanned = sum(map(bytes_of, eqn.invars[held + carried :])) // length
    divisors = [c for c in range(2, length + 1) if length % c == 0]
    for level in thin_evenly(list_loop_choices(inner), _INNER):
        made = _ways(inner, level)
        forward = sum(map(flops_of, inner.eqns))

        def choice(
            *parts: tuple[BodyStrategy, int, bool],
            level: LoopChoices = level,
            forward: int = forward,
        ) -> _Choice:
            chunk = sum(rounds for _, rounds, _ in parts)
            stored = flops = scratch = 0
            for way, rounds, together in parts:
                stack = rounds * (way.saved + carry)
                stored += carry if together else stack
                if len(parts) > 1 and way.pieces and not together:
                    stored += rounds * scanned  # sliced, see `_rewrite.py`
                flops += rounds * (way.flops + level.flops + together * forward)
                here = way.held + (stack if together or chunk > 1 else 0)
                scratch = max(scratch, here)
            redos = tuple(Recompute(w.pieces, n, t, level.insides) for w, n, t in parts)
            many = length // chunk
            inside = BodyPlan(place, redos)
            return _Choice(inside, many * stored, scratch, many * flops)

        for n, way in enumerate(made):
            whole = choice((way, 1, False))
            plain = n == 0 and not level.insides
            yield dataclasses.replace(whole, inside=None) if plain else whole
        for way, c in itertools.product(made, divisors):
            yield choice((way, c, True))
        fine = [c for c in divisors if c in _PARTS]
        for c, (i, less) in itertools.product(fine, enumerate(made)):
            for a in range(1, c):
                for more in made[i + 1 :]:
                    yield choice((more, a, False), (less, c - a, False))
                yield choice((made[0], a, True), (less, c - a, False))


def _ways(body: RematGraph, level: LoopChoices) -> list[BodyStrategy]:
    return list_strategies(rewrite_loops(body, level.insides, dict(level.scratch)))


def list_strategies(body: RematGraph) -> list[BodyStrategy]:
    """Ways to do this body again, the first of which does nothing again."""
    if not body.eqns:
        return [BodyStrategy((), 0, 0, 0)]
    found: list[BodyStrategy] = []
    for mode, cost in enumerate(costs_of_all(body)):
        pieces = (Chunk(0, len(body.eqns), cost.kept),) if mode else ()
        if cost.possible:
            sizes = cost.stored_bytes, cost.transient_bytes, cost.flops
            found.append(BodyStrategy(pieces, *sizes))
    costs, made = draft_plans(body)
    cut = [d.steps for d in made if len(d.steps) > 1]
    return found + [_in_pieces(costs, steps) for steps in thin_evenly(cut, _MOST_CUT)]


def thin_evenly(found: Sequence[Any], most: int) -> Sequence[Any]:
    """At most so many of these, evenly, the first and the last among them."""
    if len(found) <= most:
        return found
    return [found[round(i * (len(found) - 1) / (most - 1))] for i in range(most)]


def _in_pieces(costs: SegmentCosts, steps: Sequence[SegmentChoice]) -> BodyStrategy:
    chosen = [costs.of[s.start, s.stop, s.mode] for s in steps]
    stored = frozenset[Var]().union(*(c.stored for c in chosen))
    pairs = zip(steps, chosen, strict=True)
    return BodyStrategy(
        tuple(Chunk(s.start, s.stop, c.kept if s.mode else None) for s, c in pairs),
        sum(map(bytes_of, stored)) + sum(c.hidden_bytes for c in chosen),
        max(c.transient_bytes for c in chosen),
        sum(c.flops for c in chosen),
    )
