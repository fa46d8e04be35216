"""`bar_chart`: horizontal bars as inline SVG for a report, with a line at the limit."""

from collections.abc import Sequence

from frugax.budget import amount

from ._markup import Markup, element

_WIDTH = 440  # fills a phone; on a screen it is not enlarged
_LEFT, _RIGHT, _ROW = 2, 100, 42  # room for values, and for one label above its bar
_GAP, _GLYPH = 8, 7.5  # px before a value, and for each of its characters


def bar_chart(
    rows: Sequence[tuple[str, float, str]], *, unit: str, limit: float | None = None
) -> Markup:
    """Draw horizontal bars with their values.

    Args:
        rows: (label, value, CSS class of the bar).
        unit: of the values, as in `frugax.budget.Spend`.
        limit: where to draw a line across all bars; None for no line.

    Returns:
        A `<figure>` element with one `<svg>`.
    """
    # 1 where all values are 0, which leaves nothing to divide by.
    most = max([value for _, value, _ in rows] + [limit or 0.0]) or 1.0
    bottom = _ROW * len(rows) + 4

    def px(value: float) -> float:
        return _LEFT + value / most * (_WIDTH - _LEFT - _RIGHT)

    parts = []
    for i, (label, value, kind) in enumerate(rows):
        y = i * _ROW + 22
        text = amount(value, unit)
        x = px(value) + _GAP
        if limit is not None and px(value) <= px(limit) < x + _GLYPH * len(text):
            x = px(limit) + _GAP  # otherwise the line would run through the number
        parts += [
            element("text", label, x=_LEFT, y=y - 6),
            element(
                "rect",
                element("title", text),
                class_=f"bar {kind}",
                x=_LEFT,
                y=y,
                # A bar without width would look like a missing value.
                width=max(px(value) - _LEFT, 1.0),
                height=14,
                rx=3,
            ),
            element("text", text, class_="value", x=x, y=y + 12),
        ]
    if limit is not None:
        x = px(limit)
        parts += [
            # In pieces, so that it does not run through the labels.
            element(
                "line", class_="limit", x1=x, x2=x, y1=i * _ROW + 20, y2=i * _ROW + 38
            )
            for i in range(len(rows))
        ]
        parts += [
            element(
                "text",
                f"limit {amount(limit, unit)}",
                class_="limit",
                x=x,
                y=bottom + 18,
                text_anchor="middle",
            ),
        ]
    svg = element(
        "svg",
        parts,
        viewBox=f"0 0 {_WIDTH} {bottom + 26}",
        role="img",
        aria_label="bars",
    )
    return element("figure", svg, class_="chart bars")
