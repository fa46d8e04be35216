"""The page of a report: its sections, each readable without a script."""

import base64
import json
import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from frugax.budget import Receipt, Spend, amount, format_seconds, format_share
from frugax.report import escape, line_chart, page

from ._gathered import Film, Gathered, Table
from ._numbers import Plain, dropped
from ._palettes import PALETTES, Palette, ramp
from ._picture import Picture
from ._report_look import STYLE
from ._report_script import SCRIPT
from ._svg import grid_svg

# The code of a cell that is not known; no digit and no level of the ramp has it.
_UNKNOWN = 255
_OF_ONE = {"mean", "min", "max"}
_PALETTE_NAMES = {
    "arc": "ARC colours",
    "colour_blind": "colour-blind safe",
    "high_contrast": "high contrast",
}


def report_page(
    found: Gathered,
    *,
    title: str,
    palette: Palette,
    seconds: float,
    receipt: Receipt | None,
) -> str:
    """The report as one HTML document.

    Args:
        found: what it shows.
        title: its heading.
        palette: colours of grids at first.
        seconds: how long the run has taken.
        receipt: budgets and what was spent; None if there is none yet.
    """
    sections = [
        _section("Budgets and what was spent", _budgets(receipt)),
        _section("Frames", _films(found.films, palette)),
        _section("Curves", _curves(found)),
        *(_section(name, _table(table)) for name, table in found.tables.items()),
        _section("Records given and dropped", _losses(found.status)),
    ]
    body = _heading(found, title, seconds, receipt) + "".join(sections)
    return page(f"{title} - frugax", body, style=STYLE, script=SCRIPT)


def _section(title: str, body: str) -> str:
    if not body:
        return ""
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _heading(
    found: Gathered, title: str, seconds: float, receipt: Receipt | None
) -> str:
    tiles: list[tuple[str, str, str]] = []
    if receipt is not None:
        verdict = str(receipt.verdict)
        tiles.append(("budgets", verdict, verdict.split()[0]))
    if found.last_step is not None:
        tiles.append(("last step", f"{found.last_step:,}", ""))
    tiles += [
        (f"{name}, at the end", f"{found.curves[name].points()[1][-1]:.4g}", "")
        for name in ("loss", "accuracy")
        if name in found.curves
    ]
    if "overhead" in found.status:
        limit = found.status.get("budget")
        spent = found.status["overhead"]
        of = "" if limit is None else f" of {format_share(limit)}"
        kind = "" if limit is None else "kept" if spent <= limit else "broken"
        tiles.append((f"overhead{of}", format_share(spent), kind))
    lost = dropped(found.status)
    if lost:
        count = sum(n for _, n in lost.values())
        summaries = lost.get("summary", (0, 0))[1]
        kind = "broken" if summaries else "cannot" if count else "kept"
        tiles.append(("records dropped", f"{count:,}", kind))
    tiles.append(("time", format_seconds(seconds), ""))
    shown = "".join(
        f'<div class="tile"><b class="{kind}">{escape(value)}</b>'
        f"<span>{escape(label)}</span></div>"
        for label, value, kind in tiles
    )
    return (
        f'<h1>{escape(title)}</h1><p class="sub">{found.records:,} records watched by '
        f'frugax.</p><div class="tiles">{shown}</div>'
    )


def _budgets(receipt: Receipt | None) -> str:
    if receipt is None or not receipt.spends:
        return ""
    names = ("limit", "predicted", "measured")
    numbers = "".join(f'<th class="n">{name}</th>' for name in names)
    rows = "".join(_spend(s) for s in receipt.spends)
    sources = "".join(
        f"<li><b>{escape(s.name)}</b>: {escape(s.source)}</li>" for s in receipt.spends
    )
    return (
        f'<div class="scroll"><table><tr><th>budget</th><th>verdict</th>{numbers}</tr>'
        f"{rows}</table></div><details><summary>How each figure was measured</summary>"
        f"<ul>{sources}</ul></details>"
    )


def _spend(s: Spend) -> str:
    noise = f" ± {amount(s.noise, s.unit)}" if s.noise else ""
    return (
        f"<tr><td>{escape(s.name)}</td><td>"
        f'<span class="verdict {str(s.verdict).split()[0]}">{s.verdict}</span></td>'
        f'<td class="n">{amount(s.limit, s.unit)}</td>'
        f'<td class="n">{amount(s.predicted, s.unit)}</td>'
        f'<td class="n">{amount(s.measured, s.unit)}{noise}</td></tr>'
    )


def _films(films: Mapping[str, Film], palette: Palette) -> str:
    if not films:
        return ""
    data = {
        "palettes": {k: list(v) for k, v in PALETTES.items()},
        "ramp": ["#" + colour.tobytes().hex() for colour in ramp()],
    }
    choices = "".join(
        f'<option value="{key}"{" selected" if key == palette else ""}>{name}</option>'
        for key, name in _PALETTE_NAMES.items()
    )
    options = (
        '<div class="options needs-script">'
        f'<label>Colours <select class="palette">{choices}</select></label>'
        '<label><input type="checkbox" class="numbers"> numbers</label>'
        '<label><input type="checkbox" class="changes"> frame what changed</label>'
        '<span class="note keys"><kbd>←</kbd> <kbd>→</kbd> step, <kbd>Home</kbd> '
        "<kbd>End</kbd>, <kbd>space</kbd> plays</span></div>"
    )
    drawn = "".join(_film(name, film, palette) for name, film in films.items())
    return f'{options}<div class="films">{drawn}</div>{_json("film-colours", data)}'


