"""A sink that writes a report as one HTML file, readable anywhere without a network."""

import base64
import importlib.resources
import os
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from frugax.budget import (
    Receipt,
    format_seconds,
    format_share,
    to_json,
)
from frugax.fileio import write_whole
from frugax.report import (
    CHART_SCRIPT,
    PAGE_STYLE,
    Markup,
    element,
    fragment,
    line_chart,
    page,
    receipt_table,
)

from ..drawing import (
    FRAME_SCRIPT,
    PALETTES,
    Palette,
    Picture,
    check_palette,
    picture_svg,
    ramp,
)
from ._event import Event, PlainValue, lost_text, overhead_spend
from ._report_data import Film, ReportData, SummaryTable

_STATIC = importlib.resources.files("frugax.watch.sinks") / "static"
_STYLE = PAGE_STYLE + (_STATIC / "report.css").read_text("utf-8")
_SCRIPT = CHART_SCRIPT + FRAME_SCRIPT + (_STATIC / "report.js").read_text("utf-8")
# The code of unknown cells in films; digits and levels of the ramp are below it.
_UNKNOWN = 255
# The endings that `event_numbers` gives to arrays; only these curves share a chart.
_STATISTICS = {"mean", "min", "max"}
_PALETTE_NAMES = {
    "arc": "ARC colours",
    "colour_blind": "colour-blind safe",
    "high_contrast": "high contrast",
}


class HtmlReport:
    """Writes a page with curves, films, tables and the receipt.

    Memory is bounded whatever the length of the run: curves are downsampled so that
    peaks stay, and beyond `max_bytes` every other frame is dropped. The page states
    all omissions.

    Attributes:
        name: the name in the receipt.
        receipt: if set before `close`, shown on the page.
    """

    name = "html report"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        title: str = "",
        palette: Palette = "arc",
        max_bytes: int = 32 * 2**20,
    ) -> None:
        """Prepare the report; `close` writes the file.

        Args:
            path: the file; missing folders are created.
            title: the heading of the page; by default the name of the file.
            palette: the palette at first; readers may choose another on the page.
            max_bytes: the size of all frames together, as they are kept in memory.

        Raises:
            ValueError: `path` is a folder, `max_bytes` is below 1, or the palette is
                unknown.
        """
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be >= 1, got {max_bytes}.")
        if Path(path).is_dir():
            raise ValueError(
                f"path must be the report's file, but {os.fspath(path)} is a folder; "
                f"such as {Path(path) / 'report.html'}."
            )
        self.receipt: Receipt | None = None
        self._path = Path(path)
        self._title = title or self._path.stem
        self._palette: Palette = check_palette(palette)
        self._began = time.monotonic()
        self._data = ReportData(max_bytes)

    def write(self, events: Sequence[Event]) -> None:
        """Take the records."""
        for event in events:
            self._data.add(event)

    def close(self) -> None:
        """Write the page.

        Raises:
            OutputError: the page cannot be written; an earlier page stays intact.
        """
        seconds = time.monotonic() - self._began
        data = self._data
        spends = self.receipt.spends if self.receipt else ()
        budgets = receipt_table(spends) if spends else Markup()
        body = fragment(
            _heading(data, self._title, seconds, self.receipt),
            _section("Budgets and what was spent", budgets),
            _section("Frames", _films(data.films, self._palette)),
            _section("Curves", _charts(data)),
            [_section(name, _table(table)) for name, table in data.tables.items()],
        )
        title = f"{self._title} - frugax"
        # Whole or not at all, since a reader may reload the page while it is written.
        write_whole(self._path, page(title, body, style=_STYLE, script=_SCRIPT))


def _section(title: str, body: Markup) -> Markup:
    return element("section", element("h2", title), body) if body else body


