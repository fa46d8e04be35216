"""Save and load a campaign as an `.npz` file without pickles, locked while in use."""

import io
import json
import os
import weakref
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from frugax.budget import WrongValueError, from_plain, to_plain
from frugax.causal.data import Samples
from frugax.errors import (
    CorruptFileError,
    FrugaxError,
    OutputError,
    UnsupportedFileError,
)
from frugax.fileio import check_ownership, lock, write_error_reason, write_whole

from ._experiments import ExperimentRecord, remaining_budget
from ._settings import CampaignSettings
from ._state import CampaignState
from .regret_forecast import ExpectedRegret

_FORMAT = "frugax campaign"
_VERSION = 1


def hold_lock(path: str | os.PathLike[str]) -> io.FileIO:
    """Keep others from writing a campaign's file until the returned file is closed."""
    # Every write replaces the campaign's file, so one beside it is locked. The system
    # releases the lock when the process ends, `kill -9` included.
    beside = Path(f"{os.fspath(path)}.lock")
    if not (folder := Path(path).parent).is_dir():
        raise OutputError(
            f"cannot write {os.fspath(path)}: there is no folder {folder}. Make it, or "
            "choose another place."
        )
    try:
        # Opening to append creates the file, and leaves one that another process holds
        # as it is.
        file = io.FileIO(beside, "a")
    except OSError as e:
        raise OutputError(write_error_reason(beside, e)) from e
    try:
        lock(file, Path(path))
    except BaseException:
        file.close()
        raise
    return file


def check_replaceable(path: str | os.PathLike[str], state: CampaignState) -> None:
    """Refuse to overwrite anything but an earlier state of the same campaign."""
    there = check_ownership(path, read_state, "campaign")
    if there is None:
        return
    # The time of its start identifies a campaign: two with one config differ in nothing
    # else before their first answers.
    if (there.began_s, there.settings) != (state.began_s, state.settings):
        raise OutputError(
            f"{os.fspath(path)} holds another campaign: go on with that one by "
            "Campaign.load, or name another path."
        )
    if not there.is_continued_by(state):
        raise OutputError(
            f"{os.fspath(path)} has changed since this campaign was read from it: read "
            "it again by Campaign.load, or name another path."
        )


class KeptFile:
    """The file to which a campaign is written, locked against other writers."""

    def __init__(self) -> None:
        self._path: str | os.PathLike[str] | None = None
        self._release: Callable[[], Any] | None = None
        self._closed = False

    def save(self, path: str | os.PathLike[str], state: CampaignState) -> None:
        """Write a state once, without keeping the file."""
        check_replaceable(path, state)
        if self._keeps(path):
            write_state(path, state)
            return
        with hold_lock(path):
            # Again, as another process may have written before the lock was held.
            check_replaceable(path, state)
            write_state(path, state)

    def keep(
        self, path: str | os.PathLike[str], state: CampaignState, *, owner: object
    ) -> None:
        """Write a state, and hold the file's lock as long as its owner lives."""
        if self._keeps(path):
            return
        # First of all, so that a refused path gets no lock file beside it.
        check_replaceable(path, state)
        held = hold_lock(path)
        try:
            # Again, as another process may have written before the lock was held.
            check_replaceable(path, state)
            write_state(path, state)
        except BaseException:
            held.close()
            raise
        if self._release is not None:
            self._release()
        self._release = weakref.finalize(owner, held.close)
        self._path, self._closed = path, False

    def write(self, state: CampaignState) -> None:
        """Write a state to the file that is kept, if any."""
        if self._closed:
            raise FrugaxError(
                "this campaign is closed, so its file would not get this change: call "
                "keep again, or go on with Campaign.load."
            )
        if self._path is not None:
            write_state(self._path, state)

    def close(self) -> None:
        """Let others write the file."""
        if self._release is not None:
            self._release()
            self._release, self._path, self._closed = None, None, True

    def _keeps(self, path: str | os.PathLike[str]) -> bool:
        # Another spelling of the path, or a link to it, must not ask for the lock
        # again: this campaign itself would be refused.
        return self._path is not None and os.path.realpath(path) == os.path.realpath(
            self._path
        )


