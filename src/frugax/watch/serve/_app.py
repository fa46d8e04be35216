"""The ASGI application of the live page: static files and queries.

The page asks once a second whether anything has changed, so a slow reader delays nobody
and is sent no more than it takes. No request can name a path or a file, so none can
reach beyond the runs that are shown.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from frugax.budget import to_json
from frugax.errors import MissingExtraError

from ._frame_bytes import encode_frame
from ._guard import AccessGuard, App
from ._page_files import page_files
from ._run_collection import RunCollection

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

_MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
# Limits of one answer: a request must not be able to make the server encode the whole
# journal.
_MAX_ROWS = 500
_MAX_POINTS = 10_000
_MAX_CURVES = 100
_POLL_S = 0.5
# Answers to keep until something changes, for pages that ask the same.
_MAX_ANSWERS = 200


def page_app(runs: RunCollection, *, token: str | None, hosts: frozenset[str]) -> App:
    """Build the application that shows runs.

    Raises:
        MissingExtraError: Starlette is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.routing import Route
    except ImportError as e:
        raise MissingExtraError(
            'the live page needs Starlette: pip install "frugax[serve]".'
        ) from e
    answers = _Answers(runs)
    files = page_files()

    async def page(_: "Request") -> "Response":
        return _respond(files["index.html"], _MEDIA_TYPES["html"])

    async def static(request: "Request") -> "Response":
        name = request.path_params["name"]
        if name not in files:
            # The text names nothing from the request, so it cannot carry markup to a
            # browser.
            return _respond("There is no such file.\n", "text/plain", 404)
        return _respond(files[name], _MEDIA_TYPES[name.rpartition(".")[2]])

    async def icon(_: "Request") -> "Response":
        return _respond(files["favicon.svg"], _MEDIA_TYPES["svg"])

    async def list_runs(request: "Request") -> "Response":
        known = _parse_int(request, "known", -1)
        return await answers.give(request, lambda: runs.describe(known))

    async def one_run(request: "Request") -> "Response":
        number, known = _parse_int(request, "run"), _parse_int(request, "known", -1)
        return await answers.give(request, lambda: runs.details(number, known))

    async def curves(request: "Request") -> "Response":
        query = request.query_params
        keys = list(zip(query.getlist("stream"), query.getlist("column"), strict=False))
        options = {
            "axis": query.get("axis", "step"),
            "low": _parse_float(request, "from", -math.inf),
            "high": _parse_float(request, "to", math.inf),
            "max_points": _parse_int(request, "points", 400, low=4, high=_MAX_POINTS),
            "number": _parse_optional_int(request, "run"),
        }
        make = lambda: runs.curves(keys[:_MAX_CURVES], **options)
        return await answers.give(request, make)

    async def rows(request: "Request") -> "Response":
        number, stream = _parse_int(request, "run"), _stream(request)
        count = _parse_int(request, "count", 100, low=1, high=_MAX_ROWS)
        before = _parse_optional_int(request, "before")
        make = lambda: runs.index(number).rows(stream, before=before, count=count)
        return await answers.give(request, make)

    async def histogram(request: "Request") -> "Response":
        number, stream = _parse_int(request, "run"), _stream(request)
        count = _parse_int(request, "count", 200, low=1, high=_MAX_ROWS)
        make = lambda: runs.index(number).histogram(stream, count)
        return await answers.give(request, make)

    async def frame(request: "Request") -> "Response":
        run = _parse_int(request, "run")
        place = {
            "number": _parse_optional_int(request, "number"),
            "step": _parse_optional_int(request, "step"),
        }
        column = request.query_params.get("column", "")
        find = lambda: runs.index(run).frame(_stream(request), column, **place)
        body = encode_frame(*await asyncio.to_thread(find))
        return _respond(body, "application/octet-stream")

    async def report_error(_: "Request", error: Exception) -> "Response":
        status = 404 if isinstance(error, LookupError) else 400
        message = "There is nothing of that name."
        if error.args:
            message = str(error.args[0])
        return _respond(to_json({"error": message}), status=status)

    async def poll() -> None:
        while not is_stopped.is_set():
            # In a thread: reading and unpacking blocks would stall the answers.
            if not await asyncio.to_thread(runs.poll):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(is_stopped.wait(), _POLL_S)

    @contextlib.asynccontextmanager
    async def running(_: Starlette) -> AsyncIterator[None]:
        poller = asyncio.create_task(poll())
        try:
            yield
        finally:
            # Stopped and then awaited: a task that is cancelled in `to_thread` would
            # leave its thread reading on.
            is_stopped.set()
            runs.stop()
            await poller

    is_stopped = asyncio.Event()
    app = Starlette(
        routes=[
            Route("/", page),
            Route("/favicon.ico", icon),
            Route("/static/{name}", static),
            Route("/api/runs", list_runs),
            Route("/api/run", one_run),
            Route("/api/curves", curves),
            Route("/api/rows", rows),
            Route("/api/histogram", histogram),
            Route("/api/frame", frame),
        ],
        exception_handlers={LookupError: report_error, ValueError: report_error},
        lifespan=running,
    )
    return AccessGuard(app, token=token, hosts=hosts)


class _Answers:
    """Answers that take a while: each is made in a thread, once for all pages."""

    def __init__(self, runs: RunCollection) -> None:
        self._runs = runs
        self._changes = runs.changes
        self._made: dict[str, asyncio.Future[str]] = {}

    async def give(self, request: "Request", make: Callable[[], Any]) -> "Response":
        changes, question = self._runs.changes, str(request.url)
        if changes != self._changes or len(self._made) >= _MAX_ANSWERS:
            self._made.clear()
            self._changes = changes
        if question not in self._made:
            work = asyncio.to_thread(lambda: to_json(make()))
            self._made[question] = asyncio.ensure_future(work)
        # Shielded: a page that goes away must not end the work for the others.
        return _respond(await asyncio.shield(self._made[question]))


def _respond(
    body: str | bytes, kind: str = "application/json", status: int = 200
) -> "Response":
    from starlette.responses import Response

    return Response(body, status, media_type=kind)


def _stream(request: "Request") -> str:
    return request.query_params.get("stream", "")


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
