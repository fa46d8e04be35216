"""The HTML report of a campaign: recommendation, causal graph, experiments, costs."""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from xml.etree import ElementTree as ET

import numpy as np
import scipy.stats

from frugax.causal.environments import Environment
from frugax.causal.scm import intervene
from frugax.report import (
    CHART_SCRIPT,
    PAGE_STYLE,
    Markup,
    element,
    fragment,
    line_chart,
    page,
    receipt_table,
    svg_picture,
)

from ._advice import StopAdvice
from ._campaign import Campaign
from ._experiments import ExperimentRecord, Forecast, add_costs, add_prices
from ._graph_svg import MIN_PROB, draw_graph
from ._settings import CampaignSettings

__all__ = [
    "ExperimentOutcome",
    "draw_graph",
    "graph_svg",
    "render_calibration",
    "render_heading",
    "report_page",
    "summarize_experiments",
]

_GRAPH_STYLE = """
.graph { overflow-x:auto; } .graph text { font-size:13px; fill:var(--ink); }
.graph .node rect { fill:var(--card); stroke:var(--soft); stroke-width:1.3; }
.graph .node.set rect { stroke:var(--s0); stroke-width:2; }
.graph .node.target rect { fill:var(--s2); stroke:var(--s2); }
.graph .node.target text { fill:var(--card); font-weight:600; }
.graph .edge { fill:none; stroke:var(--ink); } .graph .tip { fill:var(--ink); }
.graph .odds { font-size:11px; fill:var(--soft); stroke:var(--card);
 stroke-width:3px; paint-order:stroke; }
"""
_STYLE = (
    PAGE_STYLE
    + _GRAPH_STYLE
    + """
main { max-width:900px; }
.tiles { display:flex; flex-wrap:wrap; } .tile b { overflow-wrap:normal; }
.tiles > .tile { flex:1 1 0; min-width:120px; }
.tiles > .tile.wide { min-width:180px; } .tiles > .tile.whole { min-width:320px; }
"""
)
# Of a missing cause of two variables; without one it was 0.06 at most, and with one 0.3
# or more, in four campaigns each (tests/causal/campaign/test_report.py has two).
_MIN_HIDDEN_PROB = 0.2
_MAX_LETTERS = 48  # longer values of a tile are cut in the middle
_WIDE_LETTERS = 9  # longer values of a tile get more room
_WHOLE_LETTERS = 17  # longer ones still more


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentOutcome:
    """An experiment beside its forecast."""

    record: ExperimentRecord
    forecast: Forecast
    cost: float
    spent_before: float
    mean: float | None
    inside: bool | None  # in the 90 % interval, widened by the error of the mean


def summarize_experiments(campaign: Campaign) -> tuple[ExperimentOutcome, ...]:
    """Compare all experiments with their forecasts, in the order of the questions."""
    budget, table = campaign.settings.budget, campaign.samples
    target = campaign.settings.target
    row_std = campaign.infer().row_std
    found: list[ExperimentOutcome] = []
    for record in campaign.experiments:
        f, mean, inside, cost = record.forecast, None, None, 0.0
        if f is None:
            continue
        rows = np.empty(0)
        if table is not None and target in table.variables:
            rows = campaign.get_rows(record)[target].astype(float)
            rows = rows[np.isfinite(rows)]
        if len(rows):
            mean = float(rows.mean())
            error = 1.645 * row_std / np.sqrt(len(rows))
            half = f.expected - f.low
            if mean > f.expected:
                half = f.high - f.expected
            # The forecast is of the true mean; the outcome differs from it by noise.
            inside = bool(abs(mean - f.expected) <= np.hypot(half, error))
        if record.status != "refunded":
            cost = float(add_prices(budget, record.values))
        before = campaign.experiments[: record.id]
        # Pending experiments count as spent: they are paid as soon as they are asked.
        spent = add_costs(budget, before, "pending", "answered", "failed")
        found.append(
            ExperimentOutcome(
                record=record,
                forecast=f,
                cost=cost,
                spent_before=float(spent),
                mean=mean,
                inside=inside,
            )
        )
    return tuple(found)


