"""`measure.timeline`: the bytes that a compiled program holds at each operation.

XLA's buffer assignment states where each array stands in the memory that a program
reserves, and its schedule (`_schedule.py`) states the order of the operations.
"""

import dataclasses
from typing import Any

import jax
import numpy as np

from frugax.budget import amount, table
from frugax.targets import CompiledAnswer

from ._hlo import Module
from ._protobuf import Message
from ._schedule import Schedule, ScheduledOperation, live_ranges

# Arrays at the peak that `str(timeline)` lists.
_MAX_LISTED = 8

# Field numbers of `BufferAssignmentProto` in xla/service/hlo.proto.
_BUFFERS, _ALLOCATIONS = 1, 3
_BUFFER_ID, _BUFFER_DEFINED_AT = 1, 3
_DEFINED_AT_INDEX, _DEFINED_AT_INSTRUCTION = 3, 4
_ALLOCATION_SIZE, _ALLOCATION_ASSIGNED = 2, 9
_ASSIGNED_BUFFER, _ASSIGNED_OFFSET, _ASSIGNED_SIZE = 1, 2, 3
# is_thread_local, is_entry_computation_parameter, maybe_live_out, is_constant: flags of
# memory that is not temporary (`BufferAllocation::IsPreallocatedTempBuffer`).
_NOT_TEMPORARY = (3, 5, 7, 12)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The temporary memory of a compiled program as it runs.

    Attributes:
        bytes: bytes held while each operation runs: places in memory that a later
            operation still reads. Arguments and results are excluded.
        names: of the operations, as they were traced.
        temp_bytes: bytes that XLA reserves for all of this. They exceed `peak_bytes`
            where arrays that do not fit together leave gaps.
        held: arrays at the peak, as (operation that wrote it, bytes), largest first.
    """

    bytes: tuple[int, ...]
    names: tuple[str, ...]
    temp_bytes: int
    held: tuple[tuple[str, int], ...]

    @property
    def peak_bytes(self) -> int:
        """Most bytes held at once; 0 without operations."""
        return max(self.bytes, default=0)

    @property
    def peak_at(self) -> int:
        """The first operation at the peak; -1 without operations."""
        return self.bytes.index(self.peak_bytes) if self.bytes else -1

    def __str__(self) -> str:
        rows = [[name, amount(b, "bytes")] for name, b in self.held[:_MAX_LISTED]]
        if rest := self.held[_MAX_LISTED:]:
            total = amount(sum(b for _, b in rest), "bytes")
            rows.append([f"and {len(rest)} more", total])
        where = ""
        if self.bytes:
            where = f" at operation {self.peak_at} ({self.names[self.peak_at]})"
        return (
            f"peak {amount(self.peak_bytes, 'bytes')}{where} of "
            f"{amount(self.temp_bytes, 'bytes')} reserved\n"
            + table(["held at the peak", "bytes"], rows or [["nothing", "-"]])
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """The place of a buffer in the temporary memory: from `start` up to `stop`."""

    start: int
    stop: int


def timeline(compiled: jax.stages.Compiled | CompiledAnswer) -> Timeline:
    """Count the bytes that a compiled program holds at each of its operations.

    Nothing is run. Operations are listed in XLA's order; the body of a loop is listed
    once, and the branches of a `cond` one after the other.

    Args:
        compiled: `jax.jit(f).lower(*args).compile()`, or the answer of a target. That
            does not tell the places of arrays, so each counts by itself.

    Raises:
        ValueError: this backend does not reveal its buffer assignment, or in a format
            that this version cannot read.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
        >>> held = timeline(jax.jit(lambda x: x @ (x @ x)).lower(x).compile())
        >>> held.peak_bytes, held.held
        (16384, (('dot_general', 16384),))
    """
    if isinstance(compiled, CompiledAnswer):
        return _count_apart(compiled)
    # It may be None on backends without the analysis; then `serialised` is empty.
    memory: Any = compiled.memory_analysis()
    serialised = getattr(memory, "serialized_buffer_assignment_proto", b"")
    if not serialised:
        raise ValueError(
            "this backend does not reveal where its programs keep their arrays, so no "
            "timeline can be drawn; compile for another backend."
        )
    assignment = Message(serialised)
    definitions: dict[int, dict[tuple[int, ...], int]] = {}
    for buffer in assignment.messages(_BUFFERS):
        at = buffer.message(_BUFFER_DEFINED_AT)
        of_instruction = definitions.setdefault(at.number(_DEFINED_AT_INSTRUCTION), {})
        of_instruction[at.numbers(_DEFINED_AT_INDEX)] = buffer.number(_BUFFER_ID)
    schedule = Schedule(Module.of(compiled), definitions)
    operations = schedule.operations()
    places, reserved = _temporary_places(assignment)
    # The two checks below compare the reading with XLA's own figures: a new version of
    # jaxlib may change the format, and a wrong curve is worse than none.
    if reserved != memory.temp_size_in_bytes:
        raise ValueError(
            f"XLA reserves {memory.temp_size_in_bytes:,} temporary bytes, but its "
            f"buffer assignment, as it is read here, {reserved:,}: no timeline can be "
            "drawn with this version of jaxlib."
        )
    undefined = places.keys() - frozenset().union(*(op.defines for op in operations))
    if any(places[b].stop > places[b].start for b in undefined):
        raise ValueError(
            f"no operation of the program defines {len(undefined)} of its buffers, as "
            "it is read here: no timeline can be drawn with this version of jaxlib."
        )
    return _count(operations, places, reserved)


def _count_apart(answer: CompiledAnswer) -> Timeline:
    """The timeline of a program whose arrays all have places of their own."""
    schedule = Schedule(Module.of(answer))
    operations = schedule.operations()
    places: dict[int, _Place] = {}
    end = 0
    for number, at in schedule.definitions.items():
        for index, buffer in at.items():
            start, end = end, end + schedule.array_at(number, index).bytes
            places[buffer] = _Place(start, end)
    return _count(operations, places, answer.temp_bytes)


def _temporary_places(assignment: Message) -> tuple[dict[int, _Place], int]:
    """The place of each temporary buffer, and the size of the temporary memory."""
    places: dict[int, _Place] = {}
    base = 0
    for allocation in assignment.messages(_ALLOCATIONS):
        if any(map(allocation.number, _NOT_TEMPORARY)):
            continue
        for assigned in allocation.messages(_ALLOCATION_ASSIGNED):
            start = base + assigned.number(_ASSIGNED_OFFSET)
            stop = start + assigned.number(_ASSIGNED_SIZE)
            places[assigned.number(_ASSIGNED_BUFFER)] = _Place(start, stop)
        base += allocation.number(_ALLOCATION_SIZE)
    return places, base


def _count(
    operations: tuple[ScheduledOperation, ...], places: dict[int, _Place], reserved: int
) -> Timeline:
    ranges = {b: r for b, r in live_ranges(operations).items() if b in places}
    starts: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for buffer, (first, last) in ranges.items():
        starts.setdefault(first, []).append(buffer)
        ends.setdefault(last, []).append(buffer)
    # An array that is updated in place stands where the old one stood. Places in memory
    # are counted and not buffers, so that nothing counts twice: the memory is cut at
    # every edge of a buffer, and `users` counts the live buffers on each part.
    edges = sorted({e for b in ranges for e in (places[b].start, places[b].stop)})
    part_at = {e: i for i, e in enumerate(edges)}
    widths, users = np.diff(edges), np.zeros(max(len(edges) - 1, 0), int)
    parts = {
        b: slice(part_at[places[b].start], part_at[places[b].stop]) for b in ranges
    }
    counted: list[tuple[int, int]] = []
    for t, op in enumerate(operations):
        for buffer in starts.get(t, ()):
            users[parts[buffer]] += 1
        if op.works:
            counted.append((t, int(widths[users > 0].sum())))
        for buffer in ends.get(t, ()):
            users[parts[buffer]] -= 1
    peak = max(counted, key=lambda c: c[1], default=(0, 0))[0]
    alive = [(t, b) for b, (t, last) in ranges.items() if t <= peak <= last]
    # Of several buffers in one place the latest names it.
    newest = {places[b]: operations[t].name for t, b in alive}
    held = [(name, p.stop - p.start) for p, name in newest.items() if p.stop > p.start]
    return Timeline(
        bytes=tuple(b for _, b in counted),
        names=tuple(operations[t].name for t, _ in counted),
        temp_bytes=reserved,
        held=tuple(sorted(held, key=lambda h: -h[1])),
    )
