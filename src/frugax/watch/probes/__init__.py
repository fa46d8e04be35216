"""Say inside a program what is to be watched, and get it out as outputs.

Start at `record` and `scan`, or at `collect`, which turns what a function records into
an output. Nothing here runs on the host but `deliver`, where nobody collects.
"""

from ._collect import Traced, collect, trace_watched
from ._delivery import delivery_faults, hand_over, on_delivery
from ._expected import Expected
from ._made import Last, Made, Partly, by_name, value_of
from ._primitive import ambient_stride
from ._probe import KINDS, Kind, Probe
from ._record import emit, frame, record, summarise
from ._records import Records, pack
from ._scan import scan

__all__ = [
    "KINDS",
    "Expected",
    "Kind",
    "Last",
    "Made",
    "Partly",
    "Probe",
    "Records",
    "Traced",
    "ambient_stride",
    "by_name",
    "collect",
    "delivery_faults",
    "emit",
    "frame",
    "hand_over",
    "on_delivery",
    "pack",
    "record",
    "scan",
    "summarise",
    "trace_watched",
    "value_of",
]
