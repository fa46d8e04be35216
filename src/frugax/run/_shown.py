"""What a task showed of its model while it was trained, as a part of the report.

Grids stand in a sheet for each recorded step: a row for each grid of a stack, a column
for each name. Numbers stand in a table, a column for each step. The page's script adds
a slider; without it the last step is seen.
"""

import html
from collections.abc import Mapping, Sequence

import numpy as np

from frugax.watch import Records
from frugax.watch.sinks import sheet_svg

from ._check import RESERVED_STREAMS

# So many recorded steps are drawn, the first and the last among them: beyond that the
# page only grows.
_MOST_FRAMES, _MOST_NUMBERS = 12, 9
# A longer table is folded away.
_MOST_ROWS = 12


def shown(streams: Mapping[str, Records]) -> str:
    """All streams of a task as HTML; empty if there are none.

    Args:
        streams: a journal's streams.
    """
    own = {k: v for k, v in streams.items() if k not in RESERVED_STREAMS and len(v)}
    every = sorted({int(step) for records in own.values() for step in records.steps})
    if not every:
        return ""
    steps = _some(every, _MOST_FRAMES)
    sheets = "".join(_sheets(name, own[name], steps) for name in own)
    tables = "".join(_table(name, own[name]) for name in own)
    if not sheets:
        return tables
    last = len(steps) - 1
    slider = (
        f'<label class="steps" hidden>training step <output>{steps[-1]:,}</output>'
        f'<input type="range" min="0" max="{last}" value="{last}"></label>'
    )
    note = (
        f'<p class="note">Recorded at {len(every)} training steps, as often as the '
        f"overhead budget allowed; {len(steps)} are drawn.</p>"
    )
    return f'{note}<div class="album">{slider}{sheets}</div>{tables}'


def _sheets(name: str, records: Records, steps: Sequence[int]) -> str:
    """The grids of one stream, a sheet for each step of which only the last is seen."""
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
        hidden = "" if step == steps[-1] else " hidden"
        sheets.append(
            f'<div data-frame="{i}" data-step="{step:,}"{hidden}>'
            f"{sheet_svg(grids, column_names=columns)}</div>"
        )
    if not sheets:
        return ""
    return f"<figure><b>{html.escape(name)}</b>{''.join(sheets)}</figure>"


def _stack(array: np.ndarray) -> np.ndarray:
    """All grids of an array in one stack: `(grids, rows, columns)`."""
    return array.reshape(-1, *array.shape[-2:])


def _table(name: str, records: Records) -> str:
    """The numbers of one stream: a row for each, a column for each of some steps."""
    steps = _some([int(step) for step in records.steps], _MOST_NUMBERS)
    rows = []
    for column in records.names:
        shape = records.columns(column)[0].shape
        if len(shape) > 1:
            continue
        has = set(records.steps_with(column).tolist())
        values = [
            np.atleast_1d(records.value_at(column, step)) if step in has else None
            for step in steps
        ]
        for i in range(shape[0] if shape else 1):
            label = f"{column}[{i}]" if shape else column
            cells = "".join(
                f"<td class=n>{'' if v is None else f'{float(v[i]):.4g}'}"
                for v in values
            )
            rows.append(f"<tr><td>{html.escape(label)}{cells}</tr>")
    if not rows:
        return ""
    head = "".join(f"<th class=n>{step:,}" for step in steps)
    title = html.escape(name)
    table = f"<tr><th>after training step{head}</tr>{''.join(rows)}</table></div>"
    if len(rows) > _MOST_ROWS:
        return (
            f"<details><summary>{title}: {len(rows)} numbers</summary>"
            f'<div class="scroll"><table>{table}</details>'
        )
    return f'<div class="scroll"><table><caption>{title}</caption>{table}'


def _some(steps: Sequence[int], most: int) -> list[int]:
    """At most so many of them, evenly spaced, with the first and the last."""
    at = np.linspace(0, len(steps) - 1, min(most, len(steps))).round().astype(int)
    return [steps[i] for i in at.tolist()]