def report_page(
    name: str,
    campaign: Campaign,
    advice: StopAdvice,
    *,
    truth: Environment | None = None,
) -> str:
    """Render the report as one HTML document.

    Args:
        name: name of the campaign.
        campaign: the campaign.
        advice: whether to go on.
        truth: the problem, if it is a known one; gives the regret.
    """
    outcomes = summarize_experiments(campaign)
    sections = {
        "What causes what": _render_graph(campaign),
        "What was known when": _render_course(campaign, outcomes, truth),
        "What it cost": _render_costs(campaign, outcomes),
        "Were the forecasts right?": render_calibration(
            outcomes, campaign.infer().scale
        ),
        "Every experiment": _render_experiments(outcomes, campaign.settings),
    }
    body = [
        element("section", element("h2", title), content)
        for title, content in sections.items()
    ]
    return page(
        f"{name} - frugax campaign",
        fragment(render_heading(name, campaign, advice, truth), body),
        style=_STYLE,
        script=CHART_SCRIPT,
    )


def render_heading(
    name: str, campaign: Campaign, advice: StopAdvice, truth: Environment | None
) -> Markup:
    """Render the title, what to do next, the recommendation and the rest of money."""
    settings = campaign.settings
    aim = "small" if settings.minimize else "large"
    about = (
        f"Goal: a {aim} {settings.target}; budget: {settings.budget}. Advice: {advice}"
    )
    steps = [_describe_step(one, settings) for one in campaign.pending]
    if not steps and not advice.stop:
        steps = ["ask for another experiment (ask, or frugax causal run --resume)."]
    elif not steps:
        steps = ["no experiment: set what is recommended."]
    # `recommend` raises before the target was measured, yet the costs and questions of
    # such a campaign are worth a report.
    tiles: list[Markup] = []
    first: list[Markup] = []
    if campaign.measured:
        best = campaign.recommend()
        first = [
            _render_tile("recommended", settings.describe(best.value)),
            _render_tile(f"expected {settings.target}", f"{best.expected:.4g}"),
            _render_tile("90 % interval of it", f"{best.low:.4g} to {best.high:.4g}"),
        ]
        tiles.append(
            _render_tile("as good as the best", f"{best.prob_optimal:.0%} sure")
        )
        if best.nothing is not None and best.prob_better is not None:
            tiles.append(_render_tile("doing nothing gives", f"{best.nothing:.4g}"))
            if best.actions:
                better = f"{best.prob_better:.0%} sure"
                tiles.append(_render_tile("better than nothing", better))
        if campaign.unmeasured:
            tiles.append(_render_tile("never measured", ", ".join(campaign.unmeasured)))
        elif settings.constraints:
            tiles.append(
                _render_tile("keeps the constraints", f"{best.prob_feasible:.0%} sure")
            )
        if truth is not None:
            regret = _compute_regret(truth, best.value)
            tiles.append(_render_tile("true regret", f"{regret:.3g}"))
    whole = settings.budget.cost or 0.0
    names = {"n": "experiments left", "cost": f"left of {whole:g}"}
    for what, value in campaign.left.items():
        tiles.append(_render_tile(names.get(what, f"{what} left"), f"{value:.6g}"))
    return fragment(
        element("h1", name),
        element("p", about, class_="sub"),
        [element("p", element("b", "Do next: "), step) for step in steps],
        [element("div", row, class_="tiles") for row in (first, tiles) if row],
    )


def _describe_step(record: ExperimentRecord, settings: CampaignSettings) -> str:
    text = f"experiment {record.id}, {settings.describe(record.values)}"
    if (f := record.forecast) is None:
        return f"{text}."
    return (
        f"{text}; {f.expected:.4g} ({f.low:.4g} to {f.high:.4g}) is expected. Its "
        f"answer should improve the recommendation by {f.worth:.3g}."
    )


