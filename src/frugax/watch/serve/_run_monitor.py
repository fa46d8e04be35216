"""Monitor one run for the live page: follow its journal, judge whether it is alive."""

import os
from collections import deque
from pathlib import Path
from typing import Any

from frugax.errors import ConfigError, CorruptFileError, FrugaxError

from ..journal import Follower
from ._history import History
from ._run_folder import is_lock_held, read_facts

# A run writes when its overhead budget allows it, so a gap alone is not an alarm.
_QUIET_AFTER_S = 30.0
_QUIET_AFTER_GAPS = 5.0
# The bytes of the journal to read before the pages are notified.
# Small enough that a page of a long journal shows progress while it is read.
_POLL_BYTES = 4 * 2**20
_MAX_DAMAGES = 20


class RunMonitor:
    """Follows the folder of a run, or a journal alone; used by one thread.

    Attributes:
        title: the name of the folder.
        history: the content of the journal so far.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Find the run."""
        path = Path(path)
        if path.is_dir():
            self._folder: Path | None = path.resolve()
            self._journal = self._folder / "journal"
            if not self._journal.is_file() and not (path / "config.yaml").is_file():
                raise ConfigError(
                    f"{path}: there is no run here (neither journal nor config.yaml): "
                    "give the folder that `frugax run` printed, such as runs/digits."
                )
        elif path.is_file():
            self._journal = path.resolve()
            folder = self._journal.parent
            is_run = self._journal.name == "journal" and (
                (folder / "config.yaml").is_file()
                or (folder / "receipt.json").is_file()
            )
            self._folder = None
            if is_run:
                self._folder = folder
            try:
                Follower(self._journal)
            except FrugaxError as e:
                raise ConfigError(f"{e.args[0]} Give a run's folder or journal.") from e
            except OSError as e:
                raise ConfigError(f"{path}: cannot be read: {e.strerror}.") from e
        else:
            raise ConfigError(
                f"{path}: there is no such folder or file: give the folder that "
                "`frugax run` printed, such as runs/digits."
            )
        self.title = (self._folder or self._journal).name
        self.history = History()
        self._follower: Follower | None = None
        self._error = ""
        self._facts: dict[str, Any] = {}
        self._facts_key: tuple[Any, ...] = ()
        # Recent ones only, so that a pause for compiling is forgotten after a while.
        self._write_gaps_s: deque[float] = deque(maxlen=32)
        self._progress: deque[tuple[float, int]] = deque(maxlen=64)
        self._grown_at = 0.0  # when the journal last grew, in seconds since the epoch

    def poll(self) -> tuple[bool, bool]:
        """Read the next part of the journal."""
        try:
            if self._follower is None:
                if not self._journal.is_file():
                    return False, False
                self._follower = Follower(self._journal)
            changes = self._follower.poll(_POLL_BYTES)
        except (OSError, CorruptFileError) as e:
            message = str(e.args[0] if isinstance(e, CorruptFileError) else e.strerror)
            if self._follower is not None:
                # Another journal may have taken its place: start from the beginning.
                self._follower, self.history = None, History()
                self._write_gaps_s.clear()
                self._progress.clear()
            news, self._error = message != self._error, message
            return news, False
        except FrugaxError as e:
            self._error = str(e.args[0])
            return False, False
        self._error = ""
        if not changes:
            return False, False
        self.history.apply(changes)
        self._note_growth()
        return True, self._follower.offset < self._follower.size_bytes

    def state(self, *, now: float) -> dict[str, Any]:
        """Return everything that a page shows besides series and frames, for JSON."""
        follower = self._follower
        self._refresh_facts(follower)
        age = None
        if self._grown_at:
            # Clocks of file servers may be ahead of ours.
            age = max(now - self._grown_at, 0.0)
        alive = self._judge_liveness(age)
        steps_per_s = None
        if alive["state"] == "running":
            steps_per_s = self._steps_per_s()
        state = {
            "title": self._facts.get("name") or self.title,
            "folder": str(self._folder or self._journal),
            "facts": self._facts,
            "meta": {},
            "streams": self.history.outline(),
            "alive": alive,
            "grown_at": self._grown_at or None,
            "steps_per_s": steps_per_s,
            "read_bytes": 0,
            "journal_bytes": 0,
            "closed": False,
            "damage": [],
            "trouble": self._error,
        }
        if follower is not None:
            state |= {
                "meta": follower.meta,
                "read_bytes": follower.offset,
                "journal_bytes": follower.size_bytes,
                "closed": follower.closed,
                "damage": _describe_damage(follower),
            }
        return state

    # "why" is shown on the page, so it is a sentence for its reader.
    def _judge_liveness(self, age: float | None) -> dict[str, str]:
        lock, is_held = None, False
        if self._folder is not None:
            lock = self._folder / ".lock"
            is_held = is_lock_held(lock)
        quiet_after_s = max(
            _QUIET_AFTER_S,
            _QUIET_AFTER_GAPS * max(self._write_gaps_s, default=0.0),
        )
        if self._facts.get("finished") and not is_held:
            return {"state": "finished", "why": "The run has ended and left a receipt."}
        if self._follower is None:
            why = "No journal yet: the run has not reached its first step."
            if self._error:
                return {"state": "unreadable", "why": self._error}
            if is_held is False and lock is not None:
                why = "No journal, and no process is working in the folder."
            return {"state": "waiting", "why": why}
        if self._follower.closed:
            if is_held:
                why = "Training has ended; the run compresses, evaluates or reports."
                return {"state": "finishing", "why": why}
            why = "The journal was closed properly."
            if self._folder is not None:
                why += " There is no receipt."
            return {"state": "closed", "why": why}
        if age is not None and age <= quiet_after_s:
            return {"state": "running", "why": "Records are coming in."}
        since = "some time" if age is None else _format_duration(age)
        if is_held:
            why = f"Nothing new for {since}, but its process still holds the folder."
            return {"state": "quiet", "why": why}
        if is_held is None or lock is None:
            why = f"Nothing new for {since}; whether its process lives is not known."
            return {"state": "quiet", "why": why}
        why = f"Nothing new for {since}, the journal is not closed and no process "
        return {"state": "died", "why": why + "holds the folder: it was killed."}

    def _note_growth(self) -> None:
        try:
            grown = self._journal.stat().st_mtime
        except OSError:
            return
        # The longest of the recent gaps tells a slow run from a dead one.
        if self._grown_at and grown > self._grown_at:
            self._write_gaps_s.append(grown - self._grown_at)
        self._grown_at = grown
        last = self.history.last_step
        if last is not None:
            self._progress.append((grown, last))

    def _steps_per_s(self) -> float | None:
        """Estimate the speed of the run from the growth of its journal."""
        if len(self._progress) < 2:
            return None
        (start, first), (end, last) = self._progress[0], self._progress[-1]
        if end <= start or last <= first:
            return None
        return float(f"{(last - first) / (end - start):.4g}")

    def _refresh_facts(self, follower: Follower | None) -> None:
        # Config and receipt are read again only when a file has changed.
        stamps: list[Any] = [id(follower)]
        for name in ("config.yaml", "receipt.json"):
            try:
                status = (self._folder or self._journal).joinpath(name).stat()
                stamps.append((status.st_mtime_ns, status.st_size))
            except OSError:
                stamps.append(None)
        if tuple(stamps) != self._facts_key:
            self._facts_key = tuple(stamps)
            meta = {} if follower is None else follower.meta
            self._facts = read_facts(self._folder, meta)


def _describe_damage(follower: Follower) -> list[str]:
    lines = []
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


def _format_duration(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.0f} s"
