"""Candidate ways to recompute the scans and conds of a loss, from least to most.

A scan of T iterations that keeps only the carry before each group of c iterations keeps
T/c carries, and, while one group is recomputed, the residuals of c iterations. The sum
is smallest near c = sqrt(T * carry / residuals per iteration), as in Chen, Xu, Zhang &
Guestrin 2016 ("Training deep nets with sublinear memory cost"). Between that and
keeping everything lie iterations that keep some of their results, and groups of which
only some iterations are recomputed.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from frugax.jaxprs import JaxprEqn, Var, bytes_of, flops_of, split_scan

from .._plan import BodyPlan, Chunk, Recompute
from ..rewrite import (
    RematGraph,
    is_device_varying,
    loop_bodies,
    rewrite_loops,
)
from ._chain_dp import SegmentChoice, draft_plans
from ._divisors import divisors
from ._residuals import find_residuals
from ._segment_costs import SegmentCosts, whole_body_costs

# More choices than this for a whole loss make planning slow and plans no better.
_MAX_CHOICES = 32
# Finer steps than this share of the bytes held are not between two limits.
_STEP = 0.04
# Of these, as many may recompute a scan level by level.
_MAX_LEVEL_CHOICES = 6
# Lengths of groups whose iterations are treated in two ways, where they divide the
# scan. Longer groups would make finer steps between limits, but every group slices its
# inputs.
_MIXED_GROUPS = range(4, 26)
# Levels of groups within groups. Each costs one more forward pass.
_MAX_LEVELS = 3
# Lengths of the longest groups that are tried, beside those that hold the fewest bytes.
_LEVEL_FACTORS = (0.35, 0.5, 0.7, 1.0, 1.4)
# Choices for the loops inside a body that are tried, evenly from all of them.
_MAX_INNER_CHOICES = 6
# Plans that cut a body into chunks that are tried, evenly from all of them.
_MAX_CHUNKED_PLANS = 4


@dataclasses.dataclass(frozen=True, slots=True)
class LoopChoices:
    """One choice for each scan and cond of a loss.

    Attributes:
        body_plans: the choices; scans and conds that are not listed stay as they are.
        flops: recomputed flops, by the model.
        scratch_bytes: (operation, bytes that it holds while its backward pass runs).
    """

    body_plans: tuple[BodyPlan, ...] = ()
    flops: int = 0
    scratch_bytes: tuple[tuple[int, int], ...] = ()

    @property
    def goes_by_levels(self) -> bool:
        """Whether a scan recomputes groups within groups of iterations."""
        return any(b.levels for p in self.body_plans for b in p.bodies)


@dataclasses.dataclass(frozen=True, slots=True)
class _LoopChoice:
    """One choice for one operation; `plan` is None if it keeps everything.

    Saved bytes are kept from its forward to its backward pass, and scratch bytes are
    held besides while its backward pass runs.
    """

    plan: BodyPlan | None
    saved_bytes: int
    scratch_bytes: int
    flops: int

    @property
    def bytes(self) -> int:
        """Saved bytes and scratch bytes together."""
        return self.saved_bytes + self.scratch_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class _BodyStrategy:
    """One way to recompute a body, and its cost each time the body runs.

    Saved bytes exclude the inputs. Held bytes are those of its own backward pass.
    """

    chunks: tuple[Chunk, ...]
    saved_bytes: int
    held_bytes: int
    flops: int


def list_loop_choices(body: RematGraph, step_bytes: float = 0) -> list[LoopChoices]:
    """Choices for all scans and conds together, by rising flops, the plain one first.

    Where `step_bytes` are given, each saves as much more than the one before, and a
    share of what that one holds, but for the last.

    Each step moves one scan or cond to its next choice, the one that costs the fewest
    flops for each byte it saves: the greedy method for multiple-choice knapsacks (Sinha
    & Zoltners 1979), which here need not be exact, since the candidates are compiled.
    """
    graph = body.graph
    menus = [
        _list_choices(n, graph.eqns[i], body) for n, i in enumerate(graph.numbered)
    ]
    menus = [m for m in menus if len(m) > 1]
    at = [0] * len(menus)
    found = [LoopChoices()]
    least = sum(m[0].bytes for m in menus)

    def price(k: int) -> float:
        now, new = menus[k][at[k]], menus[k][at[k] + 1]
        # A choice that moves bytes without saving any in total would divide by 0.
        return (new.flops - now.flops) / max(now.bytes - new.bytes, 1)

    while unfinished := [k for k in range(len(menus)) if at[k] + 1 < len(menus[k])]:
        at[min(unfinished, key=price)] += 1
        held = sum(m[n].bytes for m, n in zip(menus, at, strict=True))
        is_last = all(at[k] + 1 == len(menus[k]) for k in range(len(menus)))
        step = max(step_bytes, _STEP * least) if step_bytes else 0
        if held > least - step and not is_last:
            continue
        least = held
        taken = [m[n] for m, n in zip(menus, at, strict=True) if n]
        scratch = [(c.plan.operation, c.scratch_bytes) for c in taken if c.plan]
        found.append(
            LoopChoices(
                tuple(c.plan for c in taken if c.plan),
                sum(c.flops for c in taken),
                tuple(scratch),
            )
        )
    return list(_thin_evenly(found, _MAX_CHOICES))


def list_named_loop_choices(body: RematGraph) -> Iterator[tuple[LoopChoices, int]]:
    """Scans whose iterations follow one or two policies of `jax.checkpoint`.

    Each comes with the bytes that it needs beyond the plain loss, by the model: mostly
    less than 0. These are choices that a user could write by hand. The model may take
    some of them for worse than others, which `list_loop_choices` then leaves out.
    """
    yield from _take_together(body, lambda choices, _: choices)


def list_choices_in_host_memory(body: RematGraph) -> Iterator[tuple[LoopChoices, int]]:
    """Scans whose iterations follow a policy, and keep values in the host's memory.

    They come as those of `list_named_loop_choices`.
    """
    yield from _take_together(body, _move_to_host)


def _take_together(
    body: RematGraph,
    options: Callable[[list[_LoopChoice], JaxprEqn], list[_LoopChoice]],
) -> Iterator[tuple[LoopChoices, int]]:
    """Let all scans of a loss go together through options that a user could name."""
    graph = body.graph
    residuals = find_residuals(graph, body.active, body.memo)
    menus: list[list[_LoopChoice]] = []
    plain_bytes = 0
    for n, i in enumerate(graph.numbered):
        if graph.eqns[i].primitive.name == "scan":
            choices = _all_choices(n, graph.eqns[i], body)
            named = [c for c in choices if c.plan is None or _is_named(c.plan)]
            if menu := options(named, graph.eqns[i]):
                menus.append(sorted(menu, key=lambda c: (c.flops, c.bytes)))
                # As the costs of the plain loss count it.
                plain_bytes += residuals[i].hidden_bytes
    longest = max(map(len, menus), default=0)
    for n in range(longest):
        taken = [m[round(n * (len(m) - 1) / max(longest - 1, 1))] for m in menus]
        plans = tuple(c.plan for c in taken if c.plan)
        scratch = tuple((p.operation, 0) for p in plans)
        change = sum(c.bytes for c in taken) - plain_bytes
        if plans:
            yield LoopChoices(plans, sum(c.flops for c in taken), scratch), change


def _move_to_host(choices: list[_LoopChoice], eqn: JaxprEqn) -> list[_LoopChoice]:
    """Those with one policy, whose carry alone is moved, or also the kept results."""
    length, (first, count) = eqn.params["length"], split_scan(eqn)
    carries = length * sum(map(bytes_of, eqn.invars[first : first + count]))
    found: list[_LoopChoice] = []
    for c in choices:
        if not (c.plan and c.plan.group_length == 1 and c.plan.bodies[0].chunks):
            continue
        moves: dict[Literal["carry", "all"], int] = {"carry": carries}
        if c.saved_bytes > carries:
            moves["all"] = c.saved_bytes
        for where, moved in moves.items():
            again = dataclasses.replace(c.plan.bodies[0], in_host_memory=where)
            plan = dataclasses.replace(c.plan, bodies=(again,))
            # Of the iterations before and after, values are under way.
            scratch = c.scratch_bytes + 2 * moved // length
            new = _LoopChoice(plan, c.saved_bytes - moved, scratch, c.flops)
            found.append(new)
    return found


def _is_named(plan: BodyPlan) -> bool:
    return all(
        len(b.chunks) <= 1 and not (b.from_carry or b.levels or b.body_plans)
        for b in plan.bodies
    )


def _all_choices(operation: int, eqn: JaxprEqn, body: RematGraph) -> list[_LoopChoice]:
    """Choices for one operation, the first of which keeps all; or nothing."""

    def make() -> list[_LoopChoice]:
        name = eqn.primitive.name
        if eqn.effects or not any(v in body.active for v in eqn.outvars):
            return []
        if name == "scan" and eqn.params["length"] > 1:
            return list(_scan_choices(operation, eqn, body))
        if name == "cond" and flops_of(eqn):
            return list(_cond_choices(operation, eqn, body))
        return []

    return body.remember(("choices", operation), make)


def _list_choices(operation: int, eqn: JaxprEqn, body: RematGraph) -> list[_LoopChoice]:
    """Choices for one operation by falling bytes and rising flops, plain first."""
    name = eqn.primitive.name
    if not (choices := _all_choices(operation, eqn, body)):
        return []
    found: list[_LoopChoice] = []
    plain = choices[0]
    least, least_saved = plain.bytes, plain.saved_bytes
    for c in sorted(choices[1:], key=lambda c: (c.flops, c.bytes, c.plan is not None)):
        # A cond holds its scratch for a moment only, which may be harmless where the
        # peak is elsewhere: saving less counts on its own.
        if c.bytes < least or (name == "cond" and c.saved_bytes < least_saved):
            least, least_saved = min(least, c.bytes), min(least_saved, c.saved_bytes)
            found.append(c)
    # The choices that recompute level by level are few and far apart.
    by_levels = [c for c in found if c.plan and c.plan.bodies[0].levels]
    rest = [c for c in found if c not in by_levels]
    kept = _thin_evenly(by_levels, _MAX_LEVEL_CHOICES)
    return [plain, *_thin_evenly(rest, _MAX_CHOICES - len(kept)), *kept]


def _cond_choices(
    operation: int, eqn: JaxprEqn, body: RematGraph
) -> Iterator[_LoopChoice]:
    branches = loop_bodies(eqn, body)
    inner = [list_loop_choices(b) for b in branches]
    # With the loops inside the branches as they are, then recomputing the most, first
    # without groups in groups.
    levels = [[c for c in choices if not c.goes_by_levels] for choices in inner]
    ways = [[c[0] for c in inner], [c[-1] for c in levels], [c[-1] for c in inner]]
    for deepest, chosen in enumerate(ways):
        if deepest and chosen in ways[:deepest]:
            continue
        options = [
            _list_strategies(b, c) for b, c in zip(branches, chosen, strict=True)
        ]
        for n in range(max(map(len, options))):
            taken = [o[min(n, len(o) - 1)] for o in options]
            pairs = list(zip(taken, chosen, strict=True))
            bodies = tuple(
                Recompute(s.chunks, body_plans=c.body_plans) for s, c in pairs
            )
            plan = None
            if n or deepest:
                plan = BodyPlan(operation, bodies, "cond")
            yield _LoopChoice(
                plan,
                max(s.saved_bytes for s in taken),
                max(s.held_bytes for s in taken),
                max(s.flops + c.flops for s, c in pairs),
            )


def _scan_choices(
    operation: int, eqn: JaxprEqn, body: RematGraph
) -> Iterator[_LoopChoice]:
    (inner,) = loop_bodies(eqn, body)
    length = eqn.params["length"]
    num_consts, num_carry = split_scan(eqn)
    carry_bytes = sum(map(bytes_of, eqn.invars[num_consts : num_consts + num_carry]))
    x_bytes = sum(map(bytes_of, eqn.invars[num_consts + num_carry :])) // length
    is_mapped = any(map(is_device_varying, eqn.invars))
    forward_flops = sum(map(flops_of, inner.eqns))
    # Groups of equal length: the outer scan runs one program for all of them.
    groups_of = divisors(length)
    for level in _thin_evenly(list_loop_choices(inner), _MAX_INNER_CHOICES):

        def choice(
            *parts: tuple[_BodyStrategy, int, bool], level: LoopChoices = level
        ) -> _LoopChoice:
            group = sum(iterations for _, iterations, _ in parts)
            stored = flops = scratch = 0
            for strategy, iterations, from_carry in parts:
                # JAX stacks the residuals of a scan, and the carry is one of them.
                stack = iterations * (strategy.saved_bytes + carry_bytes)
                held = strategy.held_bytes
                flops += iterations * (strategy.flops + level.flops)
                if from_carry:
                    stored += carry_bytes
                    # The whole forward body runs a second time, besides its own
                    # recomputation.
                    flops += iterations * forward_flops
                else:
                    stored += stack
                    if len(parts) > 1 and strategy.chunks:
                        # The slices of the inputs are kept, see `rewrite/_loops.py`.
                        stored += iterations * x_bytes
                if from_carry or group > 1:
                    held += stack
                scratch = max(scratch, held)
            bodies = tuple(
                Recompute(s.chunks, n, t, level.body_plans) for s, n, t in parts
            )
            groups = length // group
            plan = BodyPlan(operation, bodies)
            return _LoopChoice(plan, groups * stored, scratch, groups * flops)

        def deep(
            one: _BodyStrategy, levels: Sequence[int], level: LoopChoices = level
        ) -> _LoopChoice:
            counts = [-(-a // b) for a, b in itertools.pairwise([length, *levels, 1])]
            held = sum(counts[1:]) * carry_bytes + one.saved_bytes + one.held_bytes
            # The forward pass once more for each level, and before each backward rule.
            flops = len(counts) * forward_flops + level.flops
            again = Recompute((), length, True, level.body_plans, tuple(levels))
            plan = BodyPlan(operation, (again,))
            return _LoopChoice(plan, counts[0] * carry_bytes, held, length * flops)

        strategies = _list_strategies(inner, level)
        for n, strategy in enumerate(strategies):
            each = choice((strategy, 1, False))
            if n == 0 and not level.body_plans:
                each = dataclasses.replace(each, plan=None)
            yield each
        for strategy, c in itertools.product(strategies, groups_of):
            yield choice((strategy, c, True))
        if not is_mapped:
            yield from (deep(strategies[0], levels) for levels in _list_levels(length))
        mixed = [c for c in groups_of if c in _MIXED_GROUPS] or [length]
        for c, (i, less) in itertools.product(mixed, enumerate(strategies)):
            for a in range(1, c, -(-c // _MIXED_GROUPS.stop)):
                for more in strategies[i + 1 :]:
                    yield choice((more, a, False), (less, c - a, False))
                yield choice((strategies[0], a, True), (less, c - a, False))


def _list_levels(length: int) -> Iterator[tuple[int, ...]]:
    """Lengths of groups within groups of iterations, from the longest on.

    They are near those at which each level holds equally many carries.
    """
    seen: set[tuple[int, ...]] = set()
    for depth in range(1, _MAX_LEVELS + 1):
        for factor in _LEVEL_FACTORS:
            longest = factor * length ** (depth / (depth + 1))
            levels = [round(longest ** (n / depth)) for n in range(depth, 0, -1)]
            falling = [length, *levels, 1]
            if falling == sorted({*falling}, reverse=True):
                seen.add(tuple(levels))
    yield from sorted(seen)


def _list_strategies(body: RematGraph, level: LoopChoices) -> list[_BodyStrategy]:
    """Ways to recompute this body, the first of which recomputes nothing."""
    body = rewrite_loops(body, level.body_plans, dict(level.scratch_bytes))
    if not body.eqns:
        return [_BodyStrategy((), 0, 0, 0)]
    found: list[_BodyStrategy] = []
    for mode, cost in enumerate(whole_body_costs(body)):
        chunks: tuple[Chunk, ...] = ()
        if mode:
            chunks = (Chunk(0, len(body.eqns), cost.kept),)
        if cost.possible:
            sizes = cost.stored_bytes, cost.transient_bytes, cost.flops
            found.append(_BodyStrategy(chunks, *sizes))
    costs, drafts = draft_plans(body)
    chunked = [d.choices for d in drafts if len(d.choices) > 1]
    chunked = _thin_evenly(chunked, _MAX_CHUNKED_PLANS)
    return found + [_combine_segments(costs, choices) for choices in chunked]


def _combine_segments(
    costs: SegmentCosts, choices: Sequence[SegmentChoice]
) -> _BodyStrategy:
    found = [costs.of[c.start, c.stop, c.mode] for c in choices]
    stored = frozenset[Var]().union(*(cost.stored for cost in found))
    chunks: list[Chunk] = []
    for c, cost in zip(choices, found, strict=True):
        chunks.append(Chunk(c.start, c.stop, cost.kept if c.mode else None))
    return _BodyStrategy(
        tuple(chunks),
        sum(map(bytes_of, stored)) + sum(cost.hidden_bytes for cost in found),
        max(cost.transient_bytes for cost in found),
        sum(cost.flops for cost in found),
    )


def _thin_evenly(found: Sequence[Any], most: int) -> Sequence[Any]:
    """At most this many of a sequence, evenly spaced, its first and last included."""
    if len(found) <= most:
        return found
    return [found[round(i * (len(found) - 1) / (most - 1))] for i in range(most)]
