"""Monitor many runs for the page that compares them: a summary of each curve.

Summaries of journals that have not changed since are read from the cache folder, so
that a hundred long runs are on the page at once.
"""

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from frugax.errors import FrugaxError
from frugax.fileio import cache_folder, write_whole

from ..journal import Appended, Follower, Rewound
from ..journal.framing import MAGIC
from ._curve_summary import BUCKET, CurveSummary, to_points
from ._run_folder import read_config, read_facts

_FORMAT = 1
_CACHE = "watch-curves"
# Small enough that an answer need not wait long for a part that is being read.
_POLL_BYTES = 2**17
_RESCAN_S = 3.0
_QUIET_AFTER_S = 30.0
_SAVE_S = 60.0
# Summaries of journals that were not read for this long are removed.
_FORGET_S = 90 * 86400.0
# Of one run; further columns are not drawn, and the page says so.
MAX_COLUMNS = 200
MAX_RUNS = 1000
# The column by which the time of a step is known: of the stream "watch" seconds since
# the epoch, of the training steps seconds of the run.
_CLOCKS = {("watch", "time"), ("", "seconds")}


def find_journals(path: Path) -> list[Path]:
    """Return the journals in or below a folder of runs, by name."""
    found = []
    patterns = ("*", "*/journal", "*/*/journal", "*/*/*/journal")
    for file in sorted({file for pattern in patterns for file in path.glob(pattern)}):
        try:
            if file.is_file():
                with file.open("rb") as opened:
                    if opened.read(len(MAGIC)) == MAGIC:
                        found.append(file)
        except OSError:  # such as a file that nobody may read
            continue
    return found[:MAX_RUNS]


