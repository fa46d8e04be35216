"""Charts as inline SVG: readable without a script, in light and dark.

Colours come from the page's CSS classes (`s0`, `s1`, ... for series). Each line chart
carries its points in `data-points`, from which the page's script reads the value
under the pointer.
"""

import html
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from frugax.budget import amount

_WIDTH, _HEIGHT = 720, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 12, 38
_MOST_POINTS = 1200


def line_chart(
    series: Mapping[str, tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]],
    *,
    x_label: str,
    y_label: str,
) -> str:
    """Lines over one x axis; points that are not finite leave a gap.

    The y axis is logarithmic where all values are positive and span two powers of ten.

    Args:
        series: name to (x, y); drawn in this order.
        x_label: what x counts.
        y_label: what y counts.

    Returns:
        An `<svg>` element with a legend, or a sentence if there is nothing to draw.
    """
    thin = {name: _thin(*xy) for name, xy in series.items() if len(xy[0])}
    finite = [y[np.isfinite(y)] for _, y in thin.values()]
    if not any(len(y) for y in finite):
        return '<p class="note">Nothing was recorded.</p>'
    x_low = min(float(x.min()) for x, _ in thin.values())
    x_high = max(float(x.max()) for x, _ in thin.values())
    y_low = min(float(y.min()) for y in finite if len(y))
    y_high = max(float(y.max()) for y in finite if len(y))
    logarithmic = 0 < 100 * y_low < y_high
    if logarithmic:
        y_low, y_high = math.log10(y_low), math.log10(y_high)
        low, high = math.floor(y_low), math.ceil(y_high)
        every = max(1, (high - low) // 5)
        y_ticks = [
            float(t) for t in range(low, high + 1, every) if y_low <= t <= y_high
        ]
    else:
        if 0 <= y_low < 0.5 * y_high:
            y_low = 0.0  # from zero, where that does not squeeze the curve
        y_ticks = _ticks(y_low, y_high)
    x_ticks = _ticks(x_low, x_high)

    def px(x: float) -> float:
        return _LEFT + (x - x_low) / (x_high - x_low or 1) * (_WIDTH - _LEFT - _RIGHT)

    def py(y: float) -> float:
        y = math.log10(y) if logarithmic else y
        span = _HEIGHT - _TOP - _BOTTOM
        return _HEIGHT - _BOTTOM - (y - y_low) / (y_high - y_low or 1) * span

    y_shown = [10.0**t for t in y_ticks] if logarithmic else y_ticks
    parts = [
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" '
        f'y1="{py(y):.1f}" y2="{py(y):.1f}"/>'
        f'<text x="{_LEFT - 8}" y="{py(y) + 4:.1f}" text-anchor="end">{y:g}</text>'
        for y in y_shown
    ]
    parts += [
        f'<text x="{px(x):.1f}" y="{_HEIGHT - _BOTTOM + 18}" '
        f'text-anchor="middle">{x:g}</text>'
        for x in x_ticks
    ]
    for i, (x, y) in enumerate(thin.values()):
        parts.append(f'<path class="line s{i}" d="{_path(x, y, px, py)}"/>')
        if len(x) <= 40:  # few points: show where they are
            parts += [
                f'<circle class="dot s{i}" r="3" cx="{px(a):.1f}" cy="{py(b):.1f}"/>'
                for a, b in zip(x, y, strict=True)
                if math.isfinite(b)
            ]
    parts.append(
        f'<text class="axis" x="{(_LEFT + _WIDTH) / 2:.0f}" y="{_HEIGHT - 4}" '
        f'text-anchor="middle">{html.escape(x_label)}</text>'
        f'<line class="cursor" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" x1="-9" x2="-9"/>'
    )
    points = {
        name: [[round(px(a), 1), float(a), None if math.isnan(b) else float(f"{b:.5g}")]
               for a, b in zip(x, y, strict=True)]
        for name, (x, y) in thin.items()
    }  # fmt: skip
    legend = "".join(
        f'<span class="key"><i class="s{i}"></i>{html.escape(name)}</span>'
        for i, name in enumerate(thin)
    )
    title = f"{y_label} over {x_label}"
    return (
        f'<figure class="chart"><figcaption>{legend}'
        f'<output class="readout"></output></figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{html.escape(title)}" '
        f'data-points="{html.escape(json.dumps(points))}">{"".join(parts)}</svg></figure>'
    )


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
        parts.append(
            f'<text x="{left - 10}" y="{y + 15}" text-anchor="end">'
            f"{html.escape(label)}</text>"
            f'<rect class="bar {kind}" x="{left}" y="{y}" height="20" rx="3" '
            f'width="{max(px(value) - left, 1):.1f}"><title>{shown}</title></rect>'
            f'<text class="value" x="{px(value) + 8:.1f}" y="{y + 15}">{shown}</text>'
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


def _thin(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]
) -> tuple[np.ndarray, np.ndarray]:
    """At most `_MOST_POINTS`: of each bucket its lowest and highest, so peaks stay."""
    if len(x) <= _MOST_POINTS:
        return x, y
    edges = np.linspace(0, len(x), _MOST_POINTS // 2 + 1).astype(int)
    keep: set[int] = {0, len(x) - 1}
    for start, stop in itertools.pairwise(edges):
        bucket = np.where(np.isfinite(y[start:stop]), y[start:stop], 0.0)
        keep |= {int(start + bucket.argmin()), int(start + bucket.argmax())}
    kept = np.array(sorted(keep))
    return x[kept], y[kept]


def _path(
    x: np.ndarray,
    y: np.ndarray,
    px: Callable[[float], float],
    py: Callable[[float], float],
) -> str:
    parts, pen = [], "M"
    for a, b in zip(x, y, strict=True):
        if not math.isfinite(b):
            pen = "M"
            continue
        parts.append(f"{pen}{px(a):.1f} {py(b):.1f}")
        pen = "L"
    return "".join(parts)


def _ticks(low: float, high: float, *, about: int = 5) -> list[float]:
    """Round numbers that cover [low, high]: steps of 1, 2 or 5 times a power of ten."""
    if high <= low:
        return [low]
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw)
    first, last = math.floor(low / step), math.ceil(high / step)
    ticks = [round(i * step, 12) for i in range(first, last + 1)]
    return [t for t in ticks if low - step * 0.01 <= t <= high + step * 0.01] or [low]
