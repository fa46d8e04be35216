"""`RematPlan.frontier`: bytes against flops of the plans that were really compiled."""

import dataclasses
import os
from pathlib import Path

import numpy as np

from frugax.budget import MemoryBudget, format_bytes, format_share, table
from frugax.report import Axis, Plot

from ._memory_charts import save_picture


@dataclasses.dataclass(frozen=True, slots=True)
class TriedPlan:
    """A plan that was compiled while another one was searched.

    Attributes:
        bytes: what XLA measured, of the budget's kind.
        extra_flops: flops beyond those of the program without a plan, as traced.
        levers: its recomputation, in a few words.
    """

    bytes: int
    extra_flops: int
    levers: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """The plans that a search compiled; made by `RematPlan.frontier`.

    Attributes:
        tried: all of them, by falling bytes, with the program without a plan.
        budget: the budget that was searched for.
        predicted: bytes of the plan that was chosen.
        unplanned_bytes: bytes without a plan.
        unplanned_flops: flops without a plan.
    """

    tried: tuple[TriedPlan, ...]
    budget: MemoryBudget
    predicted: int
    unplanned_bytes: int
    unplanned_flops: int

    @property
    def points(self) -> tuple[TriedPlan, ...]:
        """Those that no other beats in both bytes and flops, by falling bytes."""
        found: list[TriedPlan] = []
        for t in sorted(self.tried, key=lambda t: (t.bytes, t.extra_flops)):
            if not found or t.extra_flops < found[-1].extra_flops:
                found.append(t)
        return tuple(reversed(found))

    def share(self, plan: TriedPlan) -> float:
        """Its additional flops as a share of the flops without a plan."""
        return plan.extra_flops / max(self.unplanned_flops, 1)

    def describe_neighbours(self) -> list[str]:
        """The cost of a smaller and of a larger limit, as far as it was measured."""
        smaller = [t for t in self.points if t.bytes < self.predicted]
        larger = [t for t in self.points if t.bytes > self.predicted]
        lines: list[str] = []
        for name, t in (("smaller", smaller[:1]), ("larger", larger[-1:])):
            lines += [
                f"next {name} plan that was compiled: {format_bytes(p.bytes)} for "
                f"{format_share(self.share(p))} more flops (recomputed: {p.levers})"
                for p in t
            ]
        return lines

    def __str__(self) -> str:
        best = self.points
        rows = [
            [
                format_share(t.bytes / max(self.unplanned_bytes, 1)),
                format_bytes(t.bytes),
                format_share(self.share(t)),
                self._note(t, best),
                t.levers,
            ]
            for t in self.tried
        ]
        head = ["of plain", "bytes", "more flops", "", "what is recomputed"]
        return table(head, rows)

    def _note(self, plan: TriedPlan, best: tuple[TriedPlan, ...]) -> str:
        if plan.bytes == self.predicted and plan in best:
            return "chosen"
        return "" if plan in best else "beaten"

    def svg(self) -> str:
        """The text of an SVG file, self-contained, for light and dark themes."""
        best, limit = self.points, self.budget.usable_bytes
        shares = [100 * self.share(t) for t in self.tried]
        low, high = min(0.0, *shares), max(1.0, *shares)
        plain = max(self.unplanned_bytes, 1)
        plot = Plot(
            "Memory against recomputation",
            x=Axis(
                low=0,
                high=max(limit, *(t.bytes for t in self.tried)) / plain,
                label="bytes, as a share of the program without a plan",
            ),
            y=Axis(low=low, high=max(high, low + 1), text=lambda y: f"{y:+g}%"),
            width=720,
            height=280,
            notes=(
                f"of the {len(self.tried)} programs compiled; the ring marks the "
                "plan, the line its limit",
            ),
            description=str(self),
        )
        plot.limit((limit / plain, limit / plain), (low, high))
        place = lambda plans: (
            np.array([t.bytes / plain for t in plans]),
            np.array([100 * self.share(t) for t in plans]),
        )
        tip = lambda t: f"{format_bytes(t.bytes)}: {t.levers}"
        beaten = [t for t in self.tried if t not in best]
        chosen = [t for t in best if t.bytes == self.predicted]
        plot.line(*place(best), "s0")
        plot.dots(*place(beaten), "faint", tips=[tip(t) for t in beaten])
        plot.dots(*place(best), "s0", tips=[tip(t) for t in best])
        plot.dots(*place(chosen), "ink", radius=8, is_ring=True)
        return plot.svg()

    _repr_svg_ = svg  # notebooks show it

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the picture to a file that ends in .svg, or the table to one in .txt.

        Raises:
            ValueError: `path` ends in something else.
            OutputError: the file cannot be written.
        """
        return save_picture(path, svg=self.svg, text=self.__str__)