def _render_tile(label: str, value: str) -> Markup:
    short, half = value, _MAX_LETTERS // 2
    if len(value) > _MAX_LETTERS:
        short = value[:half] + "…" + value[-half:]
    # A value such as "x = 2" must not break over lines, nor a number after its sign.
    short = re.sub(" (=|to) ", "\N{NO-BREAK SPACE}\\1\N{NO-BREAK SPACE}", short)
    short = re.sub(r"-(?=[\d.])", "\N{MINUS SIGN}", short)
    kind = "tile"
    if len(value) > _WHOLE_LETTERS:
        kind = "tile whole"
    elif len(value) > _WIDE_LETTERS:
        kind = "tile wide"
    return element(
        "div",
        element("b", short, title=value),
        element("span", label),
        class_=kind,
    )


def _render_note(text: str) -> Markup:
    return element("p", text, class_="note")


def graph_svg(campaign: Campaign) -> str:
    """Draw the causes that a campaign believes in, as an SVG document.

    Args:
        campaign: with observations or answers.

    Raises:
        ValueError: nothing was measured yet.
    """
    graph = ET.fromstring(_draw_believed(campaign))
    *_, width, height = map(float, graph.attrib["viewBox"].split())
    graph.attrib.update(x="16", y="16", width=f"{width}", height=f"{height}")
    inner = Markup(ET.tostring(graph, encoding="unicode"))
    return svg_picture(
        f"The causes of {campaign.settings.target}",
        element("g", inner, class_="chart graph"),
        width=width + 32,
        height=height + 32,
        description=graph.attrib["aria-label"],
        style=_GRAPH_STYLE,
    )


def _draw_believed(campaign: Campaign) -> Markup:
    inference, settings = campaign.infer(), campaign.settings
    return draw_graph(
        inference.names,
        inference.ensemble.edges,
        target=settings.target,
        settable=frozenset(settings.variables),
    )


def _render_graph(campaign: Campaign) -> Markup:
    inference = campaign.infer()
    names, edges = inference.names, inference.ensemble.edges
    likely = sorted(np.argwhere(edges >= MIN_PROB).tolist(), key=lambda e: -edges[*e])
    rows = [(names[a], names[b], f"{edges[a, b]:.0%}") for a, b in likely]
    parts = [
        element("figure", _draw_believed(campaign), class_="chart graph"),
        _render_note(
            "Figures are probabilities; an edge without one is certain, and edges "
            "below 5 % are not drawn. Blue variables may be set; the green one is "
            "the target."
        ),
    ]
    if rows:
        parts.append(_render_table(("cause", "effect", "#probability"), rows))
    hidden = np.triu(inference.ensemble.hidden)
    if pairs := [
        f"{names[a]} and {names[b]} ({hidden[a, b]:.0%})"
        for a, b in np.argwhere(hidden >= _MIN_HIDDEN_PROB).tolist()
    ]:
        parts.append(
            _render_note(
                "A cause of two variables may be missing from the data, as they go "
                "together less where one of them was set: "
                f"{', '.join(pairs)}. Figures are probabilities."
            )
        )
    return fragment(parts)


def _render_course(
    campaign: Campaign,
    outcomes: Sequence[ExperimentOutcome],
    truth: Environment | None,
) -> Markup:
    if not outcomes:
        return _render_note("No experiment was asked for yet.")
    target, before = campaign.settings.target, [o.spent_before for o in outcomes]
    cost = before.copy()
    ends = [
        (o.forecast.best_expected, o.forecast.best_low, o.forecast.best_high)
        for o in outcomes
    ]
    advised = [o.forecast.best for o in outcomes]
    if campaign.measured:
        best = campaign.recommend()
        cost.append(campaign.spent)
        ends.append((best.expected, best.low, best.high))
        advised.append(best.value)

    def chart(title: str, x: list[float], lines: Mapping[str, Iterable[float]]) -> str:
        series = {n: (np.array(x), np.array([*values])) for n, values in lines.items()}
        return line_chart(
            series,
            title=title,
            is_wide=True,
            x_max=campaign.spent,
            dashed=("low", "high"),
        ).figure()

    charts = [
        chart(
            f"expected {target} under the recommendation, by the cost spent",
            cost,
            dict(
                zip(
                    ("recommended", "low", "high"), zip(*ends, strict=True), strict=True
                )
            ),
        )
    ]
    if truth is not None:
        regrets = [_compute_regret(truth, values) for values in advised]
        charts.append(chart("true regret", cost, {"regret": regrets}))
    gains = {"worth": [o.forecast.worth for o in outcomes]}
    title = f"worth of the next experiment, in units of {target}"
    charts.append(chart(title, before, gains))
    return fragment(charts)


