"""Curves of bytes over operations as SVG: no script, no fonts, for light and dark."""

import math
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from frugax.budget import format_bytes
from frugax.report import escape, ticks

from ._block_chart import stretch

_WIDTH, _HEIGHT = 900, 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 104, 112, 58
_MOST_POINTS = 800
# Width of a bold letter, on average: text is not measured here.
_LETTER = 8

Scale = Callable[[float], float]

# The second is the one that matters; CSS variables change where the reader's screen
# is dark.
_STYLE = """
svg { --back: #ffffff; --ink: #1f2328; --soft: #59636e; --grid: #d9dee3;
      --c0: #8a949e; --c1: #0969da; --limit: #cf222e; }
@media (prefers-color-scheme: dark) {
  svg { --back: #0d1117; --ink: #e6edf3; --soft: #9198a1; --grid: #2a313a;
        --c0: #848d97; --c1: #4493f8; --limit: #f85149; }
}
text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif;
       fill: var(--soft); }
.back { fill: var(--back); }
.title { font-size: 18px; font-weight: 600; fill: var(--ink); }
.strong { fill: var(--ink); }
.grid { stroke: var(--grid); }
.axis { stroke: var(--soft); }
.limit { stroke: var(--limit); stroke-width: 1.5; stroke-dasharray: 6 4; }
.limit-text { fill: var(--limit); font-weight: 600; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.l0 { stroke: var(--c0); } .l1 { stroke: var(--c1); }
.a0 { fill: var(--c0); opacity: .14; } .a1 { fill: var(--c1); opacity: .22; }
.d0 { fill: var(--c0); } .d1 { fill: var(--c1); }
.peak { fill: var(--ink); font-weight: 600; stroke: var(--back); stroke-width: 4px;
        paint-order: stroke; }
"""


@runtime_checkable
class Drawn(Protocol):
    """What is asked of a curve."""

    @property
    def held(self) -> tuple[int, ...]:
        """Bytes at each operation."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """Of the operations."""
        ...

    @property
    def measured(self) -> int:
        """Bytes as XLA accounts for them."""
        ...

    @property
    def peak_bytes(self) -> int:
        """Most bytes at once."""
        ...

    @property
    def peak_at(self) -> int:
        """Where that is."""
        ...


def draw_svg(
    *,
    title: str,
    summary: str,
    x_label: str,
    curves: Mapping[str, Drawn],
    limit: int,
) -> str:
    """An SVG document with two curves over one pair of axes.

    Args:
        title: its heading.
        summary: a line below that.
        x_label: what the x axis counts.
        curves: by name, the one to compare with first.
        limit: bytes; a dashed line.
    """
    length = max(2, *(len(c.held) for c in curves.values()))
    top = max(limit, *(c.peak_bytes for c in curves.values())) * 1.12
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    px = lambda x: _LEFT + x / length * (right - _LEFT)
    py = lambda y: bottom - y / top * (bottom - _TOP)
    parts = [
        f'<rect class="back" width="{_WIDTH}" height="{_HEIGHT}"/>',
        _text(24, 34, title, "title"),
        _text(24, 56, summary),
    ]
    for y in _ticks(top, 6, _binary_unit(top)):
        parts += [
            _line(_LEFT, py(y), right, py(y), "grid"),
            _text(_LEFT - 10, py(y) + 4, format_bytes(y), anchor="end"),
        ]
    for x in _ticks(length, 8):
        parts += [
            _line(px(x), bottom, px(x), bottom + 5, "axis"),
            _text(px(x), bottom + 20, f"{x:,.0f}", anchor="middle"),
        ]
    parts.append(_line(_LEFT, bottom, right, bottom, "axis"))
    parts.append(_text((_LEFT + right) / 2, _HEIGHT - 14, x_label, anchor="middle"))
    at = 24.0
    for i, (name, curve) in enumerate(curves.items()):
        parts += _curve(i, curve, length, px, py)
        said = (
            f"{name}: peak {format_bytes(curve.peak_bytes)} counted, "
            f"{format_bytes(curve.measured)} by XLA"
        )
        parts += [
            f'<rect class="d{i}" x="{at:.0f}" y="74" width="14" height="10" rx="2"/>',
            _text(at + 20, 84, said, "strong"),
        ]
        at += 40 + 0.85 * _LETTER * len(said)
    parts += [
        _line(_LEFT, py(limit), right, py(limit), "limit"),
        _text(right + 8, py(limit) - 2, "limit", "limit-text"),
        _text(right + 8, py(limit) + 14, format_bytes(limit), "limit-text"),
    ]
    # Labels last, so that nothing is drawn over them; of two in one place, the plan's.
    taken: list[tuple[float, float]] = []
    for i, curve in reversed(list(enumerate(curves.values()))):
        if not curve.held:
            continue
        x, y = px(curve.peak_at + 0.5), py(curve.peak_bytes)
        parts.append(f'<circle class="d{i}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>')
        said = f"{format_bytes(curve.peak_bytes)} at {curve.names[curve.peak_at]}"
        room = _LETTER * len(said) / 2
        x = min(max(x, _LEFT + room), right - room)
        if all(abs(x - a) > 2 * room or abs(y - b) > 18 for a, b in taken):
            parts.append(_text(x, y - 10, said, "peak", anchor="middle"))
        taken.append((x, y))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" role="img">\n'
        f"<title>{escape(title)}</title>\n<desc>{escape(summary)}</desc>\n"
        f"<style>{_STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _curve(i: int, curve: Drawn, length: int, px: Scale, py: Scale) -> list[str]:
    """The area under a curve, and its edge: each operation is a step."""
    columns = min(length, _MOST_POINTS)
    width = length / columns
    levels = stretch(curve.held, length, columns)
    drawn = levels[: math.ceil(len(curve.held) / width)]
    steps = [
        f"{px(x * width):.1f},{py(y):.1f}"
        for n, y in enumerate(drawn)
        for x in (n, n + 1)
    ]
    if not steps:
        return []
    edge = " L".join(steps)
    end = px(len(drawn) * width)
    return [
        f'<path class="a{i}" d="M{px(0):.1f},{py(0):.1f} L{edge} '
        f'L{end:.1f},{py(0):.1f} Z"/>',
        f'<path class="line l{i}" d="M{edge}"/>',
    ]


def _ticks(top: float, about: int, unit: float = 1.0) -> list[float]:
    """About so many round multiples of `unit`, from 0 to below `top`."""
    marks = [t * unit for t in ticks(0.0, top / unit, about=about)]
    return [t for t in marks if t < top]


def _binary_unit(top: float) -> float:
    """The largest of 1, KiB, MiB, GiB and TiB that is not more than this."""
    return 1024.0 ** min(int(math.log(max(top, 1), 1024)), 4)


def _text(x: float, y: float, said: str, kind: str = "", anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    return (
        f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{escape(said)}</text>"
    )


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return (
        f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" '
        f'y2="{y2:.1f}"/>'
    )
