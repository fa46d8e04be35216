"""The report of a campaign: one HTML file that needs nothing else."""

import itertools
import math
import re

import numpy as np

from frugax.causal.environments import Environment
from frugax.causal.scm import intervene
from frugax.report import CHART_SCRIPT, FULL_WIDTH, PAGE_STYLE, escape, line_chart, page

from ._audit import Audit
from ._campaign import Campaign
from ._graph_picture import graph_picture
from ._history import Step, history
from ._results import Advice

_STYLE = (
    PAGE_STYLE
    + """
main { max-width:900px; }
.graph { overflow-x:auto; } .graph text { font-size:13px; fill:var(--ink); }
.graph .node rect { fill:var(--card); stroke:var(--soft); stroke-width:1.3; }
.graph .node.set rect { stroke:var(--s0); stroke-width:2; }
.graph .node.target rect { fill:var(--s2); stroke:var(--s2); }
.graph .node.target text { fill:var(--card); font-weight:600; }
.graph .edge { fill:none; stroke:var(--ink); } .graph .tip { fill:var(--ink); }
.graph .odds { font-size:11px; fill:var(--soft); stroke:var(--card);
 stroke-width:3px; paint-order:stroke; }
.tiles { grid-auto-flow:dense; } .tile.wide { grid-column:span 2; }
.tile b { overflow-wrap:anywhere; }
.edge-key { color:var(--soft); font-size:.85rem; }
.line.s1 { stroke-dasharray:5 4; } .line.s2 { stroke-dasharray:5 4; }
"""
)


def report_page(
    name: str,
    campaign: Campaign,
    advice: Advice,
    *,
    truth: Environment | None = None,
    audited: Audit | None = None,
) -> str:
    """The report as one HTML document.

    Args:
        name: of the campaign.
        campaign: as it stands.
        advice: whether to go on.
        truth: the problem, if it is a known one; gives the regret.
        audited: the campaign replayed beside other ways to choose.
    """
    steps = history(campaign)
    sections = [
        _heading(name, campaign, advice, truth),
        _section("What causes what", _graph(campaign)),
        _section("What was known when", _course(campaign, steps, truth)),
        _section("What it cost", _spend(campaign, steps)),
        _section(
            "Were the forecasts right?", _calibration(steps, campaign.look().scale)
        ),
        _section("Would another way have been better?", _audit(audited)),
        _section("Every experiment", _experiments(campaign, steps)),
    ]
    return page(
        f"{name} - frugax campaign",
        "".join(sections),
        style=_STYLE,
        script=CHART_SCRIPT,
    )


def _heading(
    name: str, campaign: Campaign, advice: Advice, truth: Environment | None
) -> str:
    settings = campaign.settings
    aim = "small" if settings.minimize else "large"
    about = (
        f"{settings.target} shall become {aim}; budget: {settings.budget}. Advice: "
        f"{advice}"
    )
    tiles: list[tuple[str, str]] = []
    if campaign.measured:
        best = campaign.recommend()
        tiles = [
            ("recommended", str(best.intervention)),
            (f"expected {settings.target}", f"{best.expected:.4g}"),
            ("90 % interval of it", f"{best.low:.4g} to {best.high:.4g}"),
            ("as good as the best", f"{best.right:.0%} sure"),
        ]
        if campaign.unmeasured:
            tiles.append(("never measured", ", ".join(campaign.unmeasured)))
        elif campaign.settings.constraints:
            tiles.append(("keeps the constraints", f"{best.keeps:.0%} sure"))
        if truth is not None:
            tiles.append(("true regret", f"{_regret(truth, best.value):.3g}"))
    tiles.append(("spent", f"{campaign.spent:g}"))
    done = sum(e.status == "answered" for e in campaign.asks)
    tiles.append(("experiments answered", f"{done}"))
    shown = "".join(_tile(label, value) for label, value in tiles)
    return (
        f"<h1>{escape(name)}</h1><p class=sub>{escape(about)}</p>"
        f'<div class="tiles">{shown}</div>'
    )


