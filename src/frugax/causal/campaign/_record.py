"""What has happened in a campaign so far: experiments, rows, money; and its file."""

import dataclasses
import os
import time
import weakref
from typing import Any, TypeVar

import numpy as np

from frugax.causal.data import Samples
from frugax.errors import FrugaxError

from . import _file, _ledger
from ._answers import joined
from ._file import State
from ._ledger import Entry
from ._settings import Settings

_OfKind = TypeVar("_OfKind", bound="Record")


class Record:
    """A campaign's books, kept in memory and, if it is told where, on disk."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._path: str | os.PathLike[str] | None = None
        self._let_go: weakref.finalize[..., Record] | None = None
        self._closed = False

    def close(self) -> None:
        """Let others write the file that `keep` was given; nothing more can be told.

        What is known stays here to be read, and `keep` goes on.
        """
        if self._let_go is not None:
            self._let_go()
            self._let_go, self._path, self._closed = None, None, True

    def __enter__(self: _OfKind) -> _OfKind:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all of it into one file, whole or not at all.

        Args:
            path: the file; one that is there must be of this campaign.

        Raises:
            OutputError: it cannot be written, something else or a later state is
                there, or another campaign that goes on keeps it.
        """
        _file.check_free(path, self._state)
        if self._keeps(path) or not _file.lock_of(path).exists():
            _file.write(path, self._state)
            return
        with _file.hold(path):
            _file.write(path, self._state)

    def keep(self, path: str | os.PathLike[str]) -> None:
        """Save now, and from now on before every question and after every answer.

        Whatever kills the process then costs at most the question nobody has answered.
        Until `close`, or as long as this campaign is there, no other may write it.

        Args:
            path: the file; one that is there must be of this campaign.

        Raises:
            OutputError: it cannot be written, something else or a later state is
                there, or another campaign that goes on keeps it.
        """
        if self._keeps(path):
            return
        _file.check_free(path, self._state)  # before a lock is put beside it
        held = _file.hold(path)
        try:
            _file.check_free(path, self._state)  # nobody else can change it now
            _file.write(path, self._state)
        except BaseException:
            held.close()
            raise
        if self._let_go is not None:
            self._let_go()
        self._let_go = weakref.finalize(self, held.close)
        self._path, self._closed = path, False

    def _keeps(self, path: str | os.PathLike[str]) -> bool:
        return self._path is not None and os.path.realpath(path) == os.path.realpath(
            self._path
        )

    @property
    def settings(self) -> Settings:
        """What the campaign was told at its start."""
        return self._state.settings

    @property
    def asks(self) -> tuple[Entry, ...]:
        """All experiments that were asked for, in order."""
        return self._state.entries

    @property
    def pending(self) -> tuple[Entry, ...]:
        """The experiments whose answers are awaited."""
        return tuple(e for e in self._state.entries if e.status == "pending")

    @property
    def samples(self) -> Samples | None:
        """All rows that were told and stand; None before there are any."""
        return self._state.standing.table

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """What has constraints but no value yet: they do not count until it has one."""
        table, settings = self.samples, self.settings
        return tuple(
            n
            for n in settings.constraints
            if n not in settings.variables
            and (
                table is None
                or n not in table.variables
                or not np.isfinite(table[n]).any()
            )
        )

    @property
    def measured(self) -> bool:
        """Whether any row has a value of the target: else nothing is known of it."""
        return self._has_target(self._state.of_entry >= -1)

    def _has_target(self, which: np.ndarray) -> bool:
        table, target = self._state.table, self.settings.target
        if table is None or target not in table.variables:
            return False
        return bool(np.isfinite(table[target][which]).any())

    def rows_of(self, entry: Entry) -> Samples:
        """The rows that an experiment gave; none if it has none.

        Args:
            entry: one of `asks`.

        Raises:
            FrugaxError: nothing was told yet.
        """
        if self._state.table is None:
            raise FrugaxError("nothing was told yet: there are no rows.")
        return self._state.table.rows(self._state.of_entry == entry.id)

    def rows_beside(self, entry: Entry) -> Samples | None:
        """All rows but those of one experiment; None before there are any.

        Args:
            entry: one of `asks`.
        """
        state = self._state.standing
        if state.table is None:
            return None
        return state.table.rows(state.of_entry != entry.id)

    @property
    def spent(self) -> float:
        """What the experiments that took place cost, failed ones too."""
        budget, entries = self.settings.budget, self._state.entries
        return float(_ledger.paid(budget, entries, "answered", "failed"))

    @property
    def reserved(self) -> float:
        """What the experiments whose answers are awaited cost."""
        return float(_ledger.paid(self.settings.budget, self.pending, "pending"))

    @property
    def left(self) -> dict[str, float]:
        """What may still be spent, by limit: `cost`, `n`, `seconds`."""
        budget = self.settings.budget
        found = dict(_ledger.left(budget, self._state.entries))
        if budget.seconds is not None:
            gone = time.time() - self._state.began_s
            found["seconds"] = max(budget.seconds - gone, 0.0)
        return found

    @property
    def _late(self) -> bool:
        return self.left.get("seconds", 1.0) <= 0

    def _settle(self, entry: Entry, rows: Samples | None, **changes: Any) -> None:
        """Say what has become of an experiment, for the first time or once more."""
        state = self._state
        more: dict[str, Any] = {}
        if entry.status != "pending":
            changes["corrected"] = (*entry.corrected, self._told(entry))
            # Shapes that were found with a mistake would outlast it.
            more = {
                "of_entry": np.where(
                    state.of_entry == entry.id, -2 - entry.id, state.of_entry
                ),
                "shapes": {},
                "shaped": (),
            }
        if rows is not None:
            more |= self._with(rows, entry.id, more.get("of_entry", state.of_entry))
        entries = list(state.entries)
        entries[entry.id] = dataclasses.replace(entry, **changes)
        self._change(**more, entries=tuple(entries))

    def _told(self, entry: Entry) -> str:
        if entry.status != "answered":
            return f"{entry.status}: {entry.why}" if entry.why else entry.status
        said = self.rows_of(entry)[self.settings.target].astype(float)
        said = said[np.isfinite(said)]
        return f"{said.mean():.6g}" if len(said) else "nothing measured"

    def _with(self, rows: Samples, of: int, of_entry: np.ndarray) -> dict[str, Any]:
        return {
            "table": joined(self._state.table, rows),
            "of_entry": np.concatenate([of_entry, np.full(len(rows), of, np.int64)]),
        }

    def _change(self, **changes: Any) -> None:
        if self._closed:
            raise FrugaxError(
                "this campaign is closed: what is told now would not be in its file. "
                "Give keep the file again, or go on with Campaign.load."
            )
        state = dataclasses.replace(self._state, **changes)
        # On disk first: what is not kept has not happened.
        if self._path is not None:
            _file.write(self._path, state)
        self._state = state