def write_state(path: str | os.PathLike[str], state: CampaignState) -> None:
    """Write a campaign whole or not at all."""
    table = state.table
    content: dict[str, Any] = {
        "format": _FORMAT,
        "version": _VERSION,
        "settings": to_plain(state.settings),
        "began_s": state.began_s,
        "experiments": to_plain(state.experiments),
        "columns": None if table is None else list(table.variables),
        "planned": to_plain(state.planned),
    }
    # The JSON is an array of bytes: one file, one checksum, and no second format.
    text = json.dumps(content, allow_nan=False).encode()
    arrays = {
        "campaign": np.frombuffer(text, np.uint8),
        "experiment_ids": state.experiment_ids,
    }
    if table is not None:
        arrays |= {"values": table.values, "intervened": table.intervened}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    write_whole(path, buffer.getvalue())


def read_state(path: str | os.PathLike[str]) -> CampaignState:
    """Read a campaign; the archive checks every byte of its arrays."""
    name = os.fspath(path)
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError as e:
        raise FileNotFoundError(
            f"{name}: there is no such file. Pass the path to which a campaign was "
            "saved."
        ) from e
    except IsADirectoryError as e:
        raise IsADirectoryError(
            f"{name} is a folder: pass the campaign's file, such as "
            f"{os.path.join(name, 'campaign')}."
        ) from e
    try:
        if not zipfile.is_zipfile(io.BytesIO(data)):
            # NumPy would take it for a pickle, and advise to allow pickles.
            raise CorruptFileError(
                f"{name} is damaged, or not a campaign (not an archive of arrays): "
                "restore a copy of it."
            )
        # The zip archive has a checksum of each array, so damage cannot pass as data.
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        content = json.loads(arrays["campaign"].tobytes())
        if content["format"] != _FORMAT:
            raise CorruptFileError(
                f"{name} holds a {content['format']!r:.60}, not a campaign."
            )
        # Keys of a newer version may mean something else, so they are not guessed.
        if content["version"] > _VERSION:
            raise UnsupportedFileError(
                f"{name} was written by a newer version of frugax: update frugax."
            )
        return _parse(content, arrays)
    # Everything that NumPy, zipfile, json and the checks raise for damaged bytes.
    except (
        *(ValueError, KeyError, TypeError, IndexError, EOFError, OSError),
        *(zipfile.BadZipFile, zlib.error, WrongValueError, NotImplementedError),
    ) as e:
        raise CorruptFileError(
            f"{name} is damaged, or not a campaign ({str(e) or type(e).__name__}): "
            "restore a copy of it."
        ) from e


def _parse(
    content: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> CampaignState:
    """Build a state, and check that its parts agree."""
    table, num_rows = None, 0
    if content["columns"] is not None:
        columns = tuple(content["columns"])
        table = Samples(columns, arrays["values"], arrays["intervened"])
        num_rows = len(table)
    experiments = tuple(from_plain(ExperimentRecord, e) for e in content["experiments"])
    ids = arrays["experiment_ids"].astype(np.int64)
    if len(ids) != num_rows:
        raise ValueError("its rows and their experiments differ in number")
    if [one.id for one in experiments] != list(range(len(experiments))):
        raise ValueError("its experiments are not numbered from 0")
    # Ids go from -2 - id, for replaced rows, to that of the last experiment.
    if num_rows and not -2 - len(experiments) < ids.min() <= ids.max() < len(
        experiments
    ):
        raise ValueError("a row belongs to no experiment")
    settings = from_plain(CampaignSettings, content["settings"])
    # `ask` never overdraws a budget, so such a file was edited.
    if min(remaining_budget(settings.budget, experiments).values(), default=0) < 0:
        raise ValueError("its experiments cost more than its budget")
    return CampaignState(
        settings=settings,
        began_s=float(content["began_s"]),
        experiments=experiments,
        table=table,
        experiment_ids=ids,
        planned=tuple(from_plain(ExpectedRegret, e) for e in content["planned"]),
    )
