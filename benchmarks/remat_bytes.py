"""Bytes and flops of `remat` plans, as the compiler counts them: the same each time.

Each net is planned within shares of its bytes without a plan. The figures do not come
from the plan: the program is compiled again and measured.
"""

from collections.abc import Iterable
from typing import Any

from benchmarks.remat_cases import (
    SHARES,
    Planned,
    build_plan,
    limit_of,
    markdown,
    net,
    plain,
    planned,
    said,
)

# For scans; the others cannot go that low, and are not asked to.
LOW_SHARE = 0.05


def measured(name: str) -> dict[str, Any]:
    """The figures of one net."""
    found: dict[str, Any] = {
        "unrolled": net(name).unrolled,
        "plain_temp_bytes": plain(name).temp_bytes,
        "plans": {f"{s:g}": case(name, limit_of(name, s)) for s in SHARES},
    }
    if not net(name).unrolled:
        found["low"] = case(name, limit_of(name, LOW_SHARE))
        found["least"] = case(name, 1)
    return found


def case(name: str, limit: int) -> dict[str, Any]:
    """The outcome at this limit; if nothing fitted, also at the `needed` limit."""
    done = planned(name, limit)
    if done.plan is not None:
        return {"limit_bytes": limit, "fits": True} | figures(name, limit, done)
    assert done.needed is not None  # there is a plan, or the limit that one needs
    again = planned(name, done.needed)
    said(f"{name}: infeasible, {done.needed:,} bytes needed")
    there = figures(name, done.needed, again) if again.plan else None
    return {
        "limit_bytes": limit,
        "fits": False,
        "needed_bytes": done.needed,
        "needed_share": done.needed / plain(name).temp_bytes,
        "seconds": done.seconds,
        "compile_seconds": done.compile_seconds,
        "at_needed": there,
    }


def figures(name: str, limit: int, done: Planned) -> dict[str, Any]:
    """Bytes and flops of a plan."""
    assert done.plan is not None  # by whom this is called
    was, now = plain(name), build_plan(name, done.plan)
    xla = now.xla_flops / was.xla_flops if now.xla_flops and was.xla_flops else None
    found = {
        "temp_bytes": now.temp_bytes,
        "predicted_bytes": done.plan.predicted,
        "share": now.temp_bytes / was.temp_bytes,
        "use": now.temp_bytes / limit,
        "extra_flops_share": done.plan.extra_share,
        "xla_flops_ratio": xla,
        "compiles": done.plan.compiles,
        "gates": sorted({s.gate for s in done.plan.segments if s.gate}),
        "seconds": done.seconds,
        "compile_seconds": done.compile_seconds,
    }
    said(
        f"{name}: {found['share']:.3f} of plain, use {found['use']:.2f}, "
        f"{found['extra_flops_share']:+.1%} flops, {done.plan.compiles} compiles, "
        f"{done.seconds:.0f} s"
    )
    return found


def table(nets: dict[str, Any]) -> str:
    """A line for each net and share."""
    rows = []
    for name, found in nets.items():
        cases = dict(found["plans"])
        if "low" in found:
            cases[f"{LOW_SHARE:g}"] = found["low"]
            cases["least"] = found["least"]["at_needed"]
        for share, c in cases.items():
            rows.append([f"{name}, {share}", *_cells(c)])
    head = ["net, share of plain", "measured", "use", "more flops", "XLA's flops"]
    return markdown([*head, "compiles", "planning, s", "of it in XLA, s"], rows)


def _cells(c: dict[str, Any] | None) -> list[str]:
    if c is None:
        return ["**`needed` did not do**", *["-"] * 6]
    seconds = [f"{c['seconds']:.0f}", f"{c['compile_seconds']:.0f}"]
    if not c.get("fits", True):
        needs = f"infeasible, needs {c['needed_share']:.3f}"
        return [needs, *["-"] * 4, *seconds]
    xla = c["xla_flops_ratio"]
    return [
        f"{c['share']:.3f}",
        f"{c['use']:.0%}",
        f"{c['extra_flops_share']:+.1%}",
        f"x{xla:.3f}" if xla else "-",
        str(c["compiles"]),
        *seconds,
    ]


def verdicts(nets: dict[str, Any]) -> list[str]:
    """The bars 1, 2 and 5, each with the figures behind its verdict."""
    cases = [(n, s, c) for n, f in nets.items() for s, c in f["plans"].items()]
    asked = cases + [(n, "low", f["low"]) for n, f in nets.items() if "low" in f]
    met = [c for *_, c in cases if c["fits"] and c["temp_bytes"] <= c["limit_bytes"]]
    over = [f"{n} {s}" for n, s, c in asked if c["fits"] and c["use"] > 1]
    raised = [c for *_, c in asked if not c["fits"]]
    raised += [f["least"] for f in nets.values() if "least" in f]
    true = sum(bool(c["at_needed"]) and c["at_needed"]["use"] <= 1 for c in raised)
    ok = len(met) >= 23 / 24 * len(cases) and not over and true == len(raised)
    lines = [
        f"Bar 1, {_word(ok=ok)}: {len(met)} of {len(cases)} met, silently over "
        f"{_list(over)}; `needed` was enough {true} of {len(raised)} times."
    ]
    half = {n: f["plans"]["0.5"] for n, f in nets.items() if f["unrolled"]}
    if half and all(c["fits"] for c in half.values()):
        extra = {n: c["extra_flops_share"] for n, c in half.items()}
        mean = sum(extra.values()) / len(extra)
        late = [n for n, e in extra.items() if e > 0.08]
        lines.append(
            f"Bar 2, {_word(ok=not late and mean <= 0.05)}: at half memory {mean:+.1%} "
            f"flops on average over unrolled nets; above +8 %: {_list(late)}."
        )
    else:
        lines.append("Bar 2, MISSED: an unrolled net does not fit in half.")
    lines += [_scan(n, f) for n, f in nets.items() if "low" in f]
    idle = _poorly_used(cases)
    slow = nets.get("transformer12", {"plans": {}})["plans"].values()
    beside = [c["seconds"] - c["compile_seconds"] for c in slow]
    lines.append(
        f"Bar 5, {_word(ok=not idle and max(beside, default=0) <= 60)}: used less than "
        f"90 % in spite of recomputation: {_list(idle)}; transformer12 planned in at "
        f"most {max(beside, default=0):.0f} s beside compiling."
    )
    return lines


def _scan(name: str, found: dict[str, Any]) -> str:
    low, least = found["low"], found["least"]["at_needed"]
    ok = low["fits"] and low["extra_flops_share"] <= 0.4
    there = (
        f"{low['share']:.3f} of plain for {low['extra_flops_share']:+.1%} flops"
        if low["fits"]
        else f"infeasible, needs {low['needed_share']:.3f}"
    )
    at_least = (
        f"at least {least['share']:.3f} for {least['extra_flops_share']:+.1%}"
        if least
        else "`needed` did not do"
    )
    return (
        f"Bar 2, scans, {_word(ok=ok)}: {name} at {LOW_SHARE:g}: {there}; {at_least}."
    )


def _poorly_used(cases: Iterable[tuple[str, str, dict[str, Any]]]) -> list[str]:
    return [
        f"{n} {s} ({c['use']:.0%} for {c['extra_flops_share']:+.1%})"
        for n, s, c in cases
        if c["fits"] and c["use"] < 0.9 and c["extra_flops_share"] > 0
    ]


def _word(*, ok: bool) -> str:
    return "met" if ok else "MISSED"


def _list(names: list[str]) -> str:
    return ", ".join(names) or "none"
