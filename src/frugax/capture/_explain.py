"""Where the memory of a jitted program went, and the arguments it could donate."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from frugax import fit, measure
from frugax.budget import format_bytes

from ._report import JitReport


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Donation:
    """The donated arguments of a program, and those that could be.

    Attributes:
        donated: the names of arguments whose place the results may take.
        possible: for further ones, the bytes of results that could take their place.
    """

    donated: tuple[str, ...]
    possible: Mapping[str, int]

    @classmethod
    def of(cls, names: Sequence[str], traced: Any) -> "Donation":
        """The donation of a traced program.

        Args:
            names: for each flat argument, the name of the one that it belongs to.
            traced: what `CalledProgram.trace` returns.
        """
        leaves = jax.tree.leaves(traced.args_info)
        given = leaves[len(leaves) - len(names) :]
        arguments: dict[str, list[Any]] = {}
        donated: dict[str, None] = {}
        for name, leaf in zip(names, given, strict=True):
            arguments.setdefault(name, []).append(leaf)
            if leaf.donated:
                donated[name] = None
        possible = fit.find_donatable(arguments, donated, traced.out_info)
        return cls(donated=tuple(donated), possible=possible)

    @property
    def advice(self) -> str:
        """Which arguments to donate; "" if there are none."""
        return fit.describe_donation(self.possible)

    def __str__(self) -> str:
        donated = f"donated: {', '.join(self.donated) or 'nothing'}"
        return "; ".join(filter(None, (donated, self.advice)))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProgramExplanation:
    """What one jitted function needed, and why.

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
