"""The ASGI applications of the live pages: static files, an event stream, queries.

An application shows one run, or all runs of a folder. No request can name a path or a
file, so none can reach beyond these.
"""

import asyncio
import contextlib
import importlib.resources
import json
import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Shaped

from frugax.budget import to_json
from frugax.errors import MissingExtraError
from frugax.report import page_theme

from ._feed import Feed
from ._guard import AccessGuard, App
from ._history import MAX_COLUMNS, Cursor
from ._run_monitor import RunMonitor
from ._runs_monitor import RunsMonitor

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

_MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "LICENSE": "text/plain; charset=utf-8",
}
_STATIC_FILES = (
    "alive.js", "app.css", "app.js", "charts.js", "favicon.svg", "frames.js",
    "histogram.js", "overlay.js", "paint.js", "runs.css", "runs.js", "tables.js",
    "uPlot.LICENSE", "uPlot.css", "uPlot.js",
)  # fmt: skip
# Limits of one answer: a request must not be able to make the server encode the whole
# journal.
_MAX_ROWS = 500
_MAX_POINTS = 10_000
_MAX_PIXELS = 2**21  # of larger frames every n-th row and column is sent


# Runs of a folder whose own pages are held at a time: each keeps its whole history.
_MAX_OPEN_RUNS = 4
_POLL_RUNS_S = 0.5


def page_app(feed: Feed, *, token: str | None, hosts: frozenset[str]) -> App:
    """Build the application that shows the run of `feed`."""

    async def opened(_: "Request") -> Feed:
        return feed

    app = _application(_run_routes(opened, "index.html"), feed.read, feed.stop)
    return AccessGuard(app, token=token, hosts=hosts)


def runs_app(runs: RunsMonitor, *, token: str | None, hosts: frozenset[str]) -> App:
    """Build the application that compares runs, with the page of each below it."""
    opened: OrderedDict[int, tuple[Feed, asyncio.Task[None]]] = OrderedDict()
    is_stopped = asyncio.Event()
    runs.on_stop.append(is_stopped.set)

    async def poll() -> None:
        try:
            while not is_stopped.is_set():
                # In a thread: reading and unpacking blocks would stall the answers.
                if not await asyncio.to_thread(runs.poll):
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(is_stopped.wait(), _POLL_RUNS_S)
        finally:
            for feed, reader in opened.values():
                feed.stop()
                await reader

    async def open_run(request: "Request") -> Feed:
        number = request.path_params["number"]
        if number not in opened:
            feed = Feed(RunMonitor(runs.journal(number)))
            opened[number] = feed, asyncio.create_task(feed.read())
            runs.on_stop.append(feed.stop)
            while len(opened) > _MAX_OPEN_RUNS:
                oldest, reader = opened.popitem(last=False)[1]
                runs.on_stop.remove(oldest.stop)
                oldest.stop()
                await reader
        opened.move_to_end(number)
        return opened[number][0]

    async def describe(request: "Request") -> "Response":
        known = _parse_int(request, "known", -1)
        return _respond(to_json(await asyncio.to_thread(runs.describe, known)))

    async def curves(request: "Request") -> "Response":
        query = request.query_params
        found = await asyncio.to_thread(
            runs.curves,
            query.get("stream", ""),
            query.get("column", ""),
            axis=query.get("axis", "step"),
            low=_parse_float(request, "from", -math.inf),
            high=_parse_float(request, "to", math.inf),
            max_points=_parse_int(request, "points", 400, low=4, high=_MAX_POINTS),
        )
        return _respond(to_json(found))

    from starlette.responses import RedirectResponse
    from starlette.routing import Mount, Route

    async def add_slash(request: "Request") -> "Response":
        # The page's own addresses are relative to its folder.
        return RedirectResponse(request.url.path.rpartition("/")[2] + "/")

    routes = [
        *_file_routes("runs.html"),
        Route("/api/runs", describe),
        Route("/api/curves", curves),
        Route("/run/{number:int}", add_slash),
        Mount("/run/{number:int}", routes=_run_routes(open_run, "index.html")),
    ]
    app = _application(routes, poll, runs.stop)
    return AccessGuard(app, token=token, hosts=hosts)


def _application(
    routes: "list[Any]", work: Callable[[], Any], stop: Callable[[], None]
) -> Any:
    """Make an application that works in the background until it is stopped."""
    from starlette.applications import Starlette

    async def report_error(_: "Request", error: Exception) -> "Response":
        status = 404 if isinstance(error, LookupError) else 400
        message = "There is nothing of that name."
        if error.args:
            message = str(error.args[0])
        return _respond(to_json({"error": message}), status=status)

    @contextlib.asynccontextmanager
    async def running(_: Starlette) -> AsyncIterator[None]:
        worker = asyncio.create_task(work())
        try:
            yield
        finally:
            # Stopped and then awaited: a reader that is cancelled in `to_thread` would
            # leave its thread reading on.
            stop()
            await worker

    handlers: Any = {LookupError: report_error, ValueError: report_error}
    return Starlette(routes=routes, exception_handlers=handlers, lifespan=running)


def _respond(
    body: str | bytes, kind: str = "application/json", status: int = 200
) -> "Response":
    from starlette.responses import Response

    return Response(body, status, media_type=kind)


