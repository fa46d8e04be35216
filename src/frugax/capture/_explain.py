"""`ProgramExplanation`: where the memory of a jitted program went, and why."""

import dataclasses

from frugax import measure
from frugax.budget import format_bytes

from ._donation import Donation
from ._report import JitReport


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProgramExplanation:
    """Memory and compilations of one jitted function, explained.

    Attributes:
        report: its calls and compilations.
        peak: the arrays at the peak of the program that ran last; None if its compiler
            does not reveal them.
        donation: its donated arguments; None if no program is known.
    """

    report: JitReport
    peak: measure.PeakMemory | None = None
    donation: Donation | None = None

    @property
    def bytes(self) -> int:
        """Bytes of arguments, results and temporaries; 0 if they are not known."""
        memory = self.report.program.memory
        return 0 if memory is None else memory.total_bytes

    def __str__(self) -> str:
        parts = [str(self.report)]
        if self.report.program.memory is not None:
            total = format_bytes(self.bytes)
            parts.append(f"{total} of arguments, results and temporaries")
        parts += [str(p) for p in (self.donation, self.peak) if p is not None]
        return "\n".join(parts)
