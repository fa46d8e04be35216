"""The runs that a page shows: one, or all those below a folder."""

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from frugax.errors import ConfigError, FrugaxError

from ..journal import Follower
from ..journal.framing import MAGIC
from ._journal_index import JournalIndex
from ._run_store import RunStore

_RESCAN_S = 3.0
_MAX_RUNS = 1000
# Runs whose single records can be found at a time: their indices take memory.
_MAX_OPEN_RUNS = 4


class RunCollection:
    """Follows runs; `poll` is for one thread, all else for any.

    Attributes:
        title: the name of the run, or of the folder.
        changes: how often something has changed; part of every answer.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Find the runs and their cached summaries.

        Args:
            path: the folder of a run, a journal file, or a folder of several of these.

        Raises:
            ConfigError: there is no run.
        """
        path = Path(path)
        self._path = path.resolve()
        self._runs: list[RunStore] = []
        self._open: list[RunStore] = []  # the least recently asked for first
        self._lock = threading.Lock()
        self._stopped = False
        self.changes = 0
        alone = _find_run(path)
        # A run may begin later below a folder of them, but not below a run.
        self._next_scan = 0.0 if alone is None else np.inf
        if alone is None:
            self._scan()
        else:
            self._add([alone])
        if not self._runs:
            raise ConfigError(
                f"{path}: there is no run here (neither journal nor config.yaml): give "
                "the folder that `frugax run` printed, such as runs/digits."
            )
        self.title = self._path.name
        if len(self._runs) == 1:
            self.title = self._runs[0].title

    def _add(self, journals: Sequence[Path]) -> None:
        made = [RunStore(journal, self._name(journal)) for journal in journals]
        with self._lock:
            # At the end: the number of a run is its address, which must not change.
            self._runs += made
            self.changes += bool(made)

    def _name(self, journal: Path) -> str:
        place = journal.parent if journal.name == "journal" else journal
        if place == self._path or not place.is_relative_to(self._path):
            return place.name
        return str(place.relative_to(self._path))

    def _scan(self) -> None:
        if time.monotonic() < self._next_scan:
            return
        self._next_scan = time.monotonic() + _RESCAN_S
        known = {run.journal for run in self._runs}
        self._add([j for j in _find_journals(self._path) if j not in known])

    def poll(self) -> bool:
        """Read a part of each journal; tells whether there is more to read."""
        self._scan()
        more = False
        for run in self._runs:
            if self._stopped:
                return False
            with self._lock:
                has_news, has_more = run.poll(time.time())
                self.changes += has_news
            more |= has_more
        return more

    def stop(self) -> None:
        """End a `poll` that is under way."""
        self._stopped = True

    def describe(self, known: int = -1) -> dict[str, Any]:
        """Describe all runs for JSON; only the count of changes if that is `known`."""
        with self._lock:
            if known == self.changes:
                return {"changes": known}
            return {
                "changes": self.changes,
                "title": self.title,
                "folder": str(self._path),
                "runs": [run.describe(i) for i, run in enumerate(self._runs)],
            }

    def details(self, number: int, known: int = -1) -> dict[str, Any]:
        """Describe one run for JSON; only the count of changes if that is `known`.

        Raises:
            LookupError: there is no such run.
        """
        with self._lock:
            run = self._opened(number)
            if known == self.changes:
                return {"changes": known}
            return {"changes": self.changes, **run.describe(number), **run.details()}

    def index(self, number: int) -> JournalIndex:
        """Return the finder of single records of a run.

        Raises:
            LookupError: there is no such run.
        """
        with self._lock:
            index = self._opened(number).index
            assert index is not None  # made by `_opened`
            return index

    def curves(
        self,
        keys: Sequence[tuple[str, str]],
        *,
        axis: str = "step",
        low: float = -np.inf,
        high: float = np.inf,
        max_points: int = 400,
        number: int | None = None,
    ) -> list[dict[str, Any]]:
        """Return for each stream and column the curve of every run that has it.

        Args:
            keys: streams and columns.
            axis: "step", "time" or "clock"; see `RunStore.points`.
            low: the lower end of the axis.
            high: the upper end.
            max_points: the most points of a curve.
            number: one run alone; None for all.

        Returns:
            For each key the points by the number of the run, for JSON.

        Raises:
            LookupError: there is no such run.
        """
        found: list[dict[str, Any]] = []
        window: dict[str, Any] = {"axis": axis, "low": low, "high": high}
        with self._lock:
            runs = dict(enumerate(self._runs))
            if number is not None:
                runs = {number: self._opened(number)}
            for key in keys:
                curves = {
                    str(i): run.points(*key, **window, max_points=max_points)
                    for i, run in runs.items()
                }
                found.append({i: one for i, one in curves.items() if one is not None})
        return found

    def _opened(self, number: int) -> RunStore:
        if not 0 <= number < len(self._runs):
            raise LookupError(f"there is no run {number}.")
        run = self._runs[number]
        run.open()
        if run in self._open:
            self._open.remove(run)
        self._open.append(run)
        while len(self._open) > _MAX_OPEN_RUNS:
            self._open.pop(0).close()
        return run


def _find_run(path: Path) -> Path | None:
    """Return the journal of a run, which need not exist yet; None for a folder.

    Raises:
        ConfigError: there is no such folder or file, or the file is not a journal.
    """
    if path.is_dir():
        journal = path / "journal"
        if journal.is_file() or (path / "config.yaml").is_file():
            return journal.resolve()
        return None
    if not path.is_file():
        raise ConfigError(
            f"{path}: there is no such folder or file: give the folder that "
            "`frugax run` printed, such as runs/digits."
        )
    try:
        Follower(path)
    except FrugaxError as e:
        raise ConfigError(f"{e.args[0]} Give a run's folder or journal.") from e
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read: {e.strerror}.") from e
    return path.resolve()


def _find_journals(folder: Path) -> list[Path]:
    """Return the journals in or below a folder of runs, by name."""
    found: list[Path] = []
    patterns = ("*", "*/journal", "*/*/journal", "*/*/*/journal")
    for file in sorted({file for pattern in patterns for file in folder.glob(pattern)}):
        try:
            if file.is_file():
                with file.open("rb") as opened:
                    if opened.read(len(MAGIC)) == MAGIC:
                        found.append(file)
        except OSError:  # such as a file that nobody may read
            continue
    return found[:_MAX_RUNS]