def _heading(
    data: ReportData, title: str, seconds: float, receipt: Receipt | None
) -> Markup:
    tiles: list[Markup] = []

    def add_tile(label: str, value: str, kind: str = "") -> None:
        figure = element("b", value, class_=kind)
        tiles.append(element("div", figure, element("span", label), class_="tile"))

    if receipt is not None:
        verdict = str(receipt.verdict)
        add_tile("budgets", verdict, verdict.split()[0])
    if data.last_step is not None:
        add_tile("last step", f"{data.last_step:,}")
    # The names by which most programs record their main figures.
    for name in ("loss", "accuracy"):
        if name in data.curves:
            last = data.curves[name].points()[1][-1]
            add_tile(f"{name}, at the end", f"{last:.4g}")
    if spend := overhead_spend(data.status):
        label, kind = f"overhead of {format_share(spend.limit)}", str(spend.verdict)
        add_tile(label, format_share(spend.measured or 0.0), kind.split()[0])
    # A lost summary breaks a guarantee; lost scalars and frames are allowed.
    if data.status:
        lost, kind = lost_text(data.status), "kept"
        if lost:
            kind = "broken" if data.status.get("dropped_summary") else "cannot"
        add_tile("records lost", lost or "0", kind)
    add_tile("time", format_seconds(seconds))
    count = f"{data.records:,} records watched by frugax."
    return fragment(
        element("h1", title),
        element("p", count, class_="sub"),
        element("div", tiles, class_="tiles"),
    )


def _films(films: Mapping[str, Film], palette: Palette) -> Markup:
    if not films:
        return Markup()
    # The script recolours films, so it gets all palettes.
    colours = {
        "palettes": {k: list(v) for k, v in PALETTES.items()},
        "ramp": ["#" + colour.tobytes().hex() for colour in ramp()],
    }
    choices = [
        element("option", name, value=key, selected=key == palette)
        for key, name in _PALETTE_NAMES.items()
    ]
    key = lambda name: element("kbd", name)
    options = element(
        "div",
        element("label", "Colours ", element("select", choices, class_="palette")),
        _checkbox("numbers", " numbers"),
        _checkbox("changes", " frame what changed"),
        element(
            "span",
            (key("←"), " ", key("→"), " step, ", key("Home"), " ", key("End"), ", "),
            (key("space"), " plays"),
            class_="note keys",
        ),
        class_="options needs-script",
    )
    drawn = [_film(name, film, palette) for name, film in films.items()]
    body = element("div", drawn, class_="films")
    return fragment(options, body, _json_script("film-colours", colours))


def _checkbox(name: str, label: str) -> Markup:
    return element("label", element("input", type="checkbox", class_=name), label)


# Readers without a script see the last frame as a drawing; the script replaces it by a
# canvas with a slider.
def _film(name: str, film: Film, palette: Palette) -> Markup:
    frames = film.all_frames()
    step, newest = frames[-1]
    count = f"{len(frames):,}"
    if len(frames) < film.seen:
        count += f" of {film.seen:,}"
    count += " frame" if film.seen == 1 else " frames"
    if newest.note:
        count += f", {newest.note}"
    still = picture_svg(newest, f"{name}, step {step}", palette=palette)
    last = len(frames) - 1
    slider = element(
        "input",
        type="range",
        min=0,
        max=last,
        value=last,
        aria_label=f"frame of {name}",
    )
    play = element("button", "▶", type="button", class_="play", aria_label="play")
    return element(
        "div",
        element("h3", f"{name} ", element("small", count)),
        element(
            "div",
            element("noscript", Markup(still)),
            element("canvas", class_="screen needs-script", role="img"),
            class_="stage",
        ),
        element("div", play, slider, element("output"), class_="controls needs-script"),
        _json_script("film-data", _pack_film(frames)),
        class_="film",
        tabindex=0,
        role="group",
        aria_label=f"film {name}",
    )


