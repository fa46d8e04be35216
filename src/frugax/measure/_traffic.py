"""`measure.traffic`: the bytes that a compiled program moves between devices."""

import dataclasses

import jax

from frugax.budget import amount, table
from frugax.targets import CompiledAnswer

from ._work import work


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
    bytes_of: dict[str, int] = {}
    counts: dict[str, int] = {}
    for operation, times in work(compiled).operations():
        if kind := operation.collective:
            moved = times * operation.moved_bytes
            bytes_of[kind] = bytes_of.get(kind, 0) + moved
            counts[kind] = counts.get(kind, 0) + times
    return Traffic(bytes_of, counts)
