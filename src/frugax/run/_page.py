"""The HTML report of a run, `report.html`: one file that needs nothing else.

Without its script, which shows values under the pointer, the page says the same.
"""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import yaml
from jaxtyping import Float

from frugax.budget import format_bytes, format_seconds, to_plain
from frugax.report import (
    Bar,
    Markup,
    bar_chart,
    element,
    fragment,
    line_chart,
    number_cells,
    page,
    receipt_table,
)
from frugax.watch import Records

from ._outcome import Outcome
from ._snapshot_html import render_streams
from ._style import SCRIPT, STYLE

_MAX_CHARTS = 12  # of figures; a task may report hundreds


def report_page(outcome: Outcome, records: Records) -> str:
    """Render the report as one HTML document.

    Args:
        outcome: the finished run.
        records: the run's journal: one record for each training step, and the streams
            that the task recorded.
    """
    sections = {
        "Budgets and receipt": receipt_table(outcome.receipt.spends),
        "Training": _render_training(outcome, records),
        "The model while it was trained": render_streams(records.streams),
        "Memory of one training step": _render_memory(outcome),
        "The model file": _render_model(outcome),
        "Where the time went": _render_time(outcome),
        "Config": _fold("The whole config", _dump_config(outcome)),
        "Versions and machine": _render_pairs(outcome.environment),
    }
    body = [
        element("section", element("h2", title), content)
        for title, content in sections.items()
        if content
    ]
    # A figure may be rounded here, or left out; this tells the receipt from any other.
    origin = element(
        "p", f"Drawn from the receipt with the SHA-256 {outcome.digest}.", class_="note"
    )
    return page(
        f"{outcome.config.name} - frugax report",
        fragment(_render_heading(outcome), body, origin),
        style=STYLE,
        script=SCRIPT,
    )


def _render_heading(outcome: Outcome) -> Markup:
    memory, model = outcome.memory, outcome.model
    verdict = str(outcome.receipt.verdict)
    # A small step may need no temporaries at all.
    share = memory.planned_bytes / max(memory.unplanned_bytes, 1)
    tiles = {
        "verdict": verdict,
        "training steps": f"{outcome.steps:,}",
        "of the memory without a plan": f"{share:.0%}",
        "smaller model file": f"{model.original_bytes / model.file_bytes:.2f}x",
        "wall time": format_seconds(outcome.seconds["total"]),
    }
    # The accuracy if there is one, otherwise the first figure of the evaluation.
    for figure in sorted(model.after, key=lambda name: name != "accuracy")[:1]:
        tiles[f"test {figure}, from the file"] = _format(model.after[figure], ".4g")
    return fragment(
        element("h1", outcome.config.name),
        element("p", f"{model.summary}.", class_="sub"),
        [element("p", note, class_="note") for note in outcome.notes],
        element(
            "div",
            [
                element(
                    "div",
                    element("b", value, class_=value.split()[0]),
                    element("span", label),
                    class_="tile",
                )
                for label, value in tiles.items()
            ],
            class_="tiles",
        ),
    )


def _render_training(outcome: Outcome, records: Records) -> Markup:
    evaluated = {name for _, figures in outcome.evaluations for name in figures}
    # The loss first; every other figure of training or testing follows by name.
    names = sorted(
        {*records.names, *evaluated} - {"seconds"}, key=lambda n: (n != "loss", n)
    )
    charts = []
    for name in names[:_MAX_CHARTS]:
        lines = {}
        if name in records:
            lines["training batch"] = _read_series(records, name)
        tests = [(s, e[name]) for s, e in outcome.evaluations if name in e]
        if tests:
            steps, values = np.array(tests, dtype=np.float64).T
            lines["test set"] = (steps, values)
        title = name if len(lines) > 1 else f"{name}, {next(iter(lines), 'empty')}"
        charts.append(line_chart(lines, title=title).figure())
    rates = np.array(outcome.learning_rates, dtype=np.float64).reshape(-1, 2)
    if len(rates):
        line = {"learning rate": (rates[:, 0], rates[:, 1])}
        charts.append(line_chart(line, title="learning rate").figure())
    if (throughput := _compute_throughput(records)) is not None:
        chart = line_chart({"steps": throughput}, title="steps per second")
        charts.append(chart.figure())
    note = Markup()
    if len(names) > _MAX_CHARTS:
        left = f"{len(names) - _MAX_CHARTS} more figures are in the journal."
        note = element("p", left, class_="note")
    return fragment(element("div", charts, class_="charts"), note)


