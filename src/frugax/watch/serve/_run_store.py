"""One run for the live page: the summary of each curve, its facts, and its state.

Summaries of journals that have not changed since are read from the cache folder, so
that a hundred long runs are on the page at once. Records, frames and histograms are
read again from the journal when somebody asks for them.
"""

import hashlib
import json
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int64, Shaped

from frugax.errors import CorruptFileError, FrugaxError
from frugax.fileio import DiskCache, cache_folder

from ..journal import Appended, Follower, Rewound, is_held
from ._curve_summary import BUCKET, CurveSummary, to_points
from ._journal_index import JournalIndex, to_json_number
from ._liveness import judge
from ._run_folder import read_config, read_facts

_FORMAT = 4
# Of the summaries of some thousand runs.
_MAX_CACHE_BYTES = 2**30
_SAVE_S = 60.0
# Between two looks at the locks of a quiet run.
_JUDGE_S = 2.0
# Small enough that an answer need not wait long for a part that is being read.
_POLL_BYTES = 2**17
# Of a run among others, and of one that is shown alone; the page names the missing.
_MAX_COLUMNS = 200
_MAX_COLUMNS_ALONE = 5000
_MAX_DAMAGES = 20
# Recent times between two growths only, so that a pause for compiling is forgotten.
_RECENT_GAPS = 32
_RECENT_STEPS = 400

_Key = tuple[str, str]  # stream and column
# The clock of a run and its pace, of the status that watching writes once a second.
_CLOCK: _Key = "watch", "time"
_PACE: _Key = "watch", "seconds per step"