def _tile(label: str, value: str) -> str:
    # A number or "x = 2" is never broken over lines; what is long gets two columns.
    kept = re.sub(" (=|to) ", "\N{NO-BREAK SPACE}\\1\N{NO-BREAK SPACE}", _short(value))
    wide = " wide" if len(value) > 9 else ""
    return (
        f'<div class="tile{wide}"><b title="{escape(value)}">{escape(kept)}</b>'
        f"<span>{escape(label)}</span></div>"
    )


def _graph(campaign: Campaign) -> str:
    known, settings = campaign.look(), campaign.settings
    picture = graph_picture(
        known.names,
        known.belief.edges,
        target=settings.target,
        settable=frozenset(settings.variables),
    )
    strange = known.deviation.size / known.scale
    note = (
        '<p class="note">Figures are probabilities; an edge without one is certain, '
        "one below 5 % is not drawn. Blue may be set, green is the target.</p>"
    )
    if strange > 0.05:
        note += (
            '<p class="note">The experiments differ from what these causes explain, by '
            f"some {strange:.0%} of the target's spread: a cause may be missing from "
            "the data.</p>"
        )
    return picture + note


def _course(
    campaign: Campaign, steps: tuple[Step, ...], truth: Environment | None
) -> str:
    if not steps:
        return '<p class="note">No experiment was asked for yet.</p>'
    cost = np.array([s.spent_before for s in steps])
    lines = {
        "recommended": np.array([s.forecast.best_expected for s in steps]),
        "low": np.array([s.forecast.best_low for s in steps]),
        "high": np.array([s.forecast.best_high for s in steps]),
    }
    if campaign.measured:
        best = campaign.recommend()
        cost = np.append(cost, campaign.spent)
        ends = (best.expected, best.low, best.high)
        for (line, values), end in zip(list(lines.items()), ends, strict=True):
            lines[line] = np.append(values, end)
    target = campaign.settings.target
    charts = [
        line_chart(
            {line: (cost, values) for line, values in lines.items()},
            title=f"expected {target} under the recommendation, by what was spent",
            size=FULL_WIDTH,
            x_max=campaign.spent,
        )
    ]
    if truth is not None:
        advised = [s.forecast.best for s in steps]
        if campaign.measured:
            advised.append(campaign.recommend().value)
        regret = np.array([_regret(truth, values) for values in advised])
        charts.append(
            line_chart(
                {"regret": (cost, regret)},
                title="true regret",
                size=FULL_WIDTH,
                x_max=campaign.spent,
            )
        )
    worth = {
        "learn": np.array([s.forecast.learn for s in steps]),
        "exploit": np.array([s.forecast.exploit for s in steps]),
    }
    at = np.array([s.spent_before for s in steps])
    charts.append(
        line_chart(
            {line: (at, values) for line, values in worth.items()},
            title=f"worth of the next experiment, in units of {target}",
            size=FULL_WIDTH,
            x_max=campaign.spent,
        )
    )
    return "".join(charts)


def _spend(campaign: Campaign, steps: tuple[Step, ...]) -> str:
    budget = campaign.settings.budget
    rows = {"spent": f"{campaign.spent:g}", "set aside": f"{campaign.reserved:g}"}
    if budget.cost is not None:
        rows["limit"] = f"{budget.cost:g}"
    rows |= {f"left: {what}": f"{value:.6g}" for what, value in campaign.left.items()}
    by_set: dict[str, list[float]] = {}
    for s in steps:
        by_set.setdefault(" + ".join(s.entry.values), []).append(s.cost)
    spread = "".join(
        f"<tr><td>{escape(names)}</td><td class=n>{len(costs)}</td>"
        f"<td class=n>{sum(costs):g}</td></tr>"
        for names, costs in by_set.items()
    )
    head = "<tr><th>set<th class=n>experiments<th class=n>cost</tr>"
    return _rows(rows) + (f"<table>{head}{spread}</table>" if spread else "")


