"""`Series`: the calls of one function, or of `record` with the same names."""

import dataclasses
from typing import Any, TypeAlias

from ._metrics import is_leaf_ready
from ._rate import Rate
from ._row_batch import RowBatch, make_rows
from ._thinning import Thinning
from .probes import PackedRecords
from .sinks import Kind


class Series:
    """Calls that are thinned by one stride.

    Attributes:
        thinning: which calls are kept.
        calls: calls so far.
        first_step: the step of the first call of a program.
        skipped: what the newest call left, if it was thinned out; else None.
    """

    def __init__(self, rate: Rate, first_step: int = 0) -> None:
        """Count calls from 0."""
        self.thinning = Thinning(rate)
        self.calls = 0
        self.first_step = first_step
        self.skipped: Any = None

    @property
    def gap_s(self) -> float:
        """The least time between two kept calls."""
        return 0.0


class MetricSeries(Series):
    """The calls of `Watcher.record` with the same names.

    Attributes:
        next_look: calls before this one only remember their step and metrics.
        counted: calls so far whose cost and thinning have been counted.
        skips: calls that were thinned out since the last record.
    """

    def __init__(self, rate: Rate) -> None:
        super().__init__(rate)
        self.next_look = self.counted = self.skips = 0

    def count(self, now: float) -> bool:
        """Count a call; returns whether it is thinned out."""
        number = self.calls
        self.thinning.begin(number, now)
        self.calls = self.counted = number + 1
        stride = self.thinning.stride
        self.next_look = number - number % stride + stride
        return number % stride > 0


def stride_of(entry: "Entry") -> int:
    """Return the stride at which entries like this one are kept."""
    if entry.series is None or entry.is_pinned:
        return 1
    return entry.series.thinning.stride


@dataclasses.dataclass(slots=True, eq=False)
class ProgramRecords:
    """The records of one call of a program, on the device.

    Attributes:
        step: the number of the call; in a resumed run after the steps before.
        records: the records as the program returned them.
        wanted_kinds: the classes that the level asked for at the time of the call.
        series: the calls of its function; None if nothing thins them.
        is_pinned: whether it is kept whatever the stride.
        nbytes: bytes that count for the cap of what may wait.
    """

    step: int
    records: PackedRecords
    # Kept from the time of the call: the level may have changed since.
    wanted_kinds: frozenset[Kind]
    series: Series | None = None
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

    def rows(self) -> list[RowBatch]:
        """Wait for the records and return them as rows."""
        records = self.records
        return make_rows(self.step, records.probes, records.fetch(), records.axes)


@dataclasses.dataclass(slots=True, eq=False)
class StepMetrics:
    """The metrics of one step, as `Watcher.record` got them.

    Attributes:
        step: the training step.
        values: the metrics by name.
        number: how many calls of `record` with these names there were before.
        series: the calls with the same names; None if nothing thins them.
        is_pinned: whether it is kept whatever the stride.
    """

    step: int
    values: dict[str, Any]
    number: int = 0
    series: Series | None = None
    is_pinned: bool = False
    nbytes = 0

    def is_ready(self) -> bool:
        """Whether the device has finished them."""
        return all(map(is_leaf_ready, self.values.values()))

    def arrays(self) -> Any:
        """The arrays that must be finished before they can be read."""
        return {n: v for n, v in self.values.items() if not _is_deleted(v)}


Entry: TypeAlias = ProgramRecords | StepMetrics


def _is_deleted(value: Any) -> bool:
    deleted = getattr(value, "is_deleted", None)
    return deleted is not None and deleted()
