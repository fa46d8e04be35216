"""The page as an ASGI application: fixed files, one stream of events, a few queries.

No path and no file name comes from a request: an application shows one run.
"""

import asyncio
import contextlib
import importlib.resources
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Shaped

from frugax.errors import MissingExtraError

from ._feed import Feed, to_json
from ._guard import App, Guard
from ._history import MOST_COLUMNS, Cursor

if TYPE_CHECKING:
    from starlette.requests import Request

_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "LICENSE": "text/plain; charset=utf-8",
}
_FILES = (
    "alive.js", "app.css", "app.js", "charts.js", "favicon.svg", "frames.js",
    "paint.js", "tables.js", "uPlot.LICENSE", "uPlot.css", "uPlot.js",
)  # fmt: skip
_MOST_ROWS = 500
_MOST_POINTS = 10_000
_MOST_PIXELS = 2**21  # of a frame; a larger one is sent with every n-th row and column


def page_app(feed: Feed, *, token: str | None, hosts: frozenset[str]) -> App:
    """The application that shows what `feed` reads.

    Args:
        feed: reads the run; started and stopped with the application.
        token: what a reader must know; None if whoever reaches the port may read.
        hosts: names under which this machine may be asked for.

    Raises:
        MissingExtraError: Starlette is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.responses import Response, StreamingResponse
        from starlette.routing import Route
    except ImportError as e:
        raise MissingExtraError(
            'the live page needs Starlette: pip install "frugax[serve]".'
        ) from e

    folder = importlib.resources.files("frugax.watch.serve").joinpath("static")
    files = {name: folder.joinpath(name).read_bytes() for name in _FILES}
    index = folder.joinpath("index.html").read_bytes()

    def plain(body: str | bytes, kind: str = "application/json") -> Response:
        return Response(body, media_type=kind)

    async def page(_: "Request") -> Response:
        return plain(index, _TYPES["html"])

    async def static(request: "Request") -> Response:
        name = request.path_params["name"]
        if name not in files:
            return Response("There is no such file.\n", 404, media_type="text/plain")
        return plain(files[name], _TYPES[name.rpartition(".")[2]])

    async def icon(_: "Request") -> Response:
        return plain(files["favicon.svg"], _TYPES["svg"])

    async def state(_: "Request") -> Response:
        return plain(feed.state or "{}")

    async def events(request: "Request") -> Response:
        held = request.headers.get("last-event-id") or request.query_params.get(
            "cursor", ""
        )
        told = feed.events(Cursor.parse(held), _columns(request))
        return StreamingResponse(told, media_type="text/event-stream")

    async def series(request: "Request") -> Response:
        low, high = _whole(request, "from"), _whole(request, "to")
        points = _whole(request, "points", 2000, low=4, high=_MOST_POINTS)
        stream = request.query_params.get("stream", "")
        history = feed.watched.history
        found = await asyncio.to_thread(
            history.window, stream, _columns(request), low, high, points
        )
        return plain(to_json(found))

    async def rows(request: "Request") -> Response:
        count = _whole(request, "count", 100, low=1, high=_MOST_ROWS)
        before = _whole(request, "before") if "before" in request.query_params else None
        stream = request.query_params.get("stream", "")
        found = await asyncio.to_thread(
            feed.watched.history.rows, stream, before=before, count=count
        )
        return plain(to_json(found))

    async def frame(request: "Request") -> Response:
        asked = request.query_params
        number = _whole(request, "number") if "number" in asked else None
        step = _whole(request, "step") if "step" in asked else None
        number, at, array = await asyncio.to_thread(
            feed.watched.history.frame,
            asked.get("stream", ""),
            asked.get("column", ""),
            number=number,
            step=step,
        )
        body = _frame_bytes(number, at, array)
        return plain(body, "application/octet-stream")

    async def wrong(_: "Request", error: Exception) -> Response:
        status = 404 if isinstance(error, LookupError) else 400
        said = str(error.args[0]) if error.args else "There is nothing of that name."
        return Response(to_json({"error": said}), status, media_type="application/json")

    @contextlib.asynccontextmanager
    async def running(_: Starlette) -> AsyncIterator[None]:
        reader = asyncio.create_task(feed.run())
        try:
            yield
        finally:
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
    handlers: Any = {LookupError: wrong, ValueError: wrong}
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=running)
    return Guard(app, token=token, hosts=hosts)


def _whole(
    request: "Request",
    name: str,
    otherwise: int | None = None,
    *,
    low: int = -(2**62),
    high: int = 2**62,
) -> int:
    """A whole number from the query.

    Raises:
        ValueError: it is none, or out of range.
    """
    text = request.query_params.get(name)
    if text is None and otherwise is not None:
        return otherwise
    try:
        number = int(text or "")
    except ValueError:
        raise ValueError(f"{name} must be a whole number, got {text!r:.40}.") from None
    if not low <= number <= high:
        raise ValueError(f"{name} must be from {low} to {high}, got {number}.")
    return number


def _columns(request: "Request") -> list[str]:
    return request.query_params.getlist("column")[:MOST_COLUMNS]


def _frame_bytes(number: int, step: int, array: Shaped[np.ndarray, "..."]) -> bytes:
    """A frame for a browser: JSON about it, padded to 8 bytes, then its numbers."""
    shape = list(array.shape)
    every = 1
    if array.ndim >= 2:
        while array[..., ::every, ::every].size > _MOST_PIXELS:
            every += 1
        array = (
            array[..., ::every, ::every]
            if array.shape[-1] > 4
            else array[..., ::every, ::every, :]
        )
    kind = array.dtype.kind
    if kind == "b":
        array = array.astype(np.uint8)
    elif array.dtype.itemsize == 8 or kind not in "iuf" or array.dtype == np.float16:
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
    head += b" " * (-(len(head) + 4) % 8)
    data = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    return len(head).to_bytes(4, "little") + head + data
