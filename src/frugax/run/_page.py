"""The report of a run: one HTML file that needs nothing else.

Without its script (values under the pointer) the page says the same.
"""

from collections.abc import Sequence

import numpy as np

from frugax.budget import Spend, Verdict, amount, format_bytes, format_seconds
from frugax.report import FULL_WIDTH, escape, line_chart, page
from frugax.watch import Records

from ._bars import bar_chart
from ._look import SCRIPT, STYLE
from ._outcome import Outcome
from ._shown import shown


def report_page(outcome: Outcome, records: Records) -> str:
    """The report as one HTML document.

    Args:
        outcome: the finished run.
        records: the run's journal: one record for each training step, and the streams
            of what its task showed.
    """
    seen = shown(records.streams)
    sections = [
        _heading(outcome),
        _section("Budgets and what was spent", _budgets(outcome.receipt.spends)),
        _section("Training", _training(outcome, records)),
        _section("The model while it was trained", seen) if seen else "",
        _section("Memory of one training step", _memory(outcome)),
        _section("The model file", _model(outcome)),
        _section("Where the time went", _time(outcome)),
        _section("Made with", _rows(outcome.environment)),
    ]
    return page(
        f"{outcome.config.name} - frugax report",
        "".join(sections),
        style=STYLE,
        script=SCRIPT,
    )


def _heading(outcome: Outcome) -> str:
    memory, model = outcome.memory, outcome.model
    after = model.after
    verdict = str(outcome.receipt.verdict)
    tiles = [
        ("verdict", verdict, verdict.split()[0]),
        ("training steps", f"{outcome.steps:,}", ""),
        (
            "of the un-planned memory",
            f"{memory.planned_bytes / max(memory.unplanned_bytes, 1):.0%}",
            "",
        ),
        ("smaller model file", f"{model.original_bytes / model.file_bytes:.2f}x", ""),
        ("wall time", format_seconds(outcome.seconds["total"]), ""),
    ]
    figure = "accuracy" if "accuracy" in after else next(iter(after), None)
    if figure is not None:
        label = f"test {figure}, from the file"
        tiles.insert(1, (label, f"{after[figure]:.4g}", ""))
    shown = "".join(
        f'<div class="tile"><b class="{kind}">{escape(value)}</b>'
        f"<span>{escape(label)}</span></div>"
        for label, value, kind in tiles
    )
    notes = "".join(f'<p class="note">{escape(n)}</p>' for n in outcome.notes)
    return (
        f"<h1>{escape(outcome.config.name)}</h1>"
        f'<p class="sub">{escape(model.summary)}.</p>{notes}'
        f'<div class="tiles">{shown}</div>'
    )


def _budgets(spends: Sequence[Spend]) -> str:
    if not spends:
        return '<p class="note">No budget was stated.</p>'
    rows = []
    for s in spends:
        noise = f" ± {amount(s.noise, s.unit)}" if s.noise else ""
        rows.append(
            f"<tr><td>{escape(s.name)}</td>"
            f"<td>{_pill(s.verdict)}</td><td class=n>{amount(s.limit, s.unit)}</td>"
            f"<td class=n>{amount(s.predicted, s.unit)}</td>"
            f"<td class=n>{amount(s.measured, s.unit)}{noise}</td></tr>"
        )
    sources = "".join(
        f"<li><b>{escape(s.name)}</b>: {escape(s.source)}</li>" for s in spends
    )
    numbers = "".join(f"<th class=n>{n}" for n in ("limit", "predicted", "measured"))
    head = f"<th>budget<th>verdict{numbers}"
    return (
        f'<div class="scroll"><table><tr>{head}</tr>{"".join(rows)}</table></div>'
        f"<details><summary>How each figure was measured</summary><ul>{sources}</ul>"
        "</details>"
    )


def _training(outcome: Outcome, records: Records) -> str:
    charts = [
        line_chart({"loss": _series(records, "loss")}, title="loss", size=FULL_WIDTH)
    ]
    lines = {}
    if "accuracy" in records:
        lines["training batch"] = _series(records, "accuracy")
    tests = [(s, e["accuracy"]) for s, e in outcome.evaluations if "accuracy" in e]
    if tests:
        x, y = np.array(tests, dtype=np.float64).T
        lines["test set"] = (x, y)
    if lines:
        charts.append(line_chart(lines, title="accuracy", size=FULL_WIDTH))
    return "".join(charts)


def _series(records: Records, name: str) -> tuple[np.ndarray, np.ndarray]:
    if name not in records:
        return np.empty(0), np.empty(0)
    return (
        records.steps_with(name).astype(np.float64),
        records[name].astype(np.float64),
    )


def _memory(outcome: Outcome) -> str:
    m = outcome.memory
    kind = f"{m.kind} bytes"
    bars = [(f"un-planned, {kind}", float(m.unplanned_bytes), "plain")]
    bars.append((f"planned, {kind}", float(m.planned_bytes), "s0"))
    chart = bar_chart(
        bars,
        unit="bytes",
        limit=None if m.limit_bytes is None else float(m.limit_bytes),
    )
    parts = {
        "arguments (weights, optimiser, batch)": format_bytes(m.argument_bytes),
        "results": format_bytes(m.output_bytes),
        "of these in place of donated arguments": format_bytes(m.alias_bytes),
        "temporaries": format_bytes(m.temp_bytes),
    }
    plan = (
        f"<details><summary>The plan</summary><pre>{escape(m.plan)}</pre></details>"
        if m.plan
        else '<p class="note">The step fits without a plan: nothing is recomputed.</p>'
    )
    note = '<p class="note">As XLA counts them in the compiled step that ran.</p>'
    return note + chart + _rows(parts) + plan


def _model(outcome: Outcome) -> str:
    m = outcome.model
    chart = bar_chart(
        [
            ("weights in memory", float(m.original_bytes), "plain"),
            (m.file_name, float(m.file_bytes), "s2"),
        ],
        unit="bytes",
    )
    rows = {"weights": f"{m.weights:,}", "relative error": f"{m.rel_error:.4g}"}
    table = _rows(rows)
    if m.before:
        figures = "".join(
            f"<tr><td>{escape(k)}</td><td class=n>{m.before[k]:.5g}</td>"
            f"<td class=n>{m.after[k]:.5g}</td>"
            f"<td class=n>{m.after[k] - m.before[k]:+.3g}</td></tr>"
            for k in m.before
        )
        head = (
            "<th>test set<th class=n>trained<th class=n>from the file<th class=n>change"
        )
        table += f"<table><tr>{head}</tr>{figures}</table>"
    tensors = escape(m.tensors)
    return (
        f"{chart}{table}<details><summary>Every tensor</summary>"
        f"<pre>{tensors}</pre></details>"
    )


def _time(outcome: Outcome) -> str:
    parts = [(k, v) for k, v in outcome.seconds.items() if k != "total"]
    rest = outcome.seconds["total"] - sum(v for _, v in parts)
    bars = [(k, v, "s3") for k, v in parts] + [("everything else", rest, "plain")]
    return bar_chart(bars, unit="seconds")


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _rows(pairs: dict[str, str]) -> str:
    rows = "".join(
        f"<tr><td>{escape(k)}</td><td class=n>{escape(v)}</td></tr>"
        for k, v in pairs.items()
    )
    return f"<table>{rows}</table>"


def _pill(verdict: Verdict) -> str:
    return f'<span class="verdict {str(verdict).split()[0]}">{verdict}</span>'
