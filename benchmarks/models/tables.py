"""Format the figures as tables, and compare them with the bars."""

import dataclasses
from typing import Any

from benchmarks.remat_cases import markdown

from .race import CONTROL

STEP_BAR = 1.03
TINY_BAR = 1.15
TINY_LIMIT = 1.3  # of the forward pass, without regard to noise
BUILD_BAR_S = 1.0
# Gradients of 48 blocks, of the largest in each array; float32 sums in another order.
SCAN_BAR = 1e-4

FIRST = ("describe", "first step", "first step, CPU")

TITLES = {
    "mlp": "MLP 784-256-128-10, batch 128",
    "encoder": "encoder, 4 blocks, 8 x 64 x 128",
    "conv": "3 convolutions, 16 x 32 x 32 x 3",
    "linear4": "Linear(4), batch 1",
    "deep8": "MLP, 10 layers of 8, batch 1",
}


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The verdict on one bar.

    Attributes:
        text: a line.
        broken: whether it is missed by more than the control can explain.
    """

    text: str
    broken: bool


def ratio(c: dict[str, Any], clock: str) -> str:
    r = c[clock]
    return f"{r['ratio']:.2f} ({r['low']:.2f} to {r['high']:.2f})"


def time(seconds: float) -> str:
    return f"{1e6 * seconds:.1f} us" if seconds < 1e-3 else f"{1e3 * seconds:.2f} ms"


def raced(nets: dict[str, Any], what: str, clock: str) -> str:
    """One table for each net: every contestant, fastest first."""
    texts = []
    for net, record in nets.items():
        found = record[what]
        contestants = found["contestants"]
        order = sorted(contestants, key=lambda k: contestants[k][clock]["ratio"])
        rows = []
        for name in order:
            c, shown = contestants[name], name
            if name == found["reference"]:
                shown = f"**{name}** (reference)"
            elif name == CONTROL:
                shown = "*control: the reference, compiled again*"
            row = [shown, time(c[clock]["seconds"]), ratio(c, clock)]
            rows.append([*row, ratio(c, "cpu" if clock == "wall" else "wall")])
        other = "CPU time" if clock == "wall" else "wall time"
        title = f"{TITLES[net]}: {what} ({found['rounds']} rounds)"
        head = [title, "median", "ratio, 95 %", f"the same in {other}"]
        text = markdown(head, rows)
        for kind, why in record["failed"].items():
            text += f"\n\n{kind} could not run: {why}"
        texts.append(text)
    return "\n\n".join(texts)


def short(nets: dict[str, Any], labels: tuple[str, ...], clock: str) -> str:
    """One table for all nets, for the guide: a column for each."""
    cells: dict[str, list[str]] = {}
    head = ["ratio to the best by hand"]
    width = 0
    for net, record in nets.items():
        for what in labels:
            found = record[what]
            head.append(f"{TITLES[net]}{f', {what}' if len(labels) > 1 else ''}")
            reference = found["contestants"][found["reference"]]
            best = time(reference[clock]["seconds"])
            cells.setdefault("*the best by hand itself*", [""] * width).append(best)
            for name, c in found["contestants"].items():
                if name.startswith("JAX"):
                    continue
                row = cells.setdefault(name, [])
                row += ["-"] * (width - len(row))
                row.append(ratio(c, clock))
            width += 1
    rows = [[k, *r, *["-"] * (width - len(r))] for k, r in cells.items()]
    return markdown(head, rows)


def step_verdicts(nets: dict[str, Any], *, clock: str = "wall") -> list[Verdict]:
    """`frugax` against the best by hand."""
    return [
        _verdict(f"step of {net}", record["step"], STEP_BAR, clock)
        for net, record in nets.items()
    ]


def tiny_verdicts(nets: dict[str, Any], *, clock: str = "cpu") -> list[Verdict]:
    found = []
    for net, record in nets.items():
        for what in ("forward", "step"):
            verdict = _verdict(f"{what} of {net}", record[what], TINY_BAR, clock)
            r = record[what]["contestants"]["frugax"][clock]["ratio"]
            if what == "forward" and r > TINY_LIMIT:
                text = f"{verdict.text} Over {TINY_LIMIT}: too slow whatever the noise."
                verdict = Verdict(text, broken=True)
            found.append(verdict)
    return found


def _verdict(what: str, found: dict[str, Any], bar: float, clock: str) -> Verdict:
    r = found["contestants"]["frugax"][clock]
    control = found["contestants"][CONTROL][clock]
    # How far from one the control's interval reaches.
    noise = max(control["high"] - 1, 1 - control["low"], 0)
    broken = r["low"] > bar + noise
    if r["ratio"] <= bar:
        said = "met"
    else:
        said = "MISSED" if broken else "missed, but within the noise"
    text = (
        f"{what}: {r['ratio']:.3f} ({r['low']:.3f} to {r['high']:.3f}) of the best by "
        f"hand ({found['reference'].removeprefix('JAX: ')}); the bar is {bar}: {said}. "
        f"Control {control['ratio']:.3f} ({control['low']:.3f} to "
        f"{control['high']:.3f})."
    )
    return Verdict(text, broken)


def build_table(record: dict[str, Any]) -> str:
    rows = []
    for way, times in record["ways"].items():
        for when, t in times.items():
            cells = [f"{t[k]:.2f} s" for k in ("describe", "lay flat", "both")]
            rows.append([f"{way}, {when} time", *cells, f"{t['then trace']:.2f} s"])
    blocks = f"{record['blocks']} encoder blocks, CPU seconds"
    head = [blocks, "describe", "compile: infer, lay flat", "both", "then JAX traces"]
    return markdown(head, rows)


def build_verdicts(record: dict[str, Any]) -> list[Verdict]:
    found = []
    for way, times in record["ways"].items():
        t = times["first"]["both"]
        said = "met" if t <= BUILD_BAR_S else "MISSED"
        text = f"{record['blocks']} blocks, {way}: {t:.2f} CPU-s of {BUILD_BAR_S}"
        text += f": {said}."
        found.append(Verdict(text, t > BUILD_BAR_S))
    return found


def scan_table(record: dict[str, Any]) -> str:
    rows = []
    for way, t in record["ways"].items():
        seconds = [f"{t[k]:.2f} s" for k in FIRST]
        rows.append([way, *seconds, time(t["step"]), f"{t['differs_by']:.0e}"])
    head = [f"{record['blocks']} encoder blocks, a fresh process each"]
    head += [
        "describe, compile",
        "first step",
        "of CPU",
        "later",
        "gradients differ by",
    ]
    return markdown(head, rows)


def scan_verdicts(record: dict[str, Any]) -> list[Verdict]:
    ways = record["ways"]
    quicker = ways["frugax, written out"]["first step"]
    quicker /= ways["frugax, scanned"]["first step"]
    worst = max(t["differs_by"] for t in ways.values())
    equal = "equal" if worst <= SCAN_BAR else "NOT EQUAL"
    text = (
        f"{record['blocks']} blocks: the first step comes {quicker:.1f} times sooner "
        f"scanned than written out; gradients are {equal} (to {worst:.0e})."
    )
    return [Verdict(text, worst > SCAN_BAR or quicker < 1)]