def _film(name: str, film: Film, palette: Palette) -> str:
    frames = film.all()
    step, newest = frames[-1]
    of = f" of {film.seen:,}" if len(frames) < film.seen else ""
    shown = f"{len(frames):,}{of} frame{'' if film.seen == 1 else 's'}"
    notes = f", {newest.note}" if newest.note else ""
    still = grid_svg(
        _again(newest),
        mask=newest.known,
        palette=palette,
        title=f"{name}, step {step}",
    )
    last = len(frames) - 1
    label = escape(name)
    return (
        f'<div class="film" tabindex="0" role="group" aria-label="film {label}">'
        f"<h3>{label} <small>{shown}{escape(notes)}</small></h3>"
        f'<div class="stage"><noscript>{still}</noscript>'
        f'<canvas class="screen needs-script" role="img"></canvas></div>'
        '<div class="controls needs-script">'
        '<button type="button" class="play" aria-label="play">▶</button>'
        f'<input type="range" min="0" max="{last}" value="{last}" '
        f'aria-label="frame of {label}"><output></output></div>'
        '<canvas class="strip needs-script" aria-hidden="true"></canvas>'
        f"{_json('film-data', packed(frames))}</div>"
    )


def packed(frames: Sequence[tuple[int, Picture]]) -> dict[str, object]:
    """Frames of one kind as the page's script reads them.

    All have the size of the largest; what lies outside of one is unknown.

    Args:
        frames: (step, picture); at least one.
    """
    first = frames[0][1]
    rows = max(shown.rows for _, shown in frames)
    columns = max(shown.columns for _, shown in frames)
    channels = first.codes.shape[2:]
    codes = np.full((len(frames), rows, columns, *channels), _UNKNOWN, np.uint8)
    for i, (_, shown) in enumerate(frames):
        part = shown.codes.copy()
        if not channels:
            part[~shown.known] = _UNKNOWN
        codes[i, : shown.rows, : shown.columns] = part
    return {
        "kind": first.kind,
        "rows": rows,
        "columns": columns,
        "steps": [step for step, _ in frames],
        "sizes": [[shown.rows, shown.columns] for _, shown in frames],
        "ranges": [[float(f"{p.low:.5g}"), float(f"{p.high:.5g}")] for _, p in frames],
        "data": base64.b64encode(zlib.compress(codes.tobytes(), 9)).decode(),
    }


def _again(shown: Picture) -> np.ndarray:
    """An array that `grid_svg` draws as this picture."""
    if shown.kind != "ramp":
        return shown.codes
    return shown.low + shown.codes / 254.0 * (shown.high - shown.low)


def _curves(found: Gathered) -> str:
    groups: dict[str, dict[str, str]] = {}
    stems = {key: key.rpartition("/")[0] or key for key in found.curves}
    # Sorting keeps the order within a name: mean, min, max.
    for key in sorted(found.curves, key=lambda k: (k != "loss", stems[k])):
        stem, _, end = key.rpartition("/")
        name, line = (stem, end) if stem and end in _OF_ONE else (key, key)
        groups.setdefault(name, {})[line] = key
    charts = "".join(
        line_chart({n: found.curves[k].points() for n, k in lines.items()}, title=name)
        for name, lines in groups.items()
    )
    more = f'<p class="note">{found.left_out:,} further curves are not shown.</p>'
    more = more if found.left_out else ""
    return f'<div class="charts">{charts}</div>{more}' if charts else ""


def _table(table: Table) -> str:
    names = list(table.names)
    head = "".join(_column(n) for n in ["step", *names])
    rows = "".join(
        f'<tr><td class="n">{step:,}</td>'
        + "".join(_cell(row.get(name)) for name in names)
        + "</tr>"
        for step, row in reversed(table.rows)
    )
    count = f"{table.seen:,} records, newest first"
    if table.seen > len(table.rows):
        count += f"; the newest {len(table.rows):,} are shown"
    return (
        f'<p class="note">{count}.</p><div class="scroll tall" tabindex="0">'
        f'<table class="sortable"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody>'
        "</table></div>"
    )


def _column(name: str) -> str:
    said = escape(name.replace("_", " "))
    return f'<th class="n" scope="col"><button type="button">{said}</button></th>'


def _cell(value: Plain | None) -> str:
    match value:
        case None:
            return '<td class="n" data-v="">-</td>'
        case bool():
            kind, said = ("kept", "yes") if value else ("broken", "no")
            return f'<td class="n {kind}" data-v="{int(value)}">{said}</td>'
        case float():
            return f'<td class="n" data-v="{value!r}">{value:.4g}</td>'
        case int():
            return f'<td class="n" data-v="{value}">{value:,}</td>'
        case _:
            return f'<td class="n" data-v="">{escape(value)}</td>'


def _losses(status: Mapping[str, float]) -> str:
    lost = dropped(status)
    if not lost:
        return ""
    rows = "".join(
        f'<tr><td>{kind}</td><td class="n">{kept + n:,}</td>'
        f'<td class="n">{kept:,}</td><td class="n">{n:,}</td></tr>'
        for kind, (kept, n) in lost.items()
    )
    head = "".join(f'<th class="n">{n}</th>' for n in ("given", "kept", "dropped"))
    return f"<table><tr><th>class</th>{head}</tr>{rows}</table>"


def _json(kind: str, data: object) -> str:
    # "<" is the only sign that could end the script element.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    text = text.replace("<", "\\u003c")
    return f'<script type="application/json" class="{kind}">{text}</script>'
