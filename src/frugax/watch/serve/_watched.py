"""One run that is looked at: its journal followed, its state judged."""

import os
from collections import deque
from pathlib import Path
from typing import Any

from frugax.errors import ConfigError, CorruptFileError, FrugaxError

from ..journal import Follower
from ._facts import facts, held
from ._history import History

# A run writes when its overhead budget can pay for it, so a gap alone is no alarm.
_QUIET_AFTER_S = 30.0
_QUIET_AFTER_GAPS = 5.0
_PIECE_BYTES = 4 * 2**20  # of the journal, between two words to the pages
_MOST_DAMAGE = 20


class Watched:
    """A run's folder, or a journal alone, read as it grows. Used by one thread.

    Attributes:
        title: the folder's name.
        history: what the journal has said.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Look at a run.

        Args:
            path: its folder, or a journal file. A folder may still be without a
                journal if there is a config in it: then the run is waited for.

        Raises:
            ConfigError: there is no run.
        """
        given = Path(path)
        if given.is_dir():
            self._folder: Path | None = given.resolve()
            self._journal = self._folder / "journal"
            if not self._journal.is_file() and not (given / "config.yaml").is_file():
                raise ConfigError(
                    f"{given}: there is no run here (neither journal nor config.yaml): "
                    "give the folder that `frugax run` printed, such as runs/digits."
                )
        elif given.is_file():
            self._journal = given.resolve()
            beside = self._journal.parent
            is_run = self._journal.name == "journal" and (
                (beside / "config.yaml").is_file()
                or (beside / "receipt.json").is_file()
            )
            self._folder = beside if is_run else None
            try:
                Follower(self._journal)
            except FrugaxError as e:
                raise ConfigError(f"{e.args[0]} Give a run's folder or journal.") from e
            except OSError as e:
                raise ConfigError(f"{given}: cannot be read: {e.strerror}.") from e
        else:
            raise ConfigError(
                f"{given}: there is no such folder or file: give the folder that "
                "`frugax run` printed, such as runs/digits."
            )
        self.title = (self._folder or self._journal).name
        self.history = History()
        self._tail: Follower | None = None
        self._trouble = ""
        self._facts: dict[str, Any] = {}
        self._facts_of: tuple[Any, ...] = ()
        self._gaps: deque[float] = deque(maxlen=32)
        self._pace: deque[tuple[float, int]] = deque(maxlen=64)
        self._grown_at = 0.0  # of the journal file, seconds since the epoch

    def look(self) -> tuple[bool, bool]:
        """Read what is new, a piece at a time.

        Returns:
            Whether anything new was read, and whether there may be more at once.
        """
        try:
            if self._tail is None:
                if not self._journal.is_file():
                    return False, False
                self._tail = Follower(self._journal)
            changes = self._tail.poll(_PIECE_BYTES)
        except (OSError, CorruptFileError) as e:
            said = str(e.args[0]) if isinstance(e, FrugaxError) else str(e.strerror)
            if self._tail is not None:  # another journal took its place: begin anew
                self._tail, self.history = None, History()
                self._gaps.clear()
                self._pace.clear()
            news, self._trouble = said != self._trouble, said
            return news, False
        except FrugaxError as e:
            self._trouble = str(e.args[0])
            return False, False
        self._trouble = ""
        self.history.take(changes)
        if changes:
            self._note_growth()
        return bool(changes), bool(
            changes
        ) and self._tail.offset < self._tail.size_bytes

    def state(self, *, now: float) -> dict[str, Any]:
        """All that a page shows beside series and frames, for JSON.

        Args:
            now: seconds since the epoch.
        """
        tail = self._tail
        self._refresh_facts(tail)
        outline = self.history.outline()
        age = max(now - self._grown_at, 0.0) if self._grown_at else None
        alive = self._alive(age)
        return {
            "title": self._facts.get("name") or self.title,
            "folder": str(self._folder or self._journal),
            "facts": self._facts,
            "meta": {} if tail is None else tail.meta,
            "streams": outline,
            "alive": alive,
            "grown_at": self._grown_at or None,
            "steps_per_s": self._steps_per_s() if alive["state"] == "running" else None,
            "read_bytes": 0 if tail is None else tail.offset,
            "journal_bytes": 0 if tail is None else tail.size_bytes,
            "closed": tail is not None and tail.closed,
            "damage": [] if tail is None else _damage(tail),
            "trouble": self._trouble,
        }

    def _alive(self, age: float | None) -> dict[str, str]:
        """Whether the run is alive, in one word and one sentence."""
        lock = None if self._folder is None else self._folder / ".lock"
        holds = False if lock is None else held(lock)
        quiet = self._quiet_after_s()
        if self._facts.get("finished") and not holds:
            return {"state": "finished", "why": "The run has ended and left a receipt."}
        if self._tail is None:
            why = "No journal yet: the run has not reached its first step."
            if self._trouble:
                return {"state": "unreadable", "why": self._trouble}
            if holds is False and lock is not None:
                why = "No journal, and no process works in the folder."
            return {"state": "waiting", "why": why}
        if self._tail.closed:
            if holds:
                why = "Training has ended; the run compresses, evaluates or reports."
                return {"state": "finishing", "why": why}
            why = "The journal was closed in good order."
            if self._folder is not None:
                why += " There is no receipt."
            return {"state": "closed", "why": why}
        if age is not None and age <= quiet:
            return {"state": "running", "why": "Records are coming in."}
        since = "some time" if age is None else _duration(age)
        if holds:
            why = f"Nothing new for {since}, but its process still holds the folder."
            return {"state": "quiet", "why": why}
        if holds is None or lock is None:
            why = f"Nothing new for {since}; whether its process lives is not known."
            return {"state": "quiet", "why": why}
        why = f"Nothing new for {since}, the journal is not closed and no process "
        return {"state": "died", "why": why + "holds the folder: it was killed."}

    def _quiet_after_s(self) -> float:
        usual = max(self._gaps, default=0.0)
        return max(_QUIET_AFTER_S, _QUIET_AFTER_GAPS * usual)

    def _note_growth(self) -> None:
        try:
            grown = self._journal.stat().st_mtime
        except OSError:
            return
        if self._grown_at and grown > self._grown_at:
            self._gaps.append(grown - self._grown_at)
        self._grown_at = grown
        last = self.history.last_step
        if last is not None:
            self._pace.append((grown, last))

    def _steps_per_s(self) -> float | None:
        """As seen from here, by the journal's growth."""
        if len(self._pace) < 2:
            return None
        (begun, first), (ended, last) = self._pace[0], self._pace[-1]
        if ended <= begun or last <= first:
            return None
        return float(f"{(last - first) / (ended - begun):.4g}")

    def _refresh_facts(self, tail: Follower | None) -> None:
        stamps: list[Any] = [id(tail)]
        for name in ("config.yaml", "receipt.json"):
            try:
                about = (self._folder or self._journal).joinpath(name).stat()
                stamps.append((about.st_mtime_ns, about.st_size))
            except OSError:
                stamps.append(None)
        if tuple(stamps) != self._facts_of:
            self._facts_of = tuple(stamps)
            self._facts = facts(self._folder, {} if tail is None else tail.meta)


def _damage(tail: Follower) -> list[str]:
    said = []
    for lost in tail.lost[:_MOST_DAMAGE]:
        records = "" if lost.records is None else f", {lost.records} records"
        said.append(
            f"{lost.size_bytes} bytes at byte {lost.offset}{records}: {lost.reason}"
        )
    if len(tail.lost) > _MOST_DAMAGE:
        said.append(f"and {len(tail.lost) - _MOST_DAMAGE} more places")
    return said


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.0f} s"
