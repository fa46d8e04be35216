"""`measure.peak`: the arrays that a compiled program holds at its memory peak."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Literal

import jax

from frugax.budget import amount, format_bytes, format_share, table
from frugax.targets import CompiledAnswer

from ._hlo import Module
from ._program_costs import program
from ._schedule import Schedule, ScheduledOperation, live_ranges

_MAX_LISTED = 10

# How JAX names the operation by which a scan takes a step's part of a stack.
_READS_STACK = re.compile(r"while/body/(jit\(dynamic_index_in_dim\)/)?dynamic_slice$")

_AGAIN = "rematted_computation"

BufferKind = Literal[
    "argument", "saved for backward", "gradient", "recomputed", "other"
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HeldArray:
    """An array that exists at the peak.

    Attributes:
        bytes: its bytes on one device.
        shape: its type and shape, as the compiler writes them.
        kind: its purpose.
        name: the argument's name, or the traced operation that made it.
        source: `file.py:line` of the user's code; empty if the compiler kept none.
    """

    bytes: int
    shape: str
    kind: BufferKind
    name: str
    source: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PeakMemory:
    """The memory of one device when the program holds most.

    Attributes:
        bytes: by the compiler: arguments, results and temporaries, less aliased ones.
        held: arrays at the peak, the largest first. Which of them share their place
            follows from the order of the operations, not from the compiler's own
            assignment, which it reveals for CPUs only.
        at: the operation at the peak.
        source: its line in the user's code.
    """

    bytes: int
    held: tuple[HeldArray, ...]
    at: str
    source: str

    @property
    def largest(self) -> tuple[HeldArray, ...]:
        """The ten largest arrays."""
        return self.held[:_MAX_LISTED]

    @property
    def other_bytes(self) -> int:
        """Bytes besides the ten largest arrays: the rest, scratch and gaps."""
        return self.bytes - sum(h.bytes for h in self.largest)

    def _groups(self) -> list[tuple[int, list[HeldArray]]]:
        """Arrays that differ in nothing, arguments in their names only; by bytes."""
        alike: dict[tuple[str, ...], list[HeldArray]] = {}
        for h in self.held:
            name = "" if h.kind == "argument" else h.name
            alike.setdefault((h.shape, h.kind, name, h.source), []).append(h)
        groups = [(sum(h.bytes for h in arrays), arrays) for arrays in alike.values()]
        return sorted(groups, key=lambda group: -group[0])

    def summary(self) -> str:
        """Two lines: the largest arrays, and the sums of each kind."""
        if not self.held:
            return f"nothing large is held: {format_bytes(self.bytes)} in all"
        # An argument's own line is unknown: the largest array with a line comes second.
        groups = self._groups()
        first = groups[:1] + [g for g in groups[1:] if g[1][0].source][:1]
        largest = [
            (f"{len(arrays)} x " if len(arrays) > 1 else "")
            + f"{one.shape} ({format_bytes(total)}, {one.kind}) of {one.name}"
            + (f" at {one.source}" if one.source else "")
            for total, arrays in first
            for one in arrays[:1]
        ]
        sums: dict[str, int] = {}
        for h in self.held:
            sums[h.kind] = sums.get(h.kind, 0) + h.bytes
        parts = [f"{kind} {format_bytes(n)}" for kind, n in sums.items()]
        return f"largest: {' and '.join(largest)}\nheld at the peak: {', '.join(parts)}"

    def __str__(self) -> str:
        rows: list[list[str]] = []
        other = self.bytes
        for total, arrays in self._groups():
            # Where arrays end is known for CPUs only: beyond the peak none are listed.
            if total > other or len(rows) == _MAX_LISTED:
                break
            other -= total
            one = arrays[0]
            is_many = len(arrays) > 1
            rows.append(
                [
                    amount(total, "bytes"),
                    format_share(total / max(self.bytes, 1)),
                    f"{len(arrays)} x {one.shape}" if is_many else one.shape,
                    one.kind,
                    f"{one.name} ..." if arrays[-1].name != one.name else one.name,
                    one.source or "-",
                ]
            )
        rest, share = amount(other, "bytes"), format_share(other / max(self.bytes, 1))
        rows.append([rest, share, "-", "everything else", "-", "-"])
        head = ["bytes", "share", "array", "kind", "operation", "line"]
        where = f" in {self.at}" if self.at else ""
        line = f" ({self.source})" if self.source else ""
        return f"peak {format_bytes(self.bytes)}{where}{line}\n{table(head, rows)}"


def peak(compiled: "jax.stages.Compiled | CompiledAnswer") -> PeakMemory:
    """Find the arrays that a compiled program holds at its peak.

    Args:
        compiled: `jax.jit(f).lower(*args).compile()`, or the answer of a target.

    Raises:
        ValueError: the compiler does not reveal the order of its operations, or not in
            a format that this version can read.
    """
    total = program(compiled).total_bytes
    schedule = Schedule(Module.of(compiled))
    operations = schedule.operations()
    made_by = {
        buffer: (number, index)
        for number, at in schedule.definitions.items()
        for index, buffer in at.items()
    }
    sizes = {b: schedule.array_at(*place).bytes for b, place in made_by.items()}
    moment, alive = _find_peak(operations, sizes)
    held = [
        HeldArray(
            bytes=array.bytes, shape=array.shape, kind="argument", name=name, source=""
        )
        for name, array in schedule.parameters()
    ]
    makers = {op.number: op for op in operations}
    saved = _find_saved(schedule, operations)
    for buffer in alive:
        number, index = made_by[buffer]
        # The stack of a loop's saved values begins as zeros that nobody wrote.
        writer, place = schedule.last_writer.get(buffer, (number, index))
        path = schedule.traced_name(writer)
        kind = kind_of(path)
        # The forward pass of a plan has no mark of JAX's transformations.
        if kind == "other" and buffer in saved:
            kind = "saved for backward"
        if _READS_STACK.search(path):
            # One step's part of a stack of saved values.
            stacks = makers[writer].touches & schedule.last_writer.keys()
            if stacks:
                largest = max(stacks, key=lambda b: sizes[b])
                writer, place = schedule.last_writer[largest]
                kind = "saved for backward"
        origin = schedule.origin(writer, place)
        held.append(
            HeldArray(
                bytes=sizes[buffer],
                shape=schedule.array_at(number, index).shape,
                kind=kind,
                name=schedule.traced_name(origin).rpartition("/")[2] or "-",
                source=schedule.source_line(origin),
            )
        )
    held.sort(key=lambda h: -h.bytes)
    if held and held[0].bytes > total:
        raise ValueError(
            f"the largest array needs more than the {format_bytes(total)} of the whole "
            "program: its buffers cannot be read with this version of jaxlib."
        )
    # A GPU's compiler does not reveal which arrays share a place, as those do that an
    # operation writes over: no more of them are listed than the program has room for.
    left, placed = total, []
    for array in held:
        if array.bytes <= left:
            placed.append(array)
            left -= array.bytes
    at, source = "", ""
    if operations and operations[moment].number >= 0:
        at = operations[moment].name
        source = schedule.source_line(operations[moment].number)
    return PeakMemory(bytes=total, held=tuple(placed), at=at, source=source)


def _find_peak(
    operations: tuple[ScheduledOperation, ...], sizes: dict[int, int]
) -> tuple[int, list[int]]:
    """The operation at which most bytes are held, and the buffers held there."""
    ranges = live_ranges(operations)
    change = [0] * (len(operations) + 1)
    for buffer, (first, last) in ranges.items():
        change[first] += sizes[buffer]
        change[last + 1] -= sizes[buffer]
    now = most = moment = 0
    for t, op in enumerate(operations):
        now += change[t]
        if now > most and op.works:
            most, moment = now, t
    alive = [b for b, (first, last) in ranges.items() if first <= moment <= last]
    return moment, alive


def _find_saved(
    schedule: Schedule, operations: Sequence[ScheduledOperation]
) -> set[int]:
    """The buffers that the backward pass reads."""
    saved: set[int] = set()
    for op in operations:
        if op.number >= 0 and op.works:
            kind = kind_of(schedule.traced_name(op.number))
            if kind in ("gradient", "recomputed"):
                saved |= op.touches
    return saved


def kind_of(path: str) -> BufferKind:
    """Tell the purpose of a traced operation's result, by its path."""
    # JAX writes the transformations that an operation comes from in its path, and both
    # `jax.checkpoint` and a plan mark recomputed operations.
    parts = path.split("/")
    if _AGAIN in parts:
        parts = parts[parts.index(_AGAIN) + 1 :]
        if not any("transpose(" in part for part in parts):
            return "recomputed"
    if "transpose(" in path:
        is_linearised_again = re.search(r"/checkpoint/(.*/)?jvp\(", path)
        return "recomputed" if is_linearised_again else "gradient"
    if "jvp(" in path:
        return "saved for backward"
    return "other"
