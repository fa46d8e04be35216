"""Bits against error, one dot a tensor, as SVG: no script, no fonts, light and dark."""

import dataclasses
import html
import math
from collections.abc import Sequence

_WIDTH, _HEIGHT = 760, 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 24, 76, 56
_DB_PER_BIT = 20 * math.log10(2)
_STYLE = """
svg { --back: #ffffff; --ink: #1f2328; --soft: #59636e; --grid: #d9dee3;
      --dot: #0969da; --limit: #cf222e; }
@media (prefers-color-scheme: dark) {
  svg { --back: #0d1117; --ink: #e6edf3; --soft: #9198a1; --grid: #2a313a;
        --dot: #4493f8; --limit: #f85149; }
}
text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif;
       fill: var(--soft); }
.back { fill: var(--back); }
.title { font-size: 18px; font-weight: 600; fill: var(--ink); }
.grid { stroke: var(--grid); }
.dot { fill: var(--dot); opacity: .75; }
.limit { stroke: var(--limit); stroke-width: 1.5; stroke-dasharray: 6 4; }
.limit-text { fill: var(--limit); }
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Dot:
    """One tensor that is not exact.

    Attributes:
        name: its name.
        codec: its codec.
        bits: bits in the file for each number.
        rel_error: ||decoded - original|| / ||original||; > 0.
    """

    name: str
    codec: str
    bits: float
    rel_error: float

    @property
    def db(self) -> float:
        """How far the error is below the weights, in dB."""
        return -20 * math.log10(self.rel_error)


def rate_picture(title: str, dots: Sequence[Dot], *, exact: int) -> str:
    """An SVG document: each tensor's bits and error, and the Gaussian bound.

    Above the dashed line no code can be for Gaussian weights; the way down from it to
    a dot is what the codec leaves. The pointer on a dot shows its name.

    Args:
        title: what the picture is of.
        dots: the tensors that are not exact.
        exact: how many others there are.
    """
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" role="img">',
        f"<title>{html.escape(title)}: bits and error of each tensor</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="back" width="{_WIDTH}" height="{_HEIGHT}"/>',
        f'<text class="title" x="{_LEFT}" y="30">{html.escape(title)}</text>',
        f'<text x="{_LEFT}" y="54">{_said(len(dots), exact)}</text>',
    ]
    if not dots:
        return "\n".join([*parts, "</svg>\n"])
    most_bits = math.ceil(max(dot.bits for dot in dots) * 1.05)
    # An error as large as the weights is at 0 dB: the axis has a length all the same.
    most_db = math.ceil(max(10, *(dot.db * 1.15 for dot in dots)) / 10) * 10
    x = lambda bits: _LEFT + (_WIDTH - _LEFT - _RIGHT) * bits / most_bits
    y = lambda db: _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * db / most_db
    step = max(1, most_bits // 8)
    for bits in range(0, most_bits + 1, step):
        at = f"{x(bits):.1f}"
        parts.append(
            f'<line class="grid" x1="{at}" y1="{y(0):.1f}" x2="{at}" y2="{_TOP}"/>'
            f'<text x="{at}" y="{y(0) + 20:.1f}" text-anchor="middle">{bits}</text>'
        )
    for db in range(0, most_db + 1, 10):
        at = f"{y(db):.1f}"
        parts.append(
            f'<line class="grid" x1="{_LEFT}" y1="{at}" x2="{x(most_bits):.1f}" '
            f'y2="{at}"/><text x="{_LEFT - 8}" y="{y(db) + 4:.1f}" '
            f'text-anchor="end">{db}</text>'
        )
    end = min(most_bits, most_db / _DB_PER_BIT)
    parts += [
        f'<text x="{x(most_bits):.1f}" y="{_HEIGHT - 12}" text-anchor="end">'
        "bits in the file for each weight</text>",
        f'<text transform="translate(20 {_TOP}) rotate(-90)" text-anchor="end">'
        "error below the weights, dB</text>",
        f'<line class="limit" x1="{x(0):.1f}" y1="{y(0):.1f}" x2="{x(end):.1f}" '
        f'y2="{y(end * _DB_PER_BIT):.1f}"/>',
        f'<text class="limit-text" x="{x(end) - 8:.1f}" '
        f'y="{y(end * _DB_PER_BIT) - 6:.1f}" text-anchor="end">'
        "no code is better for Gaussian weights</text>",
    ]
    for dot in dots:
        said = f"{dot.name}: {dot.codec}, {dot.bits:.2f} bits, {dot.db:.1f} dB"
        parts.append(
            f'<circle class="dot" cx="{x(dot.bits):.1f}" cy="{y(max(0, dot.db)):.1f}" '
            f'r="4"><title>{html.escape(said)}</title></circle>'
        )
    return "\n".join([*parts, "</svg>\n"])


def _said(dots: int, exact: int) -> str:
    if not dots:
        return f"nothing to draw: every tensor is exact ({exact} of them)"
    shown = f"{dots} tensor{'s' * (dots != 1)} with an error"
    return shown + (f"; {exact} more kept exact, not shown" if exact else "")
