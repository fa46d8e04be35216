"""Lines over steps as inline SVG: readable without a script, in light and dark.

Colours come from the page's CSS classes `s0` to `s3`. Each chart carries its points,
from which the page's script reads the values at a step.
"""

import dataclasses
import html
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from ._escaped import escaped
from ._thinned import thinned
from ._ticks import ticks


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The measures of a chart, in CSS pixels.

    Attributes:
        width: of all.
        height: of all.
        left: room for the labels of the values.
        right: room after the last step.
        top: room above the lines.
        bottom: room for the labels of the steps.
        most_points: of a line; a longer one is thinned.
        most_dots: a line of so few points shows where they are.
    """

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    most_points: int
    most_dots: int


# Two stand side by side on a screen, and each fills a phone.
HALF = Size(
    width=440,
    height=190,
    left=50,
    right=12,
    top=10,
    bottom=26,
    most_points=800,
    most_dots=1,
)
WHOLE = Size(
    width=720,
    height=240,
    left=58,
    right=14,
    top=12,
    bottom=26,
    most_points=1200,
    most_dots=40,
)


def line_chart(
    series: Mapping[str, tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]],
    *,
    title: str,
    size: Size = HALF,
    upto: float | None = None,
) -> str:
    """Lines over one axis of steps; points that are not finite leave a gap.

    The y axis is logarithmic where all values are positive and span two powers of ten.

    Args:
        series: name to (steps, values); drawn in this order, at most four.
        title: what the values are.
        size: how large.
        upto: a step that the axis reaches, so that charts above each other agree;
            by default the last step of a line.

    Returns:
        A `<figure>`, or a sentence if there is nothing to draw.
    """
    thin = {
        name: thinned(*xy, size.most_points)
        for name, xy in series.items()
        if len(xy[0])
    }
    finite = [y[np.isfinite(y)] for _, y in thin.values()]
    if not any(len(y) for y in finite):
        return (
            f'<figure class="chart"><figcaption><b>{escaped(title)}</b></figcaption>'
            '<p class="note">No finite value was recorded.</p></figure>'
        )
    x_low = min(float(x[0]) for x, _ in thin.values())
    x_high = max(float(x[-1]) for x, _ in thin.values())
    x_high = x_high if upto is None else max(x_high, upto)
    y_low = min(float(y.min()) for y in finite if len(y))
    y_high = max(float(y.max()) for y in finite if len(y))
    logarithmic = 0 < 100 * y_low < y_high
    if logarithmic:
        y_low, y_high = math.log10(y_low), math.log10(y_high)
    elif 0 <= y_low < 0.5 * y_high:
        y_low = 0.0  # from zero, where that does not squeeze the curve
    if y_low == y_high:
        y_low, y_high = y_low - (abs(y_low) or 1) / 2, y_high + (abs(y_high) or 1) / 2
    if not logarithmic:
        y_low, y_high = _to_ticks(y_low, y_high)
    left, right = size.left, size.width - size.right
    top, bottom = size.top, size.height - size.bottom

    def px(x: Any) -> Any:
        return left + (x - x_low) / (x_high - x_low or 1) * (right - left)

    def py(y: Any) -> Any:
        # Halved, because the distance between two finite numbers may not be one.
        part = (y / 2 - y_low / 2) / (y_high / 2 - y_low / 2)
        return bottom - part * (bottom - top)

    parts = [
        f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" '
        f'y2="{y:.1f}"/><text x="{left - 6}" y="{y + 4:.1f}" '
        f'text-anchor="end">{10.0**t if logarithmic else t:.4g}</text>'
        for t in ticks(y_low, y_high, whole=logarithmic, about=5)
        for y in [py(t)]
    ]
    parts += [
        f'<text x="{px(t):.1f}" y="{size.height - 8}" '
        f'text-anchor="middle">{_short(t)}</text>'
        for t in ticks(x_low, x_high, whole=True, about=4)
    ]
    points: dict[str, list[list[float | None]]] = {}
    for i, (name, (x, y)) in enumerate(thin.items()):
        level = np.full(y.shape, np.nan)
        sound = np.isfinite(y)
        level[sound] = np.log10(y[sound]) if logarithmic else y[sound]
        xs, ys = px(x), py(level)
        parts.append(f'<path class="line s{i}" d="{_path(xs, ys)}"/>')
        if len(x) <= size.most_dots:
            parts += [
                f'<circle class="dot s{i}" r="3" cx="{a:.1f}" cy="{b:.1f}"/>'
                for a, b in zip(xs[sound].tolist(), ys[sound].tolist(), strict=True)
            ]
        points[name] = [
            [float(a), float(f"{b:.5g}") if math.isfinite(b) else None]
            for a, b in zip(x, y, strict=True)
        ]
    parts.append(f'<line class="cursor" y1="{top}" y2="{bottom}" x1="-9" x2="-9"/>')
    keys = "".join(
        f'<span class="key"><i class="s{i}"></i>{escaped(name)}</span>'
        for i, name in enumerate(thin)
        if len(thin) > 1
    )
    axis = html.escape(json.dumps([x_low, x_high, left, right]))
    return (
        f'<figure class="chart"><figcaption><b>{escaped(title)}</b>{keys}'
        f'<output class="readout">{_last(thin)}</output></figcaption>'
        f'<svg viewBox="0 0 {size.width} {size.height}" role="img" tabindex="0" '
        f'aria-label="{escaped(title)} over steps; arrow keys read values" '
        f'data-axis="{axis}" data-points="{html.escape(json.dumps(points))}">'
        f"{''.join(parts)}</svg></figure>"
    )


def _to_ticks(low: float, high: float) -> tuple[float, float]:
    """The axis goes on to the next label at either end, so that none lies beyond."""
    at = ticks(low, high, about=5)
    step = at[1] - at[0] if len(at) > 1 else math.inf
    first = at[0] - step if at[0] > low else low
    last = at[-1] + step if at[-1] < high else high
    return (
        (first, last) if math.isfinite(first) and math.isfinite(last) else (low, high)
    )


def _last(series: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> str:
    ends = [f"{y[-1]:.4g}" for _, y in series.values()]
    return f"last {', '.join(ends)}"


def _path(xs: np.ndarray, ys: np.ndarray) -> str:
    parts, pen = [], "M"
    for a, b in zip(xs.tolist(), ys.tolist(), strict=True):
        if not math.isfinite(b):
            pen = "M"
            continue
        parts.append(f"{pen}{a:.1f} {b:.1f}")
        pen = "L"
    return "".join(parts)


def _short(x: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(x) >= size:
            return f"{x / (1e3 if unit == 'k' else size):.4g}{unit}"
    return f"{x:.4g}"
