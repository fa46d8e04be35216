"""Entries that wait to be collected: records of a call, and metrics of a step."""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from ._event import Kind
from ._journal_writer import JournalWriter
from ._metrics import is_deleted, is_leaf_ready, read_metric
from ._program_rows import make_rows, number_columns
from ._rows import Rows
from ._series import Series
from .probes import PackedRecords

# Vectors that are stacked on an accelerator before they are copied: one transfer.
_STACKED = 64


@dataclasses.dataclass(slots=True, eq=False)
class ProgramRecords:
    """The records of one call of a program, on the device.

    Attributes:
        step: the number of the call; in a resumed run after the steps before.
        records: the records as the program returned them.
        wanted_kinds: the classes that the level asked for at the time of the call.
        series: the calls of its function; None if nothing thins them.
        place: the training step of its single numbers; None if that is `step`.
        is_apart: whether those go to streams of their names.
        is_pinned: whether it is kept whatever the stride.
        nbytes: bytes that count towards the cap of waiting entries.
    """

    step: int
    records: PackedRecords
    # Kept from the time of the call: the level may have changed since.
    wanted_kinds: frozenset[Kind]
    series: Series | None = None
    place: int | None = None
    is_apart: bool = False
    is_pinned: bool = False
    nbytes: int = 0

    @property
    def number(self) -> int:
        """How many calls there were before."""
        return self.step if self.series is None else self.step - self.series.first_step

    def is_ready(self) -> bool:
        """Whether the device has finished them."""
        return self.records.is_ready()

    def arrays(self) -> Any:
        """The arrays that must be finished before they can be read."""
        return self.records


@dataclasses.dataclass(slots=True, eq=False)
class StepMetrics:
    """The metrics of one step, as `Watcher.record` got them.

    Attributes:
        step: the training step.
        values: the metrics by name.
        number: how many calls of `record` with these names there were before.
        series: the calls with the same names; None if nothing thins them.
        place: the step of the programs of the run, if they are ahead; else `step`.
        is_apart: whether the metrics go to streams of their names.
        is_pinned: whether it is kept whatever the stride.
    """

    step: int
    values: dict[str, Any]
    number: int = 0
    series: Series | None = None
    place: int = 0
    is_apart: bool = False
    is_pinned: bool = False
    nbytes = 0

    def is_ready(self) -> bool:
        """Whether the device has finished them."""
        return all(map(is_leaf_ready, self.values.values()))

    def arrays(self) -> Any:
        """The arrays that must be finished before they can be read."""
        return {n: v for n, v in self.values.items() if not is_deleted(v)}


Entry: TypeAlias = ProgramRecords | StepMetrics


def is_kept(entry: Entry) -> bool:
    """Whether the stride of its series, as it is now, keeps an entry."""
    if entry.series is None or entry.is_pinned:
        return True
    return not entry.number % entry.series.stride


def split_entries(entries: Iterable[Entry]) -> list[list[Any]]:
    """Split entries into those that are read at once, as columns."""
    groups: dict[Series | None, list[Any]] = {}
    for entry in entries:
        groups.setdefault(entry.series, []).append(entry)
    units: list[list[Any]] = []
    for group in groups.values():
        if isinstance(group[0], StepMetrics):  # with the same names
            by_stream = itertools.groupby(group, lambda entry: entry.is_apart)
            units += [list(same) for _, same in by_stream]
            continue
        for _, same in itertools.groupby(group, _kind_of):
            alike = list(same)
            has_columns = _columns_of(alike[0]) is not None
            units += [alike] if has_columns else [[entry] for entry in alike]
    return units