def _calibration(steps: tuple[Step, ...], scale: float) -> str:
    judged = [s for s in steps if s.inside is not None]
    if not judged:
        return '<p class="note">No outcome has come in yet.</p>'
    inside, n = sum(bool(s.inside) for s in judged), len(judged)
    low, high = usual_count(n)
    wide = float(np.median([s.forecast.high - s.forecast.low for s in judged]))
    return (
        f'<p class="note">{inside} of {n} outcomes were within the 90 % interval that '
        "was forecast for them (of the mean, widened by the noise of the outcome). Of "
        f"honest forecasts it is {low} to {high} of {n} in 19 of 20 campaigns. The "
        f"intervals were {wide:.3g} wide in the median, {wide / scale:.2g} times the "
        "target's standard deviation: the wider, the easier to hit and the less they "
        "say.</p>"
    )


def usual_count(n: int, share: float = 0.9) -> tuple[int, int]:
    """How many of n independent events happen, but for 2.5 % at either end.

    Args:
        n: how many there are.
        share: the probability of each.
    """
    each = [math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(n + 1)]
    upto = list(itertools.accumulate(each))
    low = next(k for k, p in enumerate(upto) if p > 0.025)
    return low, next((k for k, p in enumerate(upto) if p >= 0.975), n)


def _audit(audited: Audit | None) -> str:
    if audited is None:
        return '<p class="note">No audit was asked for (audit: 8 in the config).</p>'
    rows = "".join(
        f"<tr><td>{escape(way)}</td><td class=n>{np.mean(each):.3g}</td>"
        f"<td class=n>{np.max(each):.3g}</td>"
        f"<td class=n>{np.mean(audited.spent[way]):g}</td></tr>"
        for way, each in audited.regret.items()
    )
    count = len(audited.regret["random"])
    head = "<tr><th>way<th class=n>mean regret<th class=n>worst<th class=n>spent</tr>"
    return (
        f'<p class="note">{count} worlds that agree with the data stood in for the '
        "truth, and the whole budget was spent anew in each. In "
        f"{audited.covered:.0%} of them the true mean was in the campaign's 90 % "
        f"interval.</p><table>{head}{rows}</table>"
    )


def _experiments(campaign: Campaign, steps: tuple[Step, ...]) -> str:
    if not steps:
        return '<p class="note">None yet.</p>'
    rows = []
    for s in steps:
        f = s.forecast
        outcome = "" if s.outcome is None else f"{s.outcome:.4g}"
        why = f" ({s.entry.why})" if s.entry.why else ""
        why += "".join(f"; corrected, before: {old}" for old in s.entry.corrected)
        rows.append(
            f"<tr><td class=n>{s.entry.id}</td>"
            f"<td>{escape(str(intervene(**s.entry.values)))}</td>"
            f"<td class=n>{s.cost:g}</td>"
            f"<td class=n>{f.expected:.4g} ({f.low:.4g} to {f.high:.4g})</td>"
            f"<td class=n>{outcome}</td>"
            f"<td>{escape(s.entry.status + why)}</td></tr>"
        )
    head = (
        "<tr><th class=n>#<th>experiment<th class=n>cost<th class=n>forecast"
        "<th class=n>outcome<th>state</tr>"
    )
    return f'<div class="scroll"><table>{head}{"".join(rows)}</table></div>'


def _short(text: str, most: int = 48) -> str:
    return text if len(text) <= most else text[: most // 2] + "…" + text[-most // 2 :]


def _regret(truth: Environment, values: dict[str, float]) -> float:
    return max(truth.regret(intervene(**values)), 0.0)


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _rows(pairs: dict[str, str]) -> str:
    rows = "".join(
        f"<tr><td>{escape(k)}</td><td class=n>{escape(v)}</td></tr>"
        for k, v in pairs.items()
    )
    return f"<table>{rows}</table>"
