"""The HTML of a task's snapshots (its `show`), for a run's report: grids and tables.

Arrays whose last two axes are a grid become a sheet for each recorded step: a row for
each grid of a stack, a column for each name. Numbers become a table with a column for
each step. The page's script adds a slider; without it only the last step is visible.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Num

from frugax.report import Markup, element, fragment
from frugax.watch import Records
from frugax.watch.drawing import sheet_svg

from ._task_checks import RESERVED_STREAMS

# The report shows this many of the recorded steps, evenly spaced: more would make the
# page larger but not clearer.
_MAX_FRAMES, _MAX_COLUMNS = 12, 9
_MAX_OPEN_ROWS = 12  # longer tables are folded


def render_streams(streams: Mapping[str, Records]) -> Markup:
    """Render all streams of a task as HTML; empty without any."""
    own = {k: v for k, v in streams.items() if k not in RESERVED_STREAMS and len(v)}
    recorded = sorted({int(step) for records in own.values() for step in records.steps})
    if not recorded:
        return Markup()
    steps = _select(recorded, _MAX_FRAMES)
    sheets = [_render_sheets(name, own[name], steps) for name in own]
    tables = [_render_table(name, own[name]) for name in own]
    if not any(sheets):
        return fragment(tables)
    last = len(steps) - 1
    slider = element(
        "label",
        "training step ",
        element("output", f"{steps[-1]:,}"),
        element("input", type="range", min=0, max=last, value=last),
        class_="steps",
        # The script shows the slider: without one it would move nothing.
        hidden=True,
    )
    note = element(
        "p",
        f"Recorded at {len(recorded)} training steps, as often as the overhead budget "
        f"allowed; {len(steps)} are drawn.",
        class_="note",
    )
    return fragment(note, element("div", slider, sheets, class_="snapshots"), tables)


def _render_sheets(name: str, records: Records, steps: Sequence[int]) -> Markup:
    """Draw the grids of one stream, one sheet a step; all but the last are hidden."""
    columns = [n for n in records.names if len(records.columns(n)[0].shape) >= 2]
    recorded = {int(step) for step in records.steps}
    sheets = []
    for i, step in enumerate(steps):
        if not columns or step not in recorded:
            continue
        stacks = [_stack(records.value_at(n, step)) for n in columns]
        grids = [
            [stack[row] for stack in stacks if row < len(stack)]
            for row in range(max(map(len, stacks)))
        ]
        sheets.append(
            element(
                "div",
                Markup(sheet_svg(grids, column_names=columns)),
                data_frame=i,
                data_step=f"{step:,}",
                # Without a script the page shows the trained model.
                hidden=step != steps[-1],
            )
        )
    if not sheets:
        return Markup()
    return element("figure", element("b", name), sheets)


def _stack(
    array: Num[np.ndarray, "*stack rows columns"],
) -> Num[np.ndarray, "grids rows columns"]:
    return array.reshape(-1, *array.shape[-2:])


def _render_table(name: str, records: Records) -> Markup:
    """Tabulate the numbers of one stream: a row for each, columns for some steps."""
    steps = _select([int(step) for step in records.steps], _MAX_COLUMNS)
    rows = []
    for column in records.names:
        shape = records.columns(column)[0].shape
        if len(shape) > 1:
            continue
        labels = [column]
        if shape:
            labels = [f"{column}[{i}]" for i in range(shape[0])]
        recorded = set(records.steps_with(column).tolist())
        # One column of cells for each step; empty where the step has no value.
        cells = [
            [f"{v:.4g}" for v in np.atleast_1d(records.value_at(column, step)).tolist()]
            if step in recorded
            else [""] * len(labels)
            for step in steps
        ]
        for label, row in zip(labels, zip(*cells, strict=True), strict=True):
            data = [element("td", cell, class_="n") for cell in row]
            rows.append(element("tr", element("td", label), data))
    if not rows:
        return Markup()
    head = element(
        "tr",
        element("th", "after training step"),
        [element("th", f"{step:,}", class_="n") for step in steps],
    )
    if len(rows) > _MAX_OPEN_ROWS:
        table = element("div", element("table", head, rows), class_="scroll")
        summary = element("summary", f"{name}: {len(rows)} numbers")
        return element("details", summary, table)
    caption = element("caption", name)
    return element("div", element("table", caption, head, rows), class_="scroll")


def _select(steps: Sequence[int], most: int) -> list[int]:
    """Select at most `most` steps, evenly spaced, with the first and the last."""
    at = np.linspace(0, len(steps) - 1, min(most, len(steps))).round().astype(int)
    return [steps[i] for i in at.tolist()]