class _ComparedRun:
    """One run: its facts, and the summary of each of its columns."""

    def __init__(self, journal: Path, root: Path) -> None:
        self.journal = journal
        place = journal.parent if journal.name == "journal" else journal
        self.folder = place if place.is_dir() else None
        self.name = str(place.relative_to(root)) if place != root else place.name
        self.curves: dict[tuple[str, str], CurveSummary] = {}
        self.left_out: set[tuple[str, str]] = set()
        self.histograms: set[str] = set()
        self.error = ""
        self._follower: Follower | None = None
        self._meta: dict[str, Any] = {}
        self._closed = False
        self._stamp: list[int] = []
        self._next_save = time.monotonic() + _SAVE_S
        self._offset = 0
        self._facts: dict[str, Any] = {}
        self._config: dict[str, Any] = {}
        self._facts_stamp: list[Any] = [None]
        self._restore()

    def poll(self) -> bool:
        """Read the next part; tells whether anything is new."""
        try:
            status = self.journal.stat()
            stamp = [status.st_ino, status.st_size, status.st_mtime_ns]
            if stamp == self._stamp:
                return False
            if self._follower is None:
                self._follower = Follower(self.journal)
                self._meta = self._follower.meta
                self._facts_stamp = [None]  # its config may be in there alone
                # The curves of the cache stay until the new ones reach as far.
                self._fresh: dict[tuple[str, str], CurveSummary] = {}
            changes = self._follower.poll(_POLL_BYTES)
        except (OSError, FrugaxError) as e:
            self.error, self._follower = str(e.args[0] if e.args else e), None
            return True
        self.error = ""
        for change in changes:
            if isinstance(change, Rewound):
                for (stream, _), curve in self._fresh.items():
                    if stream == change.stream:
                        curve.rewind(change.step)
            elif isinstance(change, Appended):
                self._append(change)
        self._closed = self._follower.closed
        if self._follower.offset >= self._offset:
            self.curves, self._offset = self._fresh, self._follower.offset
        if not changes or self._follower.offset >= self._follower.size_bytes:
            self._stamp = stamp
            # A run that goes on grows all the time.
            if self._closed or time.monotonic() >= self._next_save:
                self._next_save = time.monotonic() + _SAVE_S
                self._save()
        return True

    @property
    def is_read(self) -> bool:
        """Whether the journal has been read to its end."""
        return bool(self._stamp)

    def _append(self, added: Appended) -> None:
        names = set(added.columns)
        if {"counts", "low", "high"} <= names:
            self.histograms.add(added.stream)
        for name, column in added.columns.items():
            key = added.stream, name
            if column.shape or key in self.left_out:
                continue
            if key not in self._fresh:
                if len(self._fresh) >= MAX_COLUMNS:
                    self.left_out.add(key)
                    continue
                self._fresh[key] = CurveSummary()
            steps = added.steps[column.present]
            self._fresh[key].extend(steps, np.asarray(column.values, np.float64))

    def times(self, *, since_start: bool) -> tuple[Any, Any] | None:
        """Return steps and the seconds at which they were made; None if not known."""
        for clock in sorted(_CLOCKS, reverse=True):
            curve = self.curves.get(clock)
            if curve is None:
                continue
            buckets = curve.buckets
            buckets = buckets[buckets["count"] > 0]
            if not len(buckets):
                continue
            # The clock rises, so the last point of a bucket has its highest value. In
            # float32 that is too coarse for the time since the epoch: the mean is not.
            is_epoch = clock[0] == "watch"
            steps = (buckets["first"] + buckets["last"]) / 2
            seconds = buckets["sum"] / buckets["count"]
            started = float(self._meta.get("started") or 0.0)
            if is_epoch and since_start:
                seconds = seconds - (started or seconds[0])
            elif not is_epoch and not since_start:
                if not started:
                    return None
                seconds = seconds + started
            return steps, seconds
        return None

    def describe(self, number: int, now: float) -> dict[str, Any]:
        """Describe the run for JSON."""
        stamps: list[Any] = []
        for name in ("config.yaml", "receipt.json"):
            try:
                status = (self.folder or self.journal).joinpath(name).stat()
                stamps.append((status.st_mtime_ns, status.st_size))
            except OSError:
                stamps.append(None)
        if stamps != self._facts_stamp:
            self._facts_stamp = stamps
            self._facts = read_facts(self.folder, self._meta)
            config = self._meta.get("config")
            if not isinstance(config, dict):
                config = read_config(self.folder)
            self._config = dict(_flatten(config))
        try:
            age = now - self.journal.stat().st_mtime
        except OSError:
            age = float("inf")
        state = "ended" if self._closed else "running"
        if not self._closed and age > _QUIET_AFTER_S:
            state = "quiet"
        if self.error:
            state = "unreadable"
        tags = self._meta.get("tags")
        notes = self._meta.get("notes")
        return {
            "id": number,
            "name": self.name,
            "state": state,
            "why": self.error,
            "tags": [str(t) for t in tags] if isinstance(tags, list) else [],
            "notes": notes if isinstance(notes, str) else "",
            "config": self._config,
            "verdict": self._facts["verdict"],
            "read": self.is_read,
            "columns": [[*key, curve.last] for key, curve in list(self.curves.items())],
            "left_out": len(self.left_out),
            "histograms": sorted(self.histograms),
        }

    @property
    def _cache(self) -> Path:
        name = hashlib.sha256(str(self.journal.resolve()).encode()).hexdigest()[:32]
        return cache_folder(_CACHE) / name

    def _save(self) -> None:
        entries, parts = [], []
        for key, curve in self.curves.items():
            buckets = curve.buckets
            entries.append([*key, curve.size, len(buckets)])
            parts.append(buckets)
        head = {
            "format": _FORMAT,
            "stamp": self._stamp,
            "meta": self._meta,
            "closed": self._closed,
            "offset": self._offset,
            "curves": entries,
            "left_out": sorted(self.left_out),
            "histograms": sorted(self.histograms),
        }
        body = np.concatenate([np.empty(0, BUCKET), *parts]).tobytes()
        try:
            write_whole(self._cache, json.dumps(head).encode() + b"\n" + body)
        # The page works without; the next server reads the journal again.
        except (FrugaxError, OSError, ValueError):
            return

    def _restore(self) -> None:
        try:
            head, _, body = self._cache.read_bytes().partition(b"\n")
            found = json.loads(head)
            if found["format"] != _FORMAT:
                return
            buckets = np.frombuffer(body, BUCKET)
            curves, start = {}, 0
            for stream, name, size, count in found["curves"]:
                part = buckets[start : start + count]
                curves[str(stream), str(name)] = CurveSummary.restore(part, int(size))
                start += count
            self._stamp, self._meta = list(found["stamp"]), dict(found["meta"])
            self._closed, self._offset = bool(found["closed"]), int(found["offset"])
            self.left_out = {(str(s), str(n)) for s, n in found["left_out"]}
            self.histograms = set(found["histograms"])
            self.curves = curves
            os.utime(self._cache)
        # Another format or a damaged file: the journal is read instead.
        except (OSError, ValueError, KeyError, TypeError):
            return


