"""The files of the page, and a page that is one file and holds its own answers.

The scripts ask for the same things in both. A server answers from the journal as it
grows; a page in one file holds the answers that it may ask for, deflated.
"""

import base64
import hashlib
import importlib.resources
import json
import math
import re
import zlib
from typing import Any

from frugax.budget import to_json
from frugax.report import Markup, element, fragment, page_theme

from ..drawing import PALETTES, Palette, hex_to_rgb, ramp
from ._frame_bytes import encode_frame
from ._journal_index import JournalIndex
from ._run_store import RunStore

# Points of all curves of a page in one file, and rows of each of its tables.
_MAX_POINTS = 200_000
_MAX_ROWS = 1000
_IMPORT = re.compile(r'^import .*? from "\./(.+?)";\n', re.MULTILINE)
_EXPORT = re.compile("^export ", re.MULTILINE)


def page_files() -> dict[str, bytes]:
    """Return the files of the page by their names."""
    folder = importlib.resources.files("frugax.watch.serve").joinpath("static")
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    # The colours of every page of frugax, light and dark.
    files["app.css"] = page_theme().encode() + files["app.css"]
    palettes = {name: hex_to_rgb(colours) for name, colours in PALETTES.items()}
    files["palettes.js"] = "".join(
        f"export const {name} = {json.dumps(value)};\n"
        for name, value in {
            "PALETTES": {name: rgb.tolist() for name, rgb in palettes.items()},
            "RAMP": ramp().tolist(),
        }.items()
    ).encode()
    return files


def page_in_one_file(
    store: RunStore, *, note: str, palette: Palette, max_frame_bytes: int
) -> str:
    """Return the page of a run as HTML that loads nothing.

    Args:
        store: the run, which has been opened and read.
        note: a line below the title.
        palette: the palette at first.
        max_frame_bytes: of all frames together; evenly spaced ones are left out.
    """
    files = page_files()
    script = _bundle(files, "app.js")
    # The policy allows this one script by its hash and forbids the network, so that a
    # name in a record that slipped through escaping could neither run nor send.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    icon = "data:image/svg+xml;base64,"
    icon += base64.b64encode(files["favicon.svg"]).decode()
    _, _, body = files["index.html"].decode().partition("<body>")
    body = body.partition("</body>")[0].replace("static/favicon.svg", icon)
    body = body.replace(' <a href="api/runs">The same as JSON.</a>', "")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("link", rel="icon", href=icon),
        element("title", store.title),
        element("style", Markup(files["app.css"].decode())),
    )
    # Not run by the browser, and base64, so that nothing in it could end the element.
    held = element("script", type="application/octet-stream", id="held")
    # As a module it runs when the page is there.
    run = element("script", Markup(script), type="module")
    content = element("body", Markup(body), held, run)
    page = element("html", fragment(head, content), lang="en", data_palette=palette)
    # Put in last: they may be long, and each element is a copy of its content.
    before, after = page.split(held)
    start, end = held.split("><")
    answers = _pack_answers(store, note, max_frame_bytes)
    return "".join(
        ["<!doctype html>\n", before, start, ">", answers, "<", end, after, "\n"]
    )


def _bundle(files: dict[str, bytes], name: str) -> str:
    """Return a module and all that it imports as one script."""
    order: dict[str, str] = {}

    def add(name: str) -> None:
        text = files[name].decode()
        for needed in _IMPORT.findall(text):
            if needed not in order:
                add(needed)
        order[name] = _EXPORT.sub("", _IMPORT.sub("", text))

    add(name)
    return "".join(order.values())


def _pack_answers(store: RunStore, note: str, max_frame_bytes: int) -> str:
    """Return deflated JSON, with its length before it and the frames behind it."""
    index = store.index
    assert index is not None  # the run has been opened
    run: dict[str, Any] = {"changes": 1, **store.describe(0), **store.details()}
    # Files missing beside a journal, and whether it is alive, matter to a live page.
    run |= {"folder": note, "state": "finished", "why": ""}
    run["facts"]["missing"] = []
    frames, parts = _frames(index, run["streams"], max_frame_bytes)
    answers = {
        "run": run,
        "curves": _curves(store, run["columns"]),
        "rows": _rows(index, run["streams"], frames),
        "histograms": {name: index.histogram(name, 200) for name in run["histograms"]},
        "frames": frames,
    }
    head = to_json(answers).encode()
    # Quickly: a process that ends waits some seconds for its sinks and no longer.
    deflate = zlib.compressobj(level=3)
    packed = bytearray()
    for part in (len(head).to_bytes(4, "little"), head, *parts):
        packed += deflate.compress(part)
    packed += deflate.flush()
    return base64.b64encode(packed).decode()


def _curves(store: RunStore, columns: list[Any]) -> list[dict[str, Any]]:
    """Return each curve, whose places differ by the axis alone."""
    most = min(max(_MAX_POINTS // max(len(columns), 1), 40), 1000)
    found: list[dict[str, Any]] = []
    for stream, column, _ in columns:
        by_axis = {
            axis: points
            for axis in ("step", "time", "clock")
            if (points := store.points(stream, column, axis=axis, max_points=most))
        }
        places = {
            axis: {key: points.get(key, []) for key in ("x", "holes")}
            for axis, points in by_axis.items()
        }
        key = {"stream": stream, "column": column}
        found.append({**key, **by_axis["step"], "places": places})
    return found


def _frames(
    index: JournalIndex, streams: dict[str, Any], max_bytes: int
) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Return the frames of each column, of which some are left out, and their bytes."""
    shown = [
        (stream, column, about)
        for stream, one in streams.items()
        for column, about in one["frames"].items()
    ]
    # As they are held in memory, in the browser and here.
    total = sum(4 * math.prod(one["shape"]) * one["count"] for _, _, one in shown)
    every = max(-(-total // max_bytes), 1)
    found: list[dict[str, Any]] = []
    parts: list[bytes] = []
    end = 0
    for stream, column, about in shown:
        # The newest is kept whatever the rate.
        chosen = [*range(0, about["count"] - 1, every), about["count"] - 1]
        film: dict[str, Any] = {"stream": stream, "column": column}
        film |= {"steps": [], "ends": [], "start": end}
        for number, place in enumerate(chosen):
            _, step, array = index.frame(stream, column, number=place, step=None)
            parts.append(encode_frame(number, step, array))
            end += len(parts[-1])
            film["steps"].append(step)
            film["ends"].append(end)
        about |= {"count": len(chosen), "seen": about["count"]}
        found.append(film)
    return found, parts


def _rows(
    index: JournalIndex, streams: dict[str, Any], frames: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the newest rows of tables, and those at the steps of frames."""
    # In order, so that each block of the journal is read once.
    steps = sorted({step for film in frames for step in film["steps"]})
    beside = {"", *(film["stream"] for film in frames)} if steps else set()
    found: dict[str, Any] = {}
    for stream, about in streams.items():
        if not about["columns"]:
            continue
        rows = index.rows(stream, before=None, count=_MAX_ROWS if stream else 1)
        known = dict(zip(rows["steps"], rows["rows"], strict=True))
        for step in steps if stream in beside else ():
            one = index.rows(stream, before=step + 1, count=1)
            known.update(zip(one["steps"], one["rows"], strict=True))
        newest = sorted(known, reverse=True)
        found[stream] = rows | {"steps": newest, "rows": [known[s] for s in newest]}
    return found
