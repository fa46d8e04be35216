"""Bars as inline SVG, with a line where a limit is."""

from collections.abc import Sequence

from frugax.budget import amount
from frugax.report import escape

_WIDTH = 720
_GAP, _GLYPH = 8, 7.5  # px before a value, and for each of its characters


def bar_chart(
    rows: Sequence[tuple[str, float, str]], *, unit: str, limit: float | None = None
) -> str:
    """Horizontal bars with their values, and a line where the limit is.

    Args:
        rows: (label, value, CSS class of the bar).
        unit: what the values count, as in `Spend.unit`.
        limit: drawn across all bars; None for no line.

    Returns:
        An `<svg>` element.
    """
    most = max([value for _, value, _ in rows] + [limit or 0.0]) or 1.0
    left, right, row = 190, 110, 34
    height = row * len(rows) + (30 if limit is not None else 10)

    def px(value: float) -> float:
        return left + value / most * (_WIDTH - left - right)

    parts = []
    for i, (label, value, kind) in enumerate(rows):
        y = i * row + 8
        shown = amount(value, unit)
        beside = px(value) + _GAP
        line = px(limit) if limit is not None else 0.0
        if px(value) <= line < beside + _GLYPH * len(shown):
            beside = line + _GAP  # no line runs through a number
        parts.append(
            f'<text x="{left - 10}" y="{y + 15}" text-anchor="end">'
            f"{escape(label)}</text>"
            f'<rect class="bar {kind}" x="{left}" y="{y}" height="20" rx="3" '
            f'width="{max(px(value) - left, 1):.1f}"><title>{shown}</title></rect>'
            f'<text class="value" x="{beside:.1f}" y="{y + 15}">{shown}</text>'
        )
    if limit is not None:
        x, bottom = px(limit), row * len(rows) + 4
        parts.append(
            f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom}"/>'
            f'<text class="limit" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">'
            f"limit {amount(limit, unit)}</text>"
        )
    return (
        f'<figure class="chart"><svg viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="bars">{"".join(parts)}</svg></figure>'
    )
