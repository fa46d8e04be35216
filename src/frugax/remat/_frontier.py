"""`RematPlan.frontier`: bytes against flops of the plans that were really compiled."""

import dataclasses
import os
from pathlib import Path

from frugax.budget import MemoryBudget, format_bytes, format_share, table
from frugax.report import element, svg_line, svg_picture, svg_text, ticks

from ._memory_charts import save_picture

_WIDTH, _HEIGHT = 720, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 30, 84, 56
_STYLE = (
    ".curve { fill:none; stroke:var(--s0); stroke-width:2; }\n"
    ".on { fill:var(--s0); } .off { fill:var(--faint); }\n"
    ".chosen { fill:none; stroke:var(--ink); stroke-width:2; }\n"
)


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
        widest = max(limit, *(t.bytes for t in self.tried))
        low = min(0.0, *(self.share(t) for t in self.tried))
        high = max(low + 0.01, *(self.share(t) for t in self.tried))
        bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
        px = lambda size: _LEFT + size / widest * (right - _LEFT)
        py = lambda s: bottom - (s - low) / (high - low) * (bottom - _TOP)
        parts = [
            svg_text(_LEFT, 32, "Memory against recomputation", "title"),
            svg_text(
                _LEFT, 54, f"of the {len(self.tried)} programs compiled; one ring"
            ),
            svg_text(_LEFT, 72, "marks the plan, the line its limit"),
        ]
        for tick in ticks(low * 100, high * 100, about=5):
            y = py(tick / 100)
            parts.append(svg_line(_LEFT, y, right, y, "grid"))
            parts.append(svg_text(_LEFT - 8, y + 4, f"{tick:+g}%", anchor="end"))
        for tick in ticks(0, widest / max(self.unplanned_bytes, 1), about=5):
            x = px(tick * self.unplanned_bytes)
            parts.append(svg_text(x, bottom + 20, f"{tick:g}", anchor="middle"))
        words = "bytes, as a share of the program without a plan"
        parts.append(svg_text((_LEFT + right) / 2, bottom + 42, words, anchor="middle"))
        edge = px(limit)
        parts.append(svg_line(edge, _TOP, edge, bottom, "limit"))
        line = " ".join(f"{px(t.bytes):.1f},{py(self.share(t)):.1f}" for t in best)
        parts.append(element("polyline", class_="curve", points=line))
        for t in self.tried:
            tip = element("title", f"{format_bytes(t.bytes)}: {t.levers}")
            at = {"cx": px(t.bytes), "cy": py(self.share(t))}
            kind = "on" if t in best else "off"
            parts.append(element("circle", tip, class_=kind, r=4, **at))
            if self._note(t, best) == "chosen":
                parts.append(element("circle", class_="chosen", r=8, **at))
        return svg_picture(
            "Bytes and flops of the plans that were compiled",
            parts,
            width=_WIDTH,
            height=_HEIGHT,
            description=str(self),
            style=_STYLE,
        )

    _repr_svg_ = svg  # notebooks show it

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the picture to a file that ends in .svg, or the table to one in .txt.

        Raises:
            ValueError: `path` ends in something else.
            OutputError: the file cannot be written.
        """
        return save_picture(path, svg=self.svg, text=self.__str__)