class RunStore:
    """The known facts about one run; for one thread at a time.

    Attributes:
        journal: its journal, which need not exist yet.
        name: its place below the folder that is shown.
        index: finds single records; None until somebody opens the run.
        state: whether it is alive, and why.
    """

    def __init__(self, journal: Path, name: str, *, is_cached: bool = True) -> None:
        """Take the known facts of the journal from the cache."""
        self.journal = journal
        self.name = name
        self.index: JournalIndex | None = None
        # A journal alone may have any name, and lie beside others.
        self._folder = journal.parent if journal.name == "journal" else None
        self._curves: dict[_Key, CurveSummary] = {}
        # Those of the part that has been read anew; the others, of the cache, stay
        # until these reach as far.
        self._fresh: dict[_Key, CurveSummary] = {}
        self._left_out: set[_Key] = set()
        self._histograms: set[str] = set()
        self._step_seconds: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._rewinds = 0  # by which a page knows that its rows are void
        self._error = ""
        self._follower: Follower | None = None
        self._meta: dict[str, Any] = {}
        self._closed = False
        self._stamp: list[int] = []  # of the file when it had been read to its end
        self._offset = 0
        self._next_save = time.monotonic() + _SAVE_S
        self._gaps_s: deque[float] = deque(maxlen=_RECENT_GAPS)
        self._grown_at = 0.0
        self._facts: dict[str, Any] = {}
        self._config: dict[str, str] = {}
        self._facts_stamp: list[Any] = [None]
        self._is_cached = is_cached
        if is_cached:
            self._restore()
        self._refresh_facts()
        self.state = self._judge(time.time())
        self._next_judgement = 0.0

    @property
    def is_read(self) -> bool:
        """Whether the journal has been read to its end."""
        return bool(self._stamp)

    @property
    def title(self) -> str:
        """The name that its config or journal gives it, or else that of its folder."""
        return self._facts["name"] or (self._folder or self.journal).name

    @property
    def _has_journal(self) -> bool:
        return bool(self._follower or self._offset)

    def open(self) -> None:
        """Make single records available, which reads the journal anew."""
        if self.index is None:
            self.index = JournalIndex(self._read_block)
            self._follower, self._stamp = None, []

    def close(self) -> None:
        """Forget where single records are."""
        self.index = None

    def poll(self, now: float) -> tuple[bool, bool]:
        """Read the next part of the journal; `now` is seconds since the epoch.

        Returns:
            Whether anything is new, and whether there is more to read.
        """
        news, more = self._read_on()
        news |= self._refresh_facts()
        if news or now >= self._next_judgement:
            self._next_judgement = now + _JUDGE_S
            before, self.state = self.state, self._judge(now)
            news |= before != self.state
        return news, more

    def _read_on(self) -> tuple[bool, bool]:
        before = self._error
        try:
            status = self.journal.stat()
        except OSError as e:
            if self._has_journal or not isinstance(e, FileNotFoundError):
                self._error = str(e.strerror)
            return self._error != before, False
        stamp = [status.st_ino, status.st_size, status.st_mtime_ns]
        if stamp == self._stamp:
            return False, False
        try:
            if self._follower is None:
                self._begin()
            follower = self._follower
            assert follower is not None  # made by `_begin`
            reached = follower.offset
            for change in follower.poll(_POLL_BYTES):
                self._apply(change)
        except (OSError, FrugaxError) as e:
            self._error = str(e.args[0] if isinstance(e, FrugaxError) else e.strerror)
            if isinstance(e, CorruptFileError) and self._follower is not None:
                # Another journal may have taken its place: begin with that one.
                self._curves, self._offset = {}, 0
                self._gaps_s.clear()
            self._follower = None
            return self._error != before, False
        self._error = ""
        self._note_growth(status.st_mtime)
        self._closed = follower.closed
        if follower.offset >= self._offset:
            self._curves, self._offset = self._fresh, follower.offset
        more = reached < follower.offset < follower.size_bytes
        if not more:
            self._stamp = stamp
            # A run that goes on grows all the time.
            is_due = self._closed or time.monotonic() >= self._next_save
            if self._is_cached and is_due:
                self._next_save = time.monotonic() + _SAVE_S
                self._save()
        return True, more

    def _begin(self) -> None:
        self._follower = Follower(self.journal)
        self._meta = self._follower.meta
        self._facts_stamp = [None]  # its config may be in there alone
        self._fresh = {}
        self._rewinds += 1
        if self.index is not None:
            self.index = JournalIndex(self._read_block)

    def _read_block(self, offset: int, size: int) -> Appended:
        if self._follower is None:
            raise CorruptFileError(f"{self.journal} cannot be read.")
        return self._follower.read_block(offset, size)

    def _apply(self, change: Any) -> None:
        if isinstance(change, Rewound):
            self._rewinds += 1
            for (stream, _), curve in self._fresh.items():
                if stream == change.stream:
                    curve.rewind(change.step)
        elif isinstance(change, Appended):
            if {"counts", "low", "high"} <= change.columns.keys():
                self._histograms.add(change.stream)
            for name, column in change.columns.items():
                if column.shape:
                    continue
                steps = change.steps[column.present]
                values = np.asarray(column.values, np.float64)
                self._extend((change.stream, name), steps, values)
                if (change.stream, name) == _PACE:
                    self._step_seconds.extend(values.tolist())
        if self.index is not None:
            self.index.apply(change)

    def _extend(
        self, key: _Key, steps: Int64[np.ndarray, " n"], values: Float[np.ndarray, " n"]
    ) -> None:
        if key not in self._fresh:
            most = _MAX_COLUMNS if self.index is None else _MAX_COLUMNS_ALONE
            if len(self._fresh) >= most:
                self._left_out.add(key)
                return
            self._left_out.discard(key)
            self._fresh[key] = CurveSummary()
        self._fresh[key].extend(steps, values)

    def _note_growth(self, grown_at: float) -> None:
        # The longest of the recent gaps tells a slow run from a dead one.
        if self._grown_at and grown_at > self._grown_at:
            self._gaps_s.append(grown_at - self._grown_at)
        self._grown_at = grown_at

    def _judge(self, now: float) -> tuple[str, str]:
        held = [is_held(self.journal)]
        if self._folder is not None:
            held.append(is_held(self._folder / ".lock"))
        return judge(
            has_journal=self._has_journal,
            is_closed=self._closed,
            is_finished=bool(self._facts.get("finished")),
            is_held=True if True in held else None if None in held else False,
            # Clocks of file servers may be ahead of ours.
            age_s=max(now - self._grown_at, 0.0),
            longest_gap_s=max(self._gaps_s, default=0.0),
            error=self._error,
        )

    def _refresh_facts(self) -> bool:
        """Read config and receipt again if one of them has changed."""
        stamps: list[Any] = []
        for name in ("config.yaml", "receipt.json"):
            try:
                status = (self._folder or self.journal).joinpath(name).stat()
                stamps.append((status.st_mtime_ns, status.st_size))
            except OSError:
                stamps.append(None)
        if stamps == self._facts_stamp:
            return False
        self._facts_stamp = stamps
        self._facts = read_facts(self._folder, self._meta)
        config = self._meta.get("config")
        if not isinstance(config, dict):
            config = read_config(self._folder)
        self._config = dict(_flatten(config))
        return True

    def describe(self, number: int) -> dict[str, Any]:
        """Describe the run among others, for JSON."""
        tags, notes = self._meta.get("tags"), self._meta.get("notes")
        return {
            "id": number,
            "name": self.name,
            "state": self.state[0],
            "why": self.state[1],
            "tags": [str(t) for t in tags] if isinstance(tags, list) else [],
            "notes": notes if isinstance(notes, str) else "",
            "config": self._config,
            "verdict": self._facts["verdict"],
            "read": self.is_read,
            "columns": [
                [*key, to_json_number(curve.last)]
                for key, curve in self._curves.items()
                if curve.points  # a rewind may have taken all of them back
            ],
            "left_out": len(self._left_out),
            "histograms": sorted(self._histograms),
        }

    def details(self) -> dict[str, Any]:
        """Return the page's view of an open run besides curves, for JSON."""
        follower, index = self._follower, self.index
        median = None
        if self._step_seconds:
            median = to_json_number(float(np.median(self._step_seconds)))
        return {
            "title": self.title,
            "folder": str(self._folder or self.journal),
            "facts": self._facts,
            "streams": {} if index is None else index.outline(),
            "extremes": {
                name: [to_json_number(end) for end in curve.extremes]
                for (stream, name), curve in self._curves.items()
                if not stream and curve.last is not None
            },
            "step_seconds": median,
            "grown_at": self._grown_at or None,
            "read_bytes": 0 if follower is None else follower.offset,
            "journal_bytes": 0 if follower is None else follower.size_bytes,
            "closed": self._closed,
            "rewinds": self._rewinds,
            "damage": [] if follower is None else _describe_damage(follower),
        }

    def points(
        self,
        stream: str,
        column: str,
        *,
        axis: str = "step",
        low: float = -np.inf,
        high: float = np.inf,
        max_points: int = 400,
    ) -> dict[str, Any] | None:
        """Return a curve between two places of the axis; None if there is none.

        Args:
            stream: its stream.
            column: its column.
            axis: "step", "time" for seconds since the start, or "clock" for seconds
                since the epoch.
            low: the lower end.
            high: the upper end.
            max_points: the most points; each stands for as many records.
        """
        curve = self._curves.get((stream, column))
        if curve is None:
            return None
        seconds = None
        if axis != "step":
            seconds = self._times(since_start=axis == "time")
            if seconds is None:
                return None
        buckets = curve.buckets
        window: dict[str, Any] = {"low": low, "high": high, "max_points": max_points}
        found = to_points(buckets, seconds, **window)
        is_coarse = curve.size > 1 and 2 * len(found["x"]) < max_points
        if self.index is not None and is_coarse:
            # A short stretch: by single records and not by the buckets of the whole.
            ends = np.array([low, high])
            if seconds is not None:
                ends = np.interp(ends, seconds[1], seconds[0])
            points = self.index.points(stream, column, *ends.tolist())
            if points is not None:
                exact = CurveSummary()
                exact.extend(*points)
                window |= {"low": -np.inf, "high": np.inf}
                return to_points(exact.buckets, seconds, **window)
        return found

    def _times(
        self, *, since_start: bool
    ) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]] | None:
        """Return steps and the seconds at which they were made; None if not known."""
        curve = self._curves.get(_CLOCK)
        if curve is None:
            return None
        buckets = curve.buckets
        buckets = buckets[buckets["count"] > 0]
        if not len(buckets):
            return None
        steps = (buckets["first"] + buckets["last"]) / 2
        seconds = buckets["sum"] / buckets["count"]
        if since_start:
            # Of a journal that was not written by `watch.run` it may be anything.
            started = self._meta.get("started")
            is_known = isinstance(started, int | float)
            seconds = seconds - (started if is_known else seconds[0])
        return steps, seconds

    @property
    def _cache_key(self) -> str:
        place = f"{_FORMAT} {self.journal.resolve()}"
        return hashlib.sha256(place.encode()).hexdigest()[:32]

    def _save(self) -> None:
        entries: list[list[Any]] = []
        parts: list[Shaped[np.ndarray, " n"]] = []
        for key, curve in [*self._curves.items()][:_MAX_COLUMNS]:
            buckets = curve.buckets
            entries.append([*key, curve.size, len(buckets)])
            parts.append(buckets)
        head = {
            "stamp": self._stamp,
            "meta": self._meta,
            "closed": self._closed,
            "offset": self._offset,
            "curves": entries,
            "left_out": sorted([*self._left_out, *[*self._curves][_MAX_COLUMNS:]]),
            "histograms": sorted(self._histograms),
        }
        body = np.concatenate([np.empty(0, BUCKET), *parts]).tobytes()
        _summaries().store(self._cache_key, json.dumps(head).encode() + b"\n" + body)

    def _restore(self) -> None:
        _summaries().load(self._cache_key, self._decode)

    def _decode(self, data: bytes) -> None:
        head, _, body = data.partition(b"\n")
        found, start = json.loads(head), 0
        buckets = np.frombuffer(body, BUCKET)
        for stream, name, size, count in found["curves"]:
            part = buckets[start : start + count]
            self._curves[stream, name] = CurveSummary.restore(part, size)
            start += count
        self._closed, self._offset = found["closed"], found["offset"]
        self._left_out = {(stream, name) for stream, name in found["left_out"]}
        self._histograms = set(found["histograms"])
        self._stamp, self._meta = found["stamp"], found["meta"]
        self._grown_at = self._stamp[2] * 1e-9


def _summaries() -> DiskCache:
    return DiskCache(
        cache_folder("watch-curves"),
        suffix=".curves",
        kind="summary of a run",
        remedy="its journal is read instead",
        max_bytes=_MAX_CACHE_BYTES,
    )


def _flatten(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return nested settings as dotted names with their text."""
    found: list[tuple[str, str]] = []
    for key, value in config.items():
        if isinstance(value, dict):
            found += _flatten(value, f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", str(value)[:200]))
    return found[:300]


def _describe_damage(follower: Follower) -> list[str]:
    lines: list[str] = []
    for lost in follower.lost[:_MAX_DAMAGES]:
        records = ""
        if lost.records is not None:
            records = f", {lost.records} records"
        lines.append(
            f"{lost.size_bytes} bytes at byte {lost.offset}{records}: {lost.reason}"
        )
    if len(follower.lost) > _MAX_DAMAGES:
        lines.append(f"and {len(follower.lost) - _MAX_DAMAGES} more places")
    return lines
