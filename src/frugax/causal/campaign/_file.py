"""A campaign in one file: arrays and JSON in a zip archive, nothing that could run."""

import dataclasses
import io
import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from frugax.budget import WrongValueError, from_plain, to_plain
from frugax.causal.data import Samples
from frugax.causal.posterior import (
    HyperparameterPosterior as Shapes,
    Hyperparameters as Shape,
)
from frugax.errors import CorruptFileError, OutputError, UnsupportedFileError
from frugax.fileio import check_ownership, lock, write_error_reason, write_whole

from ._ledger import Entry, left
from ._settings import Settings

_FORMAT = "frugax campaign"
_VERSION = 3  # 1 had no corrections, 2 no spread of the worlds in forecasts


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All there is to a campaign.

    Attributes:
        settings: what it was told at its start.
        began_s: when, in seconds since 1970.
        entries: its experiments.
        table: all rows; None before there are any.
        of_entry: for each row the number of its experiment; -1 for observations, and
            -2 - number for rows that a correction has replaced.
        shapes: of mechanisms, which save the search for them.
        shaped: the variables whose positions the keys of `shapes` are.
    """

    settings: Settings
    began_s: float
    entries: tuple[Entry, ...] = ()
    table: Samples | None = None
    of_entry: np.ndarray = dataclasses.field(
        default_factory=lambda: np.empty(0, np.int64)
    )
    shapes: Mapping[tuple[int, int], Shapes] = dataclasses.field(default_factory=dict)
    shaped: tuple[str, ...] = ()

    @property
    def standing(self) -> "State":
        """The same without what corrections have replaced."""
        stands = self.of_entry >= -1
        if self.table is None or stands.all():
            return self
        table = self.table.rows(stands)
        # A name that only a mistaken answer had has not been measured.
        names = [
            n
            for n in table.variables
            if n in self.settings.named or np.isfinite(table[n]).any()
        ]
        return dataclasses.replace(
            self,
            table=table.select(names) if len(table) else None,
            of_entry=self.of_entry[stands],
        )


def lock_of(path: str | os.PathLike[str]) -> Path:
    """The file beside a campaign's that is locked: every write replaces the latter."""
    return Path(f"{os.fspath(path)}.lock")


def hold(path: str | os.PathLike[str]) -> io.FileIO:
    """Keep others from writing a campaign's file until this is closed.

    The system ends the lock with the process, `kill -9` included.

    Args:
        path: of the campaign.

    Raises:
        OutputError: another holds it, or the folder cannot be written.
    """
    beside = lock_of(path)
    if not (folder := Path(path).parent).is_dir():
        raise OutputError(
            f"cannot write {os.fspath(path)}: there is no folder {folder}. Make it, or "
            "choose another place."
        )
    try:
        file = io.FileIO(beside, "a")
    except OSError as e:
        raise OutputError(write_error_reason(beside, e)) from e
    try:
        lock(file, Path(path))
    except BaseException:
        file.close()
        raise
    return file


def check_free(path: str | os.PathLike[str], state: State) -> None:
    """Refuse to write over anything but an earlier state of the same campaign.

    Raises:
        OutputError: another campaign is there, a later state, or no campaign at all.
    """
    there = check_ownership(path, read, "campaign")
    if there is None:
        return
    if (there.began_s, there.settings) != (state.began_s, state.settings):
        raise OutputError(
            f"{os.fspath(path)} holds another campaign: go on with that one by "
            "Campaign.load, or name another path."
        )
    if not _goes_on(there, state):
        raise OutputError(
            f"{os.fspath(path)} has changed since this campaign was read from it: read "
            "it again by Campaign.load, or name another path."
        )


def _goes_on(there: State, state: State) -> bool:
    """Whether nothing of one state is lost where the other replaces it."""
    pairs = list(zip(there.entries, state.entries, strict=False))
    later = {new.id for old, new in pairs if _is_corrected(old, new)}
    if len(there.entries) > len(state.entries) or not all(
        old.values == new.values
        and (old.status in ("pending", new.status) or new.id in later)
        for old, new in pairs
    ):
        return False
    replaced = np.isin(there.of_entry, list(later))
    now = np.where(replaced, -2 - there.of_entry, there.of_entry)
    if now.tolist() != state.of_entry[: len(now)].tolist():
        return False
    if there.table is None or state.table is None:
        return there.table is None
    if not {*there.table.variables} <= {*state.table.variables}:
        return False
    values = state.table.select(there.table.variables).values[: len(now)]
    return np.array_equal(values, there.table.values, equal_nan=True)


