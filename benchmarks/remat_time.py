"""Step times of `remat` plans and of hand-placed checkpoints, next to plain JAX."""

from typing import Any

from benchmarks.remat_cases import (
    KEEP_BARRIERS,
    Built,
    build,
    build_plan,
    by_hand,
    gradient,
    limit_of,
    load,
    markdown,
    net,
    plain,
    planned,
    said,
)
from benchmarks.remat_race import race

SHARES = (0.5, 0.25)
MOST_AT_HALF = 1.25


def measured(name: str, rounds: int) -> dict[str, Any]:
    """The figures of one net."""
    built: dict[str, Built] = {
        "plain": plain(name),
        "plain again": build(name, gradient(net(name).loss)),
        "by hand": build(name, by_hand(name)),
        "by hand, barriers kept": build(name, by_hand(name), KEEP_BARRIERS),
    }
    extra: dict[str, float] = {}
    for share in SHARES:
        plan = planned(name, limit_of(name, share)).plan
        if plan is not None:
            built[f"plan {share:g}"] = build_plan(name, plan)
            extra[f"plan {share:g}"] = plan.extra_share
    before = load()
    times = race({k: b.run for k, b in built.items()}, net(name).arrays(), rounds)
    for k, t in times.items():
        said(f"{name}: {k}: {t['ratio']:.2f} ({t['low']:.2f} to {t['high']:.2f})")
    return {
        "rounds": rounds,
        "load": [before, load()],
        "programs": {
            k: times[k]
            | {
                "share": b.temp_bytes / plain(name).temp_bytes,
                "extra_flops_share": extra.get(k),
            }
            for k, b in built.items()
        },
    }


def table(nets: dict[str, Any]) -> str:
    """A line for each net."""
    columns = ["plain again", "plan 0.5", "plan 0.25", "by hand"]
    columns.append("by hand, barriers kept")
    rows = []
    for name, found in nets.items():
        programs = found["programs"]
        cells = [_cell(programs.get(k)) for k in columns]
        rows.append([name, f"{programs['plain']['ms']:.0f} ms", *cells])
    return markdown(["net", "plain", *columns], rows)


def _cell(t: dict[str, Any] | None) -> str:
    if t is None:
        return "no plan"
    return f"{t['ratio']:.2f} ({t['low']:.2f} to {t['high']:.2f}); {t['share']:.2f}"


def verdicts(nets: dict[str, Any]) -> list[str]:
    """Bar 6, and how much of it is noise."""
    half = {n: f["programs"].get("plan 0.5") for n, f in nets.items()}
    late = [
        n + (f" {t['ratio']:.2f}" if t else " has no plan")
        for n, t in half.items()
        if t is None or t["ratio"] > MOST_AT_HALF
    ]
    noise = [f["programs"]["plain again"] for f in nets.values()]
    loads = [one for f in nets.values() for one in f["load"]]
    return [
        f"Bar 6, {'MISSED' if late else 'met'}: slower than {MOST_AT_HALF} at half "
        f"memory: {', '.join(late) or 'none'}.",
        "Noise: plain against itself has medians from "
        f"{min(t['ratio'] for t in noise):.2f} to {max(t['ratio'] for t in noise):.2f} "
        f"and 95 % intervals from {min(t['low'] for t in noise):.2f} to "
        f"{max(t['high'] for t in noise):.2f}; load {min(loads):.1f} to "
        f"{max(loads):.1f} on a shared machine. Plain is no fast base: its temporaries "
        "come from the system anew at each step, page by page.",
    ]