def _pack_film(frames: Sequence[tuple[int, Picture]]) -> dict[str, object]:
    """Pack frames of one kind for the script; all get the size of the largest."""
    first = frames[0][1]
    rows = max(picture.rows for _, picture in frames)
    columns = max(picture.columns for _, picture in frames)
    channels = first.codes.shape[2:]
    # One array for the whole film: neighbouring frames resemble each other, so they
    # compress far better together than one by one.
    codes = np.full((len(frames), rows, columns, *channels), _UNKNOWN, np.uint8)
    for i, (_, picture) in enumerate(frames):
        # Copied, because the unknown cells of the kept picture must stay as they are.
        part = picture.codes.copy()
        if not channels:
            part[~picture.known] = _UNKNOWN
        codes[i, : picture.rows, : picture.columns] = part
    # Browsers inflate zlib streams natively (DecompressionStream).
    data = base64.b64encode(zlib.compress(codes.tobytes(), 9)).decode()
    return {
        "kind": first.kind,
        "rows": rows,
        "columns": columns,
        "steps": [step for step, _ in frames],
        "sizes": [[picture.rows, picture.columns] for _, picture in frames],
        "ranges": [[float(f"{p.low:.5g}"), float(f"{p.high:.5g}")] for _, p in frames],
        "data": data,
    }


def _charts(data: ReportData) -> Markup:
    if not data.curves:
        return Markup()
    # Curves such as `norm/mean`, `norm/min` and `norm/max` share one chart.
    groups: dict[str, dict[str, str]] = {}
    stems = {key: key.rpartition("/")[0] or key for key in data.curves}
    # A stable sort, which keeps the order within a group: mean, min, max.
    for key in sorted(data.curves, key=lambda k: (k != "loss", stems[k])):
        stem, _, end = key.rpartition("/")
        if stem and end in _STATISTICS:
            groups.setdefault(stem, {})[end] = key
        else:
            groups.setdefault(key, {})[key] = key
    charts = [
        line_chart(
            {n: data.curves[k].points() for n, k in lines.items()}, title=name
        ).figure()
        for name, lines in groups.items()
    ]
    body = element("div", charts, class_="charts")
    if not data.omitted_curves:
        return body
    note = f"{data.omitted_curves:,} further curves are not shown."
    return fragment(body, element("p", note, class_="note"))


def _table(table: SummaryTable) -> Markup:
    names = list(table.names)
    head = [
        element(
            "th",
            element("button", name.replace("_", " "), type="button"),
            class_="n",
            scope="col",
        )
        for name in ["step", *names]
    ]
    rows = [
        element(
            "tr",
            element("td", f"{step:,}", class_="n"),
            [_cell(row.get(name)) for name in names],
        )
        # Newest first, which is the end of the run that readers look for.
        for step, row in reversed(table.rows)
    ]
    count = f"{table.seen:,} records, newest first"
    if table.seen > len(table.rows):
        count += f"; the newest {len(table.rows):,} are shown"
    body = element(
        "table",
        element("thead", element("tr", head)),
        element("tbody", rows),
        class_="sortable",
    )
    return fragment(
        element("p", f"{count}.", class_="note"),
        element("div", body, class_="scroll tall", tabindex=0),
    )


# `data-v` is the value by which the script sorts; empty values go to the end.
def _cell(value: PlainValue | None) -> Markup:
    match value:
        case None:
            return element("td", "-", class_="n", data_v="")
        # Before `int`: in Python a bool is an int, and the first match wins.
        case bool():
            kind, text = ("kept", "yes") if value else ("broken", "no")
            return element("td", text, class_=f"n {kind}", data_v=str(int(value)))
        case int():
            return element("td", f"{value:,}", class_="n", data_v=str(value))
        case float():
            return element("td", f"{value:.4g}", class_="n", data_v=repr(value))
        case _:
            return element("td", value, class_="n", data_v="")


def _json_script(kind: str, data: object) -> Markup:
    # In a script element nothing is unescaped, and only "<" could end it.
    text = to_json(data).replace("<", "\\u003c")
    return element("script", Markup(text), type="application/json", class_=kind)