def _is_corrected(old: Entry, new: Entry) -> bool:
    """Whether one is the other after some more corrections."""
    known = len(old.corrected)
    return len(new.corrected) > known and new.corrected[:known] == old.corrected


def write(path: str | os.PathLike[str], state: State) -> None:
    """Write a campaign whole or not at all.

    Raises:
        OutputError: it cannot be written.
    """
    table = state.table
    told: dict[str, Any] = {
        "format": _FORMAT,
        "version": _VERSION,
        "settings": to_plain(state.settings),
        "began_s": state.began_s,
        "entries": to_plain(state.entries),
        "columns": None if table is None else list(table.variables),
        "shapes": [
            {
                "of": list(key),
                "each": [
                    {"line": h.line_gain, "bends": h.bends, "waves": h.waves}
                    for h in shapes.candidates
                ],
                "odds": shapes.probs.tolist(),
                "rows": shapes.num_rows,
                "reach": [list(ends) for ends in shapes.support],
            }
            for key, shapes in state.shapes.items()
        ],
        "shaped": list(state.shaped),
    }
    text = json.dumps(told, allow_nan=False).encode()
    arrays = {"campaign": np.frombuffer(text, np.uint8), "of_entry": state.of_entry}
    if table is not None:
        arrays |= {"values": table.values, "intervened": table.intervened}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    write_whole(path, buffer.getvalue())


def read(path: str | os.PathLike[str]) -> State:
    """Read a campaign; every byte of the file is checked.

    Raises:
        CorruptFileError: the file is damaged, or no campaign.
        FileNotFoundError: there is none.
        UnsupportedFileError: it is of a newer version.
    """
    name = os.fspath(path)
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError as e:
        raise FileNotFoundError(
            f"{name}: there is no such file. Give one that a campaign was saved or "
            "kept in."
        ) from e
    try:
        if not zipfile.is_zipfile(io.BytesIO(data)):
            # NumPy would take it for a pickle and advise to allow that.
            raise CorruptFileError(
                f"{name} is no campaign, or damaged (it is no archive of arrays): go "
                "back to a copy of it."
            )
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        told = json.loads(arrays["campaign"].tobytes())
        if told["format"] != _FORMAT:
            raise CorruptFileError(f"{name} is a {told['format']!r:.60}, no campaign.")
        if told["version"] > _VERSION:
            raise UnsupportedFileError(
                f"{name} was written by a newer version of frugax: update it."
            )
        return _state(told, arrays)
    except (
        *(ValueError, KeyError, TypeError, IndexError, EOFError, OSError),
        *(zipfile.BadZipFile, zlib.error, WrongValueError, NotImplementedError),
    ) as e:
        raise CorruptFileError(
            f"{name} is no campaign, or damaged "
            f"({str(e) or type(e).__name__}): go back to a copy of it."
        ) from e


def _state(told: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> State:
    """Put a campaign together, checking that its parts agree.

    Raises:
        ValueError: they do not.
    """
    table = None
    if told["columns"] is not None:
        table = Samples(tuple(told["columns"]), arrays["values"], arrays["intervened"])
    entries = tuple(from_plain(Entry, e) for e in told["entries"])
    of_entry = arrays["of_entry"].astype(np.int64)
    if len(of_entry) != (0 if table is None else len(table)):
        raise ValueError("its rows and their experiments differ in number")
    if [e.id for e in entries] != list(range(len(entries))):
        raise ValueError("its experiments are not numbered from 0")
    if len(of_entry) and not (
        -2 - len(entries) < of_entry.min() <= of_entry.max() < len(entries)
    ):
        raise ValueError("a row belongs to no experiment")
    settings = from_plain(Settings, told["settings"])
    if min(left(settings.budget, entries).values(), default=0) < 0:
        raise ValueError("its experiments cost more than its budget")
    return State(
        settings=settings,
        began_s=float(told["began_s"]),
        entries=entries,
        table=table,
        of_entry=of_entry,
        shapes={
            (int(s["of"][0]), int(s["of"][1])): Shapes(
                tuple(
                    Shape(
                        h["line"],
                        tuple((float(a), float(b)) for a, b in h["bends"]),
                        (int(h["waves"][0]), float(h["waves"][1])),
                    )
                    for h in s["each"]
                ),
                np.array(s["odds"], np.float64),
                int(s["rows"]),
                tuple((float(low), float(high)) for low, high in s["reach"]),
            )
            for s in told["shapes"]
        },
        shaped=tuple(told["shaped"]),
    )
