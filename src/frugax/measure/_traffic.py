"""`measure.traffic`: the bytes that a compiled program moves between devices."""

import dataclasses
import re

import jax

from frugax.budget import amount, table
from frugax.targets import CompiledAnswer

from ._arrays import array_leaves
from ._protobuf import Message
from ._schedule import module_of

_KINDS = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)
# Field numbers of hlo.proto.
_COMPUTATIONS, _ENTRY_ID = 3, 6
_INSTRUCTIONS, _COMPUTATION_ID = 2, 5
_OPCODE, _SHAPE, _ID, _OPERANDS, _CALLED, _BACKEND_CONFIG = 2, 3, 35, 36, 38, 43
_TRIP_COUNT = re.compile(r'"known_trip_count":\{[^}]*"n":"?(\d+)')


@dataclasses.dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of the arrays that one device sends or receives in collectives.

    Attributes:
        bytes: by the kind of collective; that of the larger of its operand and its
            result, times the iterations of the loops around it.
        counts: how often each kind runs.
    """

    bytes: dict[str, int]
    counts: dict[str, int]

    @property
    def total_bytes(self) -> int:
        """Bytes of all collectives."""
        return sum(self.bytes.values())

    def __str__(self) -> str:
        rows = [
            [kind, f"{self.counts[kind]:,}", amount(self.bytes[kind], "bytes")]
            for kind in self.bytes
        ]
        return table(["collective", "runs", "bytes"], rows or [["none", "-", "-"]])


def traffic(compiled: "jax.stages.Compiled | CompiledAnswer") -> Traffic:
    """Count the collectives of a compiled program.

    A loop whose trip count the compiler does not know counts once.

    Args:
        compiled: `jax.jit(f).lower(*args).compile()`, or the answer of a target.
    """
    proto = Message(module_of(compiled))
    computations = {
        c.number(_COMPUTATION_ID): c.messages(_INSTRUCTIONS)
        for c in proto.messages(_COMPUTATIONS)
    }
    bytes_of: dict[str, int] = {}
    counts: dict[str, int] = {}

    def walk(number: int, times: int) -> None:
        instructions = computations.get(number, [])
        sizes = {i.number(_ID): _size(i) for i in instructions}
        for instruction in instructions:
            opcode = instruction.text(_OPCODE)
            kind = opcode.removesuffix("-start")
            if kind in _KINDS:
                operands = sum(sizes.get(n, 0) for n in instruction.numbers(_OPERANDS))
                # A "-start" returns its operands beside its results.
                result = sizes[instruction.number(_ID)]
                if opcode.endswith("-start"):
                    result -= operands
                moved = max(operands, result)
                bytes_of[kind] = bytes_of.get(kind, 0) + times * moved
                counts[kind] = counts.get(kind, 0) + times
            inner = times
            if opcode == "while":
                config = instruction.text(_BACKEND_CONFIG)
                if found := _TRIP_COUNT.search(config):
                    inner = times * int(found[1])
            for called in instruction.numbers(_CALLED):
                walk(called, inner)

    walk(proto.number(_ENTRY_ID), 1)
    return Traffic(bytes_of, counts)


def _size(instruction: Message) -> int:
    return sum(a.bytes for a in array_leaves(instruction.message(_SHAPE)).values())
