"""Stream a run's changes to every open live page, as server-sent events.

The events are named `state` (everything but series and frames), `delta` (points to add;
its id is the page's new cursor) and `beat` (the server's clock, so that a page notices
a lost connection).
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence

from frugax.budget import to_json

from ._history import Cursor
from ._run_monitor import RunMonitor

# A poll of a journal that has not grown is one open and one fstat, see `Follower`:
# cheap enough for twice a second, at which a page looks alive.
_POLL_INTERVAL_S = 0.5
_BEAT_INTERVAL_S = 3.0
# Browsers redraw charts for each delta; four times a second looks continuous.
_MIN_DELTA_INTERVAL_S = 0.25


class Feed:
    """Reads one run on behalf of every open page.

    Attributes:
        run: the run.
    """

    def __init__(
        self,
        run: RunMonitor,
        *,
        poll_interval_s: float = _POLL_INTERVAL_S,
        beat_interval_s: float = _BEAT_INTERVAL_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Nothing is read before `read`."""
        self.run = run
        self._poll_interval_s = poll_interval_s
        self._beat_interval_s = beat_interval_s
        self._clock = clock
        # Deltas wait until then: a page that followed the first read would redraw its
        # charts for every part of a long journal.
        self._caught_up = False  # whether the journal has been read to its end once
        self._state = ""
        self._stopped = False
        self._news = asyncio.Event()

    @property
    def state(self) -> str:
        """The newest state, as JSON text."""
        return self._state

    async def read(self) -> None:
        """Poll the run until `stop`."""
        try:
            await self._poll_until_stopped()
        finally:
            # A reader that failed must not look like a run that is quiet.
            self.stop()

    async def _poll_until_stopped(self) -> None:
        while not self._stopped:
            # In a thread: reading and unpacking blocks would stall the event streams.
            news, more = await asyncio.to_thread(self.run.poll)
            state = await asyncio.to_thread(self._write_state)
            caught_up = self._caught_up or not more
            if news or state != self._state or caught_up != self._caught_up:
                self._state, self._caught_up = state, caught_up
                self._notify()
            if not more:
                await asyncio.sleep(self._poll_interval_s)

    def stop(self) -> None:
        """End `read` and the events of every page; call it in the event loop."""
        self._stopped = True
        self._notify()

    async def events(
        self, cursor: Cursor, columns: Sequence[str] = ()
    ) -> AsyncIterator[str]:
        """Yield the server-sent events for one page."""
        # Browsers reconnect after this many milliseconds, and send the last cursor.
        yield "retry: 1000\n\n"
        state_sent = ""
        first = True
        last_sent = time.monotonic()
        while not self._stopped:
            # Taken before the state is compared, so that no change in between is lost.
            news = self._news
            if self._state != state_sent:
                state_sent = self._state
                last_sent = time.monotonic()
                yield f"event: state\ndata: {state_sent}\n\n"
            if self._caught_up and (first or self.run.history.cursor != cursor):
                text, cursor = await asyncio.to_thread(self._delta, cursor, columns)
                yield f"id: {cursor}\nevent: delta\ndata: {text}\n\n"
                first = False
                last_sent = time.monotonic()
                await asyncio.sleep(_MIN_DELTA_INTERVAL_S)
            silent = time.monotonic() - last_sent
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(
                    news.wait(), max(self._beat_interval_s - silent, 0)
                )
            if time.monotonic() - last_sent >= self._beat_interval_s:
                last_sent = time.monotonic()
                yield f'event: beat\ndata: {{"now": {self._clock():.1f}}}\n\n'

    def _delta(self, cursor: Cursor, columns: Sequence[str]) -> tuple[str, Cursor]:
        delta = self.run.history.since(cursor, columns)
        return to_json(delta), Cursor.parse(delta["cursor"])

    def _write_state(self) -> str:
        return to_json(self.run.state(now=self._clock()))

    def _notify(self) -> None:
        # A fresh event for the next round, so that no page needs to clear this one.
        news, self._news = self._news, asyncio.Event()
        news.set()
