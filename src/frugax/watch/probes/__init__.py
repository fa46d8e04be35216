"""Declare values to watch inside a program, and return them as outputs.

Start at `record` and `scan`, or at `collect`, which turns the records of a function
into an output. Only the delivery of probes that nobody collects runs on the host.
"""

from ._collect import TracedFunction, collect, is_collected, trace_function
from ._packed_records import PackedRecords, pack_records
from ._probe import KINDS, Kind, Probe
from ._record import emit, frame, record, summarise
from ._results import (
    LastValues,
    MaskedValues,
    ProbeResult,
    name_results,
    to_value,
)
from ._scan import scan

__all__ = [
    "KINDS",
    "Kind",
    "LastValues",
    "MaskedValues",
    "PackedRecords",
    "Probe",
    "ProbeResult",
    "TracedFunction",
    "collect",
    "emit",
    "frame",
    "is_collected",
    "name_results",
    "pack_records",
    "record",
    "scan",
    "summarise",
    "to_value",
    "trace_function",
]
