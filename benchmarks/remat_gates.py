"""Compare the gates that keep XLA from merging recomputation away, and their costs.

Hand-placed per-layer checkpointing and our own plans, under each gate, with XLA's
default schedule on CPU and with the one that saves memory: temp bytes, flops, time.
"""

import contextlib
import dataclasses
from typing import Any
from unittest import mock

from benchmarks.remat_cases import (
    KEEP_BARRIERS,
    SAVING_SCHEDULE,
    Built,
    build,
    by_hand,
    gradient,
    limit_of,
    load,
    markdown,
    net,
    plain,
    planned,
    said,
    traced_flops,
)
from benchmarks.remat_race import race

from frugax import remat
from frugax.jaxprs import has_convolution, trace

SHARES = (0.5, 0.25)
SCHEDULES: dict[str, dict[str, str]] = {"": {}, ", saving": SAVING_SCHEDULE}
# The way each gate is compiled: XLA on CPU drops `barrier` without this option.
GATES: dict[str, dict[str, str]] = {"cond": {}, "select": {}, "barrier": KEEP_BARRIERS}
SLOW = "cond, convolutions as they are"


def regated(
    segments: tuple[remat.Segment, ...], gate: str
) -> tuple[remat.Segment, ...]:
    """The same plan under another gate, at all depths."""
    return tuple(
        dataclasses.replace(
            s, gate=gate if s.gate else None, nested=regated(s.nested, gate)
        )
        for s in segments
    )


def measured(name: str, iterations: int) -> dict[str, Any]:
    """The figures of one net."""
    built: dict[str, Built] = {"plain": plain(name)}
    built["plain, saving"] = build(name, gradient(net(name).loss), SAVING_SCHEDULE)
    for schedule, more in SCHEDULES.items():
        built["by hand" + schedule] = build(name, by_hand(name), more)
        kept = KEEP_BARRIERS | more
        built["by hand, barriers kept" + schedule] = build(name, by_hand(name), kept)
    for share in SHARES:
        built |= under_each_gate(name, share)
    before = load()
    arrays = net(name).arrays()
    slow = {k: b.run for k, b in built.items() if SLOW in k}
    quick = {k: b.run for k, b in built.items() if k not in slow}
    times = race(quick, arrays, iterations)
    # Ten times slower than the rest, which it would starve of iterations.
    times |= race({"plain": plain(name).run} | slow, arrays, 2) | times if slow else {}
    return {
        "iterations": iterations,
        "load": [before, load()],
        "programs": {k: _figures(name, b, times[k]) for k, b in built.items()},
        "same_memory": same_memory(name, built),
    }


def under_each_gate(name: str, share: float) -> dict[str, Built]:
    """Our plan for this share, under each gate and schedule."""
    plan = planned(name, limit_of(name, share)).plan
    if plan is None or not any(s.gate for s in plan.segments):
        return {}  # all that is done again is inside scans, where nothing is merged
    found: dict[str, Built] = {}
    loss = net(name).loss
    slow_ones = any(map(has_convolution, trace(loss, net(name).shapes).eqns))
    for gate, options in GATES.items():
        there = dataclasses.replace(plan, segments=regated(plan.segments, gate))
        step = remat.apply(loss, there)
        for schedule, more in SCHEDULES.items():
            said(f"{name}: plan {share:g} by {gate}{schedule}")
            key = f"plan {share:g}, {gate}{schedule}"
            found[key] = build(name, lambda *a, step=step: step(*a), options | more)
        if gate == "cond" and slow_ones:
            with _convolutions_as_they_are():
                key = f"plan {share:g}, {SLOW}"
                found[key] = build(name, lambda *a, step=step: step(*a))
    return found


def _convolutions_as_they_are() -> contextlib.AbstractContextManager[Any]:
    """Branches without the rewriting that makes convolutions in them fast."""
    as_it_is = lambda graph, **_: graph
    return mock.patch("frugax.remat.rewrite._backward.use_fast_convolutions", as_it_is)