def read_entries(
    unit: Sequence[Any], ledger: JournalWriter
) -> tuple[list[Rows], ValueError | None]:
    """Read the entries of one unit, which waits for the device.

    Args:
        unit: of `split_entries`.
        ledger: counts records that are given, left out, and unreadable. An interrupt
            while this waits leaves it as it was.

    Returns:
        The rows, and why the first metrics of `Watcher.record` that could not be read
        could not.
    """
    first = unit[0]
    if isinstance(first, StepMetrics):
        return _read_metrics(unit, ledger)
    columns = _columns_of(first)
    if columns is None:
        return _read_call(first, ledger), None
    try:
        words = _stack_words([entry.records.words for entry in unit])
    # The program failed with whatever its backend or a callback in it raises: one by
    # one, so that only its own record is lost.
    except Exception:
        return [rows for one in unit for rows in _read_call(one, ledger)], None
    steps = np.array([_place_of(entry) for entry in unit], np.int64)
    values = {label: read(words) for label, read in columns.items()}
    made = [Rows("scalar", "", steps, values)]
    if first.is_apart:
        made = made[0].split()
    ledger.losses.give("scalar", sum(map(len, made)))
    return made, None


def _kind_of(entry: ProgramRecords) -> Any:
    return getattr(entry.records, "layout", None), entry.wanted_kinds, entry.is_apart


def _place_of(entry: ProgramRecords) -> int:
    return entry.step if entry.place is None else entry.place


def _columns_of(entry: Any) -> Any:
    """Return readers of the columns of records that are single numbers, or None."""
    is_packed = isinstance(entry.records, PackedRecords)
    if is_packed and "scalar" in entry.wanted_kinds:
        return number_columns(entry.records.layout)
    return None


def _read_call(entry: Any, ledger: JournalWriter) -> list[Rows]:
    records = entry.records
    try:
        made = make_rows(entry.step, records.fetch(), _place_of(entry))
    except Exception as e:
        for probe in records.probes.values():
            assert probe.kind != "call"  # never an output
            ledger.losses.give(probe.kind)
            ledger.refuse(probe.kind, 1, e)
        return []
    kept = []
    if entry.is_apart and made and not made[0].stream:
        made = [*made[0].split(), *made[1:]]
    for rows in made:
        assert rows.kind is not None  # as only those on watching itself
        if rows.kind in entry.wanted_kinds:
            kept.append(rows)
            ledger.losses.give(rows.kind, len(rows))
        else:
            ledger.leave_out(rows.kind, len(rows))
    return kept


def _read_metrics(
    entries: Sequence[Any], ledger: JournalWriter
) -> tuple[list[Rows], ValueError | None]:
    refusals: list[ValueError] = []
    steps: list[int] = []
    read: list[dict[str, np.ndarray]] = []
    for entry in entries:
        try:
            values = {
                name: read_metric(name, entry.step, value)
                for name, value in entry.values.items()
            }
        except ValueError as e:  # raised to the caller once the others are written
            refusals.append(e)
            continue
        steps.append(entry.place)
        read.append(values)
    ledger.losses.give("scalar", len(entries))
    for refusal in refusals:
        ledger.refuse("scalar", 1, refusal)
    made = []
    if read:
        columns = {name: np.array([v[name] for v in read]) for name in read[0]}
        made = [Rows("scalar", "", np.array(steps), columns, is_callers=True)]
        if entries[0].is_apart:
            made = made[0].split()
    return made, next(iter(refusals), None)


def _stack_words(words: list[Any]) -> np.ndarray:
    """Return vectors of the device as one matrix on the host."""
    if len(words) >= _STACKED and _is_on_accelerator(words[0]):
        # Each transfer has a latency of its own: stack on the device first.
        parts = [
            _stack(words[i : i + _STACKED]) for i in range(0, len(words), _STACKED)
        ]
        for part in parts:
            part.copy_to_host_async()
        return np.concatenate(list(map(np.asarray, parts)))[: len(words)]
    return np.stack([np.asarray(vector) for vector in words])


def _stack(words: list[Any]) -> Any:
    # Always the same number of vectors, so that this compiles once for each length.
    return _stack_on_device(words + [words[-1]] * (_STACKED - len(words)))


@jax.jit
def _stack_on_device(words: list[Any]) -> Any:
    return jax.numpy.stack(words)


def _is_on_accelerator(array: Any) -> bool:
    return next(iter(array.devices())).platform != "cpu"