class RunsMonitor:
    """Follows all runs below a folder; `poll` is for one thread.

    Attributes:
        path: the folder.
        title: its name.
        on_stop: called by `stop`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Find the runs and their cached summaries."""
        self.path = Path(path)
        self.title = self.path.resolve().name
        self._runs: list[_ComparedRun] = []
        self._known: set[Path] = set()
        self._next_scan = 0.0
        self._lock = threading.Lock()
        self._changes = 0
        self._stopped = False
        self.on_stop: list[Callable[[], None]] = []
        _forget_old()
        self._scan()

    def _scan(self) -> None:
        if time.monotonic() < self._next_scan:
            return
        self._next_scan = time.monotonic() + _RESCAN_S
        fresh = [j for j in find_journals(self.path) if j not in self._known]
        made = [_ComparedRun(journal, self.path) for journal in fresh]
        self._known.update(fresh)
        with self._lock:
            # At the end: the number of a run is its address, which must not change.
            self._runs += made
            self._changes += bool(made)

    def poll(self) -> bool:
        """Read a part of each journal; tells whether there is more to read."""
        self._scan()
        more = False
        for run in self._runs:
            if self._stopped:
                return False
            with self._lock:
                news = run.poll()
                self._changes += news
            more |= news
        return more

    def stop(self) -> None:
        """End the work that the pages have started; call it in the event loop."""
        self._stopped = True
        for stop in tuple(self.on_stop):
            stop()

    def journal(self, number: int) -> Path:
        """Return the journal of a run.

        Raises:
            LookupError: there is no such run.
        """
        if not 0 <= number < len(self._runs):
            raise LookupError(f"there is no run {number}.")
        return self._runs[number].journal

    def describe(self, known: int) -> dict[str, Any]:
        """Describe all runs for JSON; only the count of changes if that is `known`."""
        now = time.time()
        with self._lock:
            if known == self._changes:
                return {"changes": known}
            runs = [run.describe(i, now) for i, run in enumerate(self._runs)]
            return {
                "changes": self._changes,
                "title": self.title,
                "folder": str(self.path.resolve()),
                "runs": runs,
            }

    def curves(
        self,
        stream: str,
        column: str,
        *,
        axis: str = "step",
        low: float = -np.inf,
        high: float = np.inf,
        max_points: int = 400,
    ) -> dict[str, Any]:
        """Return one column of every run that has it, for JSON."""
        found: dict[str, Any] = {}
        with self._lock:
            for number, run in enumerate(self._runs):
                curve = run.curves.get((stream, column))
                if curve is None:
                    continue
                seconds = None
                if axis != "step":
                    seconds = run.times(since_start=axis == "time")
                    if seconds is None:
                        continue
                found[str(number)] = to_points(
                    curve.buckets, seconds, low=low, high=high, max_points=max_points
                )
        return found


def _forget_old() -> None:
    folder = cache_folder(_CACHE)
    for file in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(OSError):
            if file.stat().st_mtime < time.time() - _FORGET_S:
                file.unlink()


def _flatten(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return nested settings as dotted names with their text."""
    found: list[tuple[str, str]] = []
    for key, value in config.items():
        if isinstance(value, dict):
            found += _flatten(value, f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", str(value)[:200]))
    return found[:300]