def _file_routes(index_name: str) -> list[Any]:
    """Return the routes of the page itself and its static files."""
    try:
        from starlette.routing import Route
    except ImportError as e:
        raise MissingExtraError(
            'the live page needs Starlette: pip install "frugax[serve]".'
        ) from e
    folder = importlib.resources.files("frugax.watch.serve").joinpath("static")
    # All files are read at the start: a request only selects one by its exact name.
    files = {name: folder.joinpath(name).read_bytes() for name in _STATIC_FILES}
    # The colours of every page of frugax, light and dark.
    files["app.css"] = page_theme().encode() + files["app.css"]
    index = folder.joinpath(index_name).read_bytes()

    async def page(_: "Request") -> "Response":
        return _respond(index, _MEDIA_TYPES["html"])

    async def static(request: "Request") -> "Response":
        name = request.path_params["name"]
        if name not in files:
            # The text names nothing from the request, so it cannot carry markup to a
            # browser.
            return _respond("There is no such file.\n", "text/plain", 404)
        return _respond(files[name], _MEDIA_TYPES[name.rpartition(".")[2]])

    async def icon(_: "Request") -> "Response":
        return _respond(files["favicon.svg"], _MEDIA_TYPES["svg"])

    return [
        Route("/", page),
        Route("/favicon.ico", icon),
        Route("/static/{name}", static),
    ]


def _run_routes(
    opened: Callable[["Request"], Awaitable[Feed]], index_name: str
) -> list[Any]:
    """Return the routes of the page of one run, which a request opens."""
    files = _file_routes(index_name)
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    async def state(request: "Request") -> "Response":
        return _respond((await opened(request)).state or "{}")

    async def events(request: "Request") -> "Response":
        # A browser that reconnects sends the id of the last event by itself.
        text = request.headers.get("last-event-id")
        if not text:
            text = request.query_params.get("cursor", "")
        feed = await opened(request)
        stream = feed.events(Cursor.parse(text), _columns(request))
        return StreamingResponse(stream, media_type="text/event-stream")

    async def series(request: "Request") -> "Response":
        low, high = _parse_int(request, "from"), _parse_int(request, "to")
        points = _parse_int(request, "points", 2000, low=4, high=_MAX_POINTS)
        stream = request.query_params.get("stream", "")
        history = (await opened(request)).run.history
        # Large windows take milliseconds, which must not delay the other pages.
        found = await asyncio.to_thread(
            history.window, stream, _columns(request), low, high, points
        )
        return _respond(to_json(found))

    async def rows(request: "Request") -> "Response":
        count = _parse_int(request, "count", 100, low=1, high=_MAX_ROWS)
        before = _parse_optional_int(request, "before")
        stream = request.query_params.get("stream", "")
        history = (await opened(request)).run.history
        found = await asyncio.to_thread(
            history.rows, stream, before=before, count=count
        )
        return _respond(to_json(found))

    async def histogram(request: "Request") -> "Response":
        stream = request.query_params.get("stream", "")
        count = _parse_int(request, "count", 200, low=1, high=_MAX_ROWS)
        history = (await opened(request)).run.history
        found = await asyncio.to_thread(history.histogram, stream, count)
        return _respond(to_json(found))

    async def frame(request: "Request") -> "Response":
        query = request.query_params
        number, step, array = await asyncio.to_thread(
            (await opened(request)).run.history.frame,
            query.get("stream", ""),
            query.get("column", ""),
            number=_parse_optional_int(request, "number"),
            step=_parse_optional_int(request, "step"),
        )
        body = _encode_frame(number, step, array)
        return _respond(body, "application/octet-stream")

    return [
        *files,
        Route("/api/state", state),
        Route("/api/events", events),
        Route("/api/series", series),
        Route("/api/rows", rows),
        Route("/api/histogram", histogram),
        Route("/api/frame", frame),
    ]


def _parse_float(request: "Request", name: str, default: float) -> float:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise ValueError(f"{name} must be a number, got {text!r:.40}.")
    return number


def _parse_optional_int(request: "Request", name: str) -> int | None:
    if name not in request.query_params:
        return None
    return _parse_int(request, name)


def _parse_int(
    request: "Request",
    name: str,
    default: int | None = None,
    *,
    low: int = -(2**62),
    high: int = 2**62,
) -> int:
    text = request.query_params.get(name)
    if text is None and default is not None:
        return default
    try:
        number = int(text or "")
    except ValueError:
        raise ValueError(f"{name} must be a whole number, got {text!r:.40}.") from None
    if not low <= number <= high:
        raise ValueError(f"{name} must be from {low} to {high}, got {number}.")
    return number


def _columns(request: "Request") -> list[str]:
    return request.query_params.getlist("column")[:MAX_COLUMNS]


# One header and raw numbers instead of JSON: a browser reads a frame of a million
# numbers into a typed array without parsing it.
def _encode_frame(number: int, step: int, array: Shaped[np.ndarray, "..."]) -> bytes:
    """Encode a frame: its JSON header, padded to 8 bytes, then its numbers."""
    shape = list(array.shape)
    every = 1
    if array.ndim >= 2:
        while array[..., ::every, ::every].size > _MAX_PIXELS:
            every += 1
        if array.shape[-1] > 4:
            array = array[..., ::every, ::every]
        else:  # the last axis may hold colour channels
            array = array[..., ::every, ::every, :]
    kind = array.dtype.kind
    if kind == "b":
        array = array.astype(np.uint8)
    elif array.dtype.itemsize == 8 or kind not in "iuf" or array.dtype == np.float16:
        # JavaScript has no typed arrays for these that charts can use.
        array = array.astype(np.float32)
    about = {
        "number": number,
        "step": step,
        "shape": list(array.shape),
        "of": shape,
        "every": every,
        "dtype": array.dtype.newbyteorder("<").str,
        "bool": kind == "b",
        "whole": kind in "iub",
    }
    head = json.dumps(about).encode()
    # JavaScript views an ArrayBuffer as a typed array only at a multiple of the item
    # size; 8 suits all of them.
    head += b" " * (-(len(head) + 4) % 8)
    data = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    return len(head).to_bytes(4, "little") + head + data