def same_memory(name: str, built: dict[str, Built]) -> dict[str, Any]:
    """Our plans at the memory of checkpoints by hand, and at half of it as shipped."""
    hands = {k: b for k, b in built.items() if k.startswith("by hand")}
    best = min(hands, key=lambda k: hands[k].temp_bytes)
    plain_flops = traced_flops(name, gradient(net(name).loss))
    extra = traced_flops(name, by_hand(name)) / plain_flops - 1
    shipped = hands["by hand"].temp_bytes
    return {
        "by_hand": best,
        "by_hand_extra_flops_share": extra,
        "by_hand_share": hands[best].temp_bytes / plain(name).temp_bytes,
        "plan": _plan_at(name, hands[best].temp_bytes),
        "shipped_share": shipped / plain(name).temp_bytes,
        "plan_at_half_of_shipped": _plan_at(name, shipped // 2),
    }


def _plan_at(name: str, limit: int) -> dict[str, Any]:
    done = planned(name, limit)
    if done.plan is None:
        assert done.needed is not None  # there is a plan, or the limit that one needs
        return {"fits": False, "needed_share": done.needed / plain(name).temp_bytes}
    return {
        "fits": True,
        "share": done.plan.predicted / plain(name).temp_bytes,
        "extra_flops_share": done.plan.extra_share,
    }


def _figures(name: str, b: Built, times: dict[str, float]) -> dict[str, Any]:
    was = plain(name)
    xla = b.xla_flops / was.xla_flops if b.xla_flops and was.xla_flops else None
    share = b.temp_bytes / was.temp_bytes
    return {"share": share, "xla_flops_ratio": xla} | times


def table(nets: dict[str, Any]) -> str:
    """A line for each way, a column for each net: bytes / flops / time of plain."""
    ways = dict.fromkeys(k for f in nets.values() for k in f["programs"])
    rows = [
        [way, *(_cell(f["programs"].get(way)) for f in nets.values())] for way in ways
    ]
    return markdown(["temp bytes / flops / time", *nets], rows)


def _cell(c: dict[str, Any] | None) -> str:
    if c is None:
        return "-"
    xla = f"{c['xla_flops_ratio']:.2f}" if c["xla_flops_ratio"] else "-"
    return f"{c['share']:.3f} / {xla} / {c['ratio']:.2f}"


def comparison(nets: dict[str, Any]) -> str:
    """Bar 3 as a table."""
    rows = []
    for name, found in nets.items():
        s = found["same_memory"]
        how = s["by_hand"].removeprefix("by hand").strip(", ") or "as shipped"
        rows.append(
            [
                name,
                f"{s['by_hand_share']:.3f} for {s['by_hand_extra_flops_share']:+.1%}"
                f" ({how})",
                _told(s["plan"]),
                f"{s['shipped_share']:.3f}",
                _told(s["plan_at_half_of_shipped"]),
            ]
        )
    head = ["net", "best by hand, for more flops", "our plan at that memory"]
    head += ["`jax.checkpoint` as shipped", "our plan at half of that"]
    return markdown(head, rows)


def _told(plan: dict[str, Any]) -> str:
    if not plan["fits"]:
        return f"infeasible, needs {plan['needed_share']:.3f}"
    return f"{plan['share']:.3f} for {plan['extra_flops_share']:+.1%}"


def verdicts(nets: dict[str, Any]) -> list[str]:
    """Bar 3."""
    found = {n: f["same_memory"] for n, f in nets.items()}
    dear = [
        n
        for n, s in found.items()
        if not s["plan"]["fits"]
        or s["plan"]["extra_flops_share"] > s["by_hand_extra_flops_share"] / 2
    ]
    asked = [n for n in ("mlp24", "transformer12") if n in found]
    large = [
        n
        for n in asked
        if not found[n]["plan_at_half_of_shipped"]["fits"]
        or found[n]["plan_at_half_of_shipped"]["extra_flops_share"]
        > found[n]["by_hand_extra_flops_share"]
    ]
    return [
        f"Bar 3, {'MISSED' if dear else 'met'}: at the memory of the best hand-placed "
        "checkpoints, more than half of their extra flops: "
        f"{', '.join(dear) or 'none'}.",
        f"Bar 3, {'MISSED' if large else 'met'}: half the memory of `jax.checkpoint` "
        "per layer as shipped, for no more flops than it says, on "
        f"{', '.join(asked)}; not on: {', '.join(large) or 'none'}.",
    ]