def _compute_throughput(
    records: Records,
) -> tuple[Float[np.ndarray, " parts"], Float[np.ndarray, " parts"]] | None:
    """Return steps per second over parts of the training; None if it is too short."""
    steps, seconds = _read_series(records, "seconds")
    if len(steps) < 2:
        return None
    # A resumed part starts at an earlier second than the one before it ended.
    elapsed = np.cumsum(np.maximum(np.diff(seconds, prepend=seconds[0]), 0.0))
    # Python waits for the device four times a second: shorter parts would show that.
    parts = min(40, int(elapsed[-1] / 2.0))
    if parts < 4:
        return None
    ends = np.linspace(0.0, elapsed[-1], parts + 1)
    at = np.unique(np.searchsorted(elapsed, ends).clip(max=len(steps) - 1))
    return steps[at][1:], np.diff(steps[at]) / np.diff(elapsed[at])


def _read_series(
    records: Records, name: str
) -> tuple[Float[np.ndarray, " steps"], Float[np.ndarray, " steps"]]:
    # A damaged journal costs its curves; the rest of the report is still worth having.
    if name not in records:
        return np.empty(0), np.empty(0)
    steps = records.steps_with(name).astype(np.float64)
    return steps, records[name].astype(np.float64)


def _render_memory(outcome: Outcome) -> Markup:
    m = outcome.memory
    bars = [
        _bar(f"without a plan, {m.kind} bytes", m.unplanned_bytes, "faint"),
        _bar(f"planned, {m.kind} bytes", m.planned_bytes, "s0"),
    ]
    bars = [dataclasses.replace(bar, limit=m.limit_bytes) for bar in bars]
    plan = element(
        "p", "The step fits without a plan: nothing is recomputed.", class_="note"
    )
    if m.plan:
        plan = _fold("The plan", m.plan)
    return fragment(
        element(
            "p", "As XLA counts them in the compiled step that ran.", class_="note"
        ),
        bar_chart(bars, title="memory of the step", unit="bytes").figure(),
        _render_pairs(
            {
                "arguments (weights, optimiser, batch)": format_bytes(m.argument_bytes),
                "results": format_bytes(m.output_bytes),
                "of these in place of donated arguments": format_bytes(m.alias_bytes),
                "temporaries": format_bytes(m.temp_bytes),
            }
        ),
        plan,
    )


def _render_model(outcome: Outcome) -> Markup:
    m = outcome.model
    bars = [
        _bar("weights in memory", m.original_bytes, "faint"),
        _bar(m.file_name, m.file_bytes, "s2"),
    ]
    facts = {"weights": f"{m.weights:,}", "relative error": f"{m.rel_error:.4g}"}
    tables = [_render_pairs(facts)]
    if m.before:
        heads = ("trained", "from the file", "change")
        head = element(
            "tr",
            element("th", "test set"),
            [element("th", text, class_="n") for text in heads],
        )
        rows = [
            element(
                "tr",
                element("td", name),
                number_cells(
                    _format(before, ".5g"),
                    _format(m.after[name], ".5g"),
                    _format_change(m.after[name] - before, m.noise.get(name)),
                    labels=heads,
                ),
            )
            for name, before in m.before.items()
        ]
        tables.append(element("table", head, rows, class_="stack"))
    return fragment(
        bar_chart(bars, title="size of the model", unit="bytes").figure(),
        tables,
        _fold("Every tensor", m.tensors),
    )


def _format(value: float, form: str) -> str:
    # A receipt has null for infinities too, and the page shows the receipt's values.
    return f"{value:{form}}" if math.isfinite(value) else "not finite"


def _format_change(change: float, noise: float | None) -> str:
    if noise is None:
        return _format(change, "+.3g")
    return f"{_format(change, '+.3g')} ± {_format(noise, '.2g')}"


def _render_time(outcome: Outcome) -> Markup:
    parts = {k: v for k, v in outcome.seconds.items() if k != "total"}
    step_time = _render_pairs({"one step": str(outcome.step_time)})
    # Parts are measured one by one, so some time belongs to none. With it the bars add
    # up.
    rest = outcome.seconds["total"] - sum(parts.values())
    bars = [_bar(name, seconds, "s3") for name, seconds in parts.items()]
    bars.append(_bar("everything else", rest, "faint"))
    chart = bar_chart(bars, title="time of each part", unit="seconds").figure()
    return fragment(chart, step_time)


def _bar(label: str, value: float, colour: str) -> Bar:
    return Bar(label=label, parts=((label, value, colour),))


def _dump_config(outcome: Outcome) -> str:
    return yaml.safe_dump(to_plain(outcome.config), sort_keys=False, allow_unicode=True)


def _render_pairs(pairs: Mapping[str, str]) -> Markup:
    rows = [
        element("tr", element("td", name), number_cells(value))
        for name, value in pairs.items()
    ]
    return element("table", rows, class_="pairs")


def _fold(summary: str, text: str) -> Markup:
    return element("details", element("summary", summary), element("pre", text))
