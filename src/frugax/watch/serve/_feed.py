"""What a page is told while it is open: one reader for all pages, deltas for each.

The events are named `state` (all but series and frames), `delta` (points to add; its id
is the page's new cursor) and `beat` (the server's clock, so that silence is noticed).
"""

import asyncio
import contextlib
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from ._history import Cursor
from ._watched import Watched

_LOOK_EVERY_S = 0.5
_BEAT_EVERY_S = 3.0
_FEWEST_S_BETWEEN_DELTAS = 0.25


class Feed:
    """Reads one run on behalf of every page that is open."""

    def __init__(
        self,
        watched: Watched,
        *,
        look_every_s: float = _LOOK_EVERY_S,
        beat_every_s: float = _BEAT_EVERY_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Nothing is read before `run`.

        Args:
            watched: the run.
            look_every_s: pause between two looks at the journal.
            beat_every_s: longest silence towards a page.
            clock: seconds since the epoch.
        """
        self.watched = watched
        self._look_every_s = look_every_s
        self._beat_every_s = beat_every_s
        self._clock = clock
        self._caught_up = False  # the journal has been read to its end once
        self._state = ""
        self._stopped = False
        self._news = asyncio.Event()

    @property
    def state(self) -> str:
        """The newest state, as JSON text."""
        return self._state

    async def run(self) -> None:
        """Read on until `stop`."""
        try:
            await self._read_on()
        finally:
            self.stop()  # a reader that failed must not look like a run that is quiet

    async def _read_on(self) -> None:
        while not self._stopped:
            news, more = await asyncio.to_thread(self.watched.look)
            state = await asyncio.to_thread(self._write_state)
            caught_up = self._caught_up or not more
            if news or state != self._state or caught_up != self._caught_up:
                self._state, self._caught_up = state, caught_up
                self._tell()
            if not more:
                await asyncio.sleep(self._look_every_s)

    def stop(self) -> None:
        """End `run` and every page's events. Called in the event loop."""
        self._stopped = True
        self._tell()

    async def events(
        self, cursor: Cursor, columns: Sequence[str] = ()
    ) -> AsyncIterator[str]:
        """What a page that holds `cursor` is told, as server-sent events.

        Args:
            cursor: what the page holds already.
            columns: the columns it wants; the first ones if none are named.
        """
        yield "retry: 1000\n\n"
        state_sent = ""
        first = True
        spoke = time.monotonic()
        while not self._stopped:
            news = self._news
            if self._state != state_sent:
                state_sent = self._state
                spoke = time.monotonic()
                yield f"event: state\ndata: {state_sent}\n\n"
            if self._caught_up and (first or self._history_cursor() != cursor):
                text, cursor = await asyncio.to_thread(self._delta, cursor, columns)
                yield f"id: {cursor}\nevent: delta\ndata: {text}\n\n"
                first = False
                spoke = time.monotonic()
                await asyncio.sleep(_FEWEST_S_BETWEEN_DELTAS)
            silent = time.monotonic() - spoke
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), max(self._beat_every_s - silent, 0))
            if time.monotonic() - spoke >= self._beat_every_s:
                spoke = time.monotonic()
                yield f'event: beat\ndata: {{"now": {self._clock():.1f}}}\n\n'

    def _history_cursor(self) -> Cursor:
        return self.watched.history.cursor

    def _delta(self, cursor: Cursor, columns: Sequence[str]) -> tuple[str, Cursor]:
        made = self.watched.history.since(cursor, columns)
        return to_json(made), Cursor.parse(made["cursor"])

    def _write_state(self) -> str:
        return to_json(self.watched.state(now=self._clock()))

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


def to_json(value: Any) -> str:
    """JSON as browsers read it: numbers that are not finite become null."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
