"""How many bytes a compiled program holds from its first operation to its last.

Reads: XLA's buffer assignment, which says what stands where in the memory that a
program reserves, and its schedule (`_schedule.py`). Gives: one frozen `Timeline`.
"""

import dataclasses
from typing import Any, Protocol, runtime_checkable

import numpy as np

from frugax.budget import amount, table

from ._schedule import Schedule, Step
from ._wire import Message

_SHOWN = 8


@runtime_checkable
class Executable(Protocol):
    """What is asked of a compiled program: `jax.stages.Compiled` answers it."""

    def memory_analysis(self) -> Any:
        """Byte counts and the buffer assignment, or None where there are none."""
        ...

    def runtime_executable(self) -> Any:
        """What the backend runs; it knows the compiled program."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What a compiled program holds in temporary memory as it runs.

    Attributes:
        bytes: held while each operation runs, counted: places in memory that some
            later operation still reads. Arguments and results are not among them.
        names: of the operations, as they were traced.
        temp_bytes: what XLA reserves for all this; at least `peak_bytes`, and more
            where arrays that do not fit together leave gaps.
        held: what is held at the peak, as (name of what made it, bytes), most first.
    """

    bytes: tuple[int, ...]
    names: tuple[str, ...]
    temp_bytes: int
    held: tuple[tuple[str, int], ...]

    @property
    def peak_bytes(self) -> int:
        """Most bytes held at once; 0 if there are no operations."""
        return max(self.bytes, default=0)

    @property
    def peak_at(self) -> int:
        """The first operation at which that is so; -1 if there are none."""
        return self.bytes.index(self.peak_bytes) if self.bytes else -1

    def __str__(self) -> str:
        shown = [[n, amount(b, "bytes")] for n, b in self.held[:_SHOWN]]
        rest = self.held[_SHOWN:]
        if rest:
            left = sum(b for _, b in rest)
            shown.append([f"and {len(rest)} more", amount(left, "bytes")])
        at = self.peak_at
        where = f" at operation {at} ({self.names[at]})" if self.bytes else ""
        return (
            f"peak {amount(self.peak_bytes, 'bytes')}{where} of "
            f"{amount(self.temp_bytes, 'bytes')} reserved\n"
            + table(["held at the peak", "bytes"], shown or [["nothing", "-"]])
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """Where a buffer stands in the temporary memory: from `start` up to `stop`."""

    start: int
    stop: int


def timeline(compiled: Executable) -> Timeline:
    """Count what a compiled program holds at each of its operations.

    Nothing is run. Operations come in XLA's order; the body of a loop is there once,
    and both branches of a `cond` one after the other.

    Args:
        compiled: `jax.jit(f).lower(*args).compile()`.

    Raises:
        ValueError: this backend does not say where its programs keep what, or says
            it in a way that this version cannot read.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
        >>> held = timeline(jax.jit(lambda x: x @ (x @ x)).lower(x).compile())
        >>> held.peak_bytes, held.held
        (16384, (('dot_general', 16384),))
    """
    memory = compiled.memory_analysis()
    written = getattr(memory, "serialized_buffer_assignment_proto", b"")
    if not written:
        raise ValueError(
            "this backend does not say where its programs keep what, so no timeline "
            "can be drawn; compile for another backend."
        )
    assignment = Message(written)
    makes: dict[int, dict[tuple[int, ...], int]] = {}
    for buffer in assignment.messages(1):
        where = buffer.message(3)
        made = makes.setdefault(where.number(4), {})
        made[where.numbers(3)] = buffer.number(1)
    (module,) = compiled.runtime_executable().hlo_modules()
    steps = Schedule(module.as_serialized_hlo_module_proto(), makes).steps()
    places, reserved = _temporary(assignment)
    if reserved != memory.temp_size_in_bytes:
        raise ValueError(
            f"XLA reserves {memory.temp_size_in_bytes:,} temporary bytes, but its "
            f"buffer assignment, as it is read here, {reserved:,}: no timeline can be "
            "drawn with this version of jaxlib."
        )
    unseen = places.keys() - frozenset().union(*(s.makes for s in steps))
    if any(places[b].stop > places[b].start for b in unseen):
        raise ValueError(
            f"no operation of the program makes {len(unseen)} of its buffers, as it is "
            "read here: no timeline can be drawn with this version of jaxlib."
        )
    return _count(steps, places, reserved)


def _temporary(assignment: Message) -> tuple[dict[int, _Place], int]:
    """Where each temporary buffer stands, and how long all that memory is.

    Temporary is what is neither a constant nor a parameter, is not returned, and does
    not live on a thread's own stack (`BufferAllocation::IsPreallocatedTempBuffer`).
    """
    places: dict[int, _Place] = {}
    base = 0
    for allocation in assignment.messages(3):
        if any(map(allocation.number, (3, 5, 7, 12))):
            continue
        for assigned in allocation.messages(9):
            start = base + assigned.number(2)
            places[assigned.number(1)] = _Place(start, start + assigned.number(3))
        base += allocation.number(2)
    return places, base


def _count(
    steps: tuple[Step, ...], places: dict[int, _Place], reserved: int
) -> Timeline:
    born: dict[int, int] = {}
    last: dict[int, int] = {}
    for t, step in enumerate(steps):
        for buffer in step.makes & places.keys():
            born.setdefault(buffer, t)
        last |= dict.fromkeys(step.touches & places.keys(), t)
    starts: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for buffer, t in born.items():
        starts.setdefault(t, []).append(buffer)
        ends.setdefault(last[buffer], []).append(buffer)
    # Arrays that are updated in place stand where the old one stood: what is counted
    # is the memory that is taken, so that nothing counts twice.
    edges = sorted({e for b in born for e in (places[b].start, places[b].stop)})
    at = {e: i for i, e in enumerate(edges)}
    widths, taken = np.diff(edges), np.zeros(max(len(edges) - 1, 0), int)
    spans = {b: slice(at[places[b].start], at[places[b].stop]) for b in born}
    counted: list[tuple[int, int]] = []
    for t, step in enumerate(steps):
        for buffer in starts.get(t, ()):
            taken[spans[buffer]] += 1
        if step.works:
            counted.append((t, int(widths[taken > 0].sum())))
        for buffer in ends.get(t, ()):
            taken[spans[buffer]] -= 1
    peak = max(counted, key=lambda c: c[1], default=(0, 0))[0]
    here = [
        b for b in sorted(born, key=lambda b: born[b]) if born[b] <= peak <= last[b]
    ]
    newest = {places[b]: steps[born[b]].name for b in here}
    held = [(name, p.stop - p.start) for p, name in newest.items() if p.stop > p.start]
    return Timeline(
        bytes=tuple(b for _, b in counted),
        names=tuple(steps[t].name for t, _ in counted),
        temp_bytes=reserved,
        held=tuple(sorted(held, key=lambda h: -h[1])),
    )
