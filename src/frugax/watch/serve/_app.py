"""The ASGI application of a run's live page: static files, an event stream, queries.

An application shows one run. No request can name a path or a file, so none can reach
beyond that run.
"""

import asyncio
import contextlib
import importlib.resources
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Shaped

from frugax.budget import to_json
from frugax.errors import MissingExtraError
from frugax.report import page_theme

from ._feed import Feed
from ._guard import AccessGuard, App
from ._history import MAX_COLUMNS, Cursor

if TYPE_CHECKING:
    from starlette.requests import Request

_MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "LICENSE": "text/plain; charset=utf-8",
}
_STATIC_FILES = (
    "alive.js", "app.css", "app.js", "charts.js", "favicon.svg", "frames.js",
    "paint.js", "tables.js", "uPlot.LICENSE", "uPlot.css", "uPlot.js",
)  # fmt: skip
# Limits of one answer: a request must not be able to make the server encode the whole
# journal.
_MAX_ROWS = 500
_MAX_POINTS = 10_000
_MAX_PIXELS = 2**21  # of larger frames every n-th row and column is sent


def page_app(feed: Feed, *, token: str | None, hosts: frozenset[str]) -> App:
    """Build the application that shows the run of `feed`."""
    try:
        from starlette.applications import Starlette
        from starlette.responses import Response, StreamingResponse
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
    index = folder.joinpath("index.html").read_bytes()

    def respond(body: str | bytes, kind: str = "application/json") -> Response:
        return Response(body, media_type=kind)

    async def page(_: "Request") -> Response:
        return respond(index, _MEDIA_TYPES["html"])

    async def static(request: "Request") -> Response:
        name = request.path_params["name"]
        if name not in files:
            # The text names nothing from the request, so it cannot carry markup to a
            # browser.
            return Response("There is no such file.\n", 404, media_type="text/plain")
        return respond(files[name], _MEDIA_TYPES[name.rpartition(".")[2]])

    async def icon(_: "Request") -> Response:
        return respond(files["favicon.svg"], _MEDIA_TYPES["svg"])

    async def state(_: "Request") -> Response:
        return respond(feed.state or "{}")

    async def events(request: "Request") -> Response:
        # A browser that reconnects sends the id of the last event by itself.
        text = request.headers.get("last-event-id")
        if not text:
            text = request.query_params.get("cursor", "")
        stream = feed.events(Cursor.parse(text), _columns(request))
        return StreamingResponse(stream, media_type="text/event-stream")

    async def series(request: "Request") -> Response:
        low, high = _parse_int(request, "from"), _parse_int(request, "to")
        points = _parse_int(request, "points", 2000, low=4, high=_MAX_POINTS)
        stream = request.query_params.get("stream", "")
        # Large windows take milliseconds, which must not delay the other pages.
        found = await asyncio.to_thread(
            feed.run.history.window, stream, _columns(request), low, high, points
        )
        return respond(to_json(found))

    async def rows(request: "Request") -> Response:
        count = _parse_int(request, "count", 100, low=1, high=_MAX_ROWS)
        before = _parse_optional_int(request, "before")
        stream = request.query_params.get("stream", "")
        found = await asyncio.to_thread(
            feed.run.history.rows, stream, before=before, count=count
        )
        return respond(to_json(found))

    async def frame(request: "Request") -> Response:
        query = request.query_params
        number, step, array = await asyncio.to_thread(
            feed.run.history.frame,
            query.get("stream", ""),
            query.get("column", ""),
            number=_parse_optional_int(request, "number"),
            step=_parse_optional_int(request, "step"),
        )
        body = _encode_frame(number, step, array)
        return respond(body, "application/octet-stream")

    async def report_error(_: "Request", error: Exception) -> Response:
        status = 404 if isinstance(error, LookupError) else 400
        message = "There is nothing of that name."
        if error.args:
            message = str(error.args[0])
        body = to_json({"error": message})
        return Response(body, status, media_type="application/json")

    @contextlib.asynccontextmanager
    async def running(_: Starlette) -> AsyncIterator[None]:
        reader = asyncio.create_task(feed.read())
        try:
            yield
        finally:
            # Stopped and then awaited: a reader that is cancelled in `to_thread` would
            # leave its thread reading on.
            feed.stop()
            await reader

    routes = [
        Route("/", page),
        Route("/favicon.ico", icon),
        Route("/static/{name}", static),
        Route("/api/state", state),
        Route("/api/events", events),
        Route("/api/series", series),
        Route("/api/rows", rows),
        Route("/api/frame", frame),
    ]
    handlers: Any = {LookupError: report_error, ValueError: report_error}
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=running)
    return AccessGuard(app, token=token, hosts=hosts)


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