def _render_costs(campaign: Campaign, outcomes: Sequence[ExperimentOutcome]) -> Markup:
    left = ", ".join(f"{what} {value:.6g}" for what, value in campaign.left.items())
    receipt = receipt_table(campaign.receipt.spends)
    note = _render_note(f"Set aside: {campaign.reserved:g}. Left: {left}.")
    by_set: dict[str, list[float]] = {}
    for o in outcomes:
        by_set.setdefault(" + ".join(o.record.values), []).append(o.cost)
    if not by_set:
        return fragment(receipt, note)
    rows = [
        (variables, f"{len(costs)}", f"{sum(costs):g}")
        for variables, costs in by_set.items()
    ]
    return fragment(
        receipt, note, _render_table(("set", "#experiments", "#cost"), rows)
    )


def render_calibration(outcomes: Sequence[ExperimentOutcome], scale: float) -> Markup:
    """Render the number of outcomes inside of their forecasts."""
    judged = [o for o in outcomes if o.inside is not None]
    if not judged:
        return _render_note("No outcome has come in yet.")
    inside, n = sum(bool(o.inside) for o in judged), len(judged)
    # The central 95 % of the number of n independent events. Exact quantiles: with ten
    # outcomes at probability .9 a normal approximation would go beyond ten.
    low, high = map(int, scipy.stats.binom.ppf((0.025, 0.975), n, 0.9))
    # Wide intervals win any test of coverage, so their width belongs beside it:
    # sharpness subject to calibration (Gneiting, Balabdaoui & Raftery 2007, J. Royal
    # Statistical Society B 69:243-268).
    width = float(np.median([o.forecast.high - o.forecast.low for o in judged]))
    return _render_note(
        f"{inside} of {n} outcomes were within the 90 % intervals of their forecasts "
        "(of the mean, widened by the noise of the outcome). With calibrated forecasts "
        f"it is {low} to {high} of {n} in 19 of 20 campaigns. The median width of the "
        f"intervals was {width:.3g}, {width / scale:.2g} times the target's standard "
        "deviation: the wider they are, the easier they are to hit, and the less they "
        "say."
    )


def _render_experiments(
    outcomes: Sequence[ExperimentOutcome], settings: CampaignSettings
) -> Markup:
    if not outcomes:
        return _render_note("None yet.")
    rows: list[tuple[str, ...]] = []
    for o in outcomes:
        f, record = o.forecast, o.record
        state = record.status
        if record.reason:
            state += f" ({record.reason})"
        state += "".join(f"; corrected, before: {old}" for old in record.corrections)
        rows.append(
            (
                f"{record.id}",
                settings.describe(record.as_set),
                f"{o.cost:g}",
                f"{f.expected:.4g} ({f.low:.4g} to {f.high:.4g})",
                "" if o.mean is None else f"{o.mean:.4g}",
                state,
            )
        )
    header = ("##", "experiment", "#cost", "#forecast", "#outcome", "state")
    return element("div", _render_table(header, rows), class_="scroll")


def _render_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """Render a table; columns whose header starts with # are numbers, set right."""
    classes = ["n" if title.startswith("#") else None for title in header]
    titles = [
        element("th", title.removeprefix("#"), class_=kind)
        for title, kind in zip(header, classes, strict=True)
    ]
    body = [
        element(
            "tr",
            [
                element("td", cell, class_=kind, data_label=title.removeprefix("#"))
                for title, cell, kind in zip(header, row, classes, strict=True)
            ],
        )
        for row in rows
    ]
    return element("table", element("tr", titles), body, class_="stack")


def _compute_regret(truth: Environment, values: dict[str, float]) -> float:
    # The optimum is found numerically, so an intervention may be slightly better.
    return max(truth.regret(intervene(**values)), 0.0)
