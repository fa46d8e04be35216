"""What waits to be collected: records of a program's call, and metrics of a step."""

import dataclasses
from typing import Any, TypeAlias

from ._event import Kind
from ._metrics import is_deleted, is_leaf_ready
from ._program_rows import make_rows
from ._rows import Rows
from ._series import Series
from .probes import PackedRecords


def stride_of(entry: "Entry") -> int:
    """Return the stride at which entries like this one are kept."""
    if entry.series is None or entry.is_pinned:
        return 1
    return entry.series.stride


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

    def rows(self) -> list[Rows]:
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
        return {n: v for n, v in self.values.items() if not is_deleted(v)}


Entry: TypeAlias = ProgramRecords | StepMetrics
