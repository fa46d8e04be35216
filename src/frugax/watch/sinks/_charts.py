"""Lines over steps as inline SVG: readable without a script, in light and dark.

Small, so that two stand side by side on a screen and each fills a phone. Colours come
from the page's CSS classes `s0` to `s3`. Each chart carries its points, from which the
page's script reads the values at a step.
"""

import html
import itertools
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from ._marks import escaped

_WIDTH, _HEIGHT = 440, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 12, 10, 26
_MOST_POINTS = 800


def line_chart(
    series: Mapping[str, tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]],
    *,
    title: str,
) -> str:
    """Lines over one axis of steps; points that are not finite leave a gap.

    The y axis is logarithmic where all values are positive and span two powers of ten.

    Args:
        series: name to (steps, values); drawn in this order, at most four.
        title: what the values are.

    Returns:
        A `<figure>`, or a sentence if there is nothing to draw.
    """
    thin = {
        name: thinned(*xy, _MOST_POINTS) for name, xy in series.items() if len(xy[0])
    }
    finite = [y[np.isfinite(y)] for _, y in thin.values()]
    if not any(len(y) for y in finite):
        return (
            f'<figure class="chart"><figcaption><b>{escaped(title)}</b></figcaption>'
            '<p class="note">No finite value was recorded.</p></figure>'
        )
    x_low = min(float(x[0]) for x, _ in thin.values())
    x_high = max(float(x[-1]) for x, _ in thin.values())
    y_low = min(float(y.min()) for y in finite if len(y))
    y_high = max(float(y.max()) for y in finite if len(y))
    logarithmic = 0 < 100 * y_low < y_high
    if logarithmic:
        y_low, y_high = math.log10(y_low), math.log10(y_high)
    elif 0 <= y_low < 0.5 * y_high:
        y_low = 0.0  # from zero, where that does not squeeze the curve
    if y_low == y_high:
        y_low, y_high = y_low - (abs(y_low) or 1) / 2, y_high + (abs(y_high) or 1) / 2
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def px(x: Any) -> Any:
        return _LEFT + (x - x_low) / (x_high - x_low or 1) * wide

    def py(y: Any) -> Any:
        # Halved, because the distance between two finite numbers may not be one.
        return _HEIGHT - _BOTTOM - (y / 2 - y_low / 2) / (y_high / 2 - y_low / 2) * high

    parts = [
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" '
        f'y2="{y:.1f}"/><text x="{_LEFT - 6}" y="{y + 4:.1f}" '
        f'text-anchor="end">{10.0**t if logarithmic else t:.4g}</text>'
        for t in _ticks(y_low, y_high, whole=logarithmic, about=5)
        for y in [py(t)]
    ]
    parts += [
        f'<text x="{px(t):.1f}" y="{_HEIGHT - 8}" '
        f'text-anchor="middle">{_short(t)}</text>'
        for t in _ticks(x_low, x_high, whole=True, about=4)
    ]
    points: dict[str, list[list[float | None]]] = {}
    for i, (name, (x, y)) in enumerate(thin.items()):
        level = np.full(y.shape, np.nan)
        sound = np.isfinite(y)
        level[sound] = np.log10(y[sound]) if logarithmic else y[sound]
        xs, ys = px(x), py(level)
        parts.append(f'<path class="line s{i}" d="{_path(xs, ys)}"/>')
        if len(x) == 1 and sound[0]:
            parts.append(
                f'<circle class="dot s{i}" r="3" cx="{xs[0]:g}" cy="{ys[0]:g}"/>'
            )
        points[name] = [
            [float(a), float(f"{b:.5g}") if math.isfinite(b) else None]
            for a, b in zip(x, y, strict=True)
        ]
    parts.append(
        f'<line class="cursor" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" x1="-9" x2="-9"/>'
    )
    keys = "".join(
        f'<span class="key"><i class="s{i}"></i>{escaped(name)}</span>'
        for i, name in enumerate(thin)
        if len(thin) > 1
    )
    axis = html.escape(json.dumps([x_low, x_high, _LEFT, _WIDTH - _RIGHT]))
    return (
        f'<figure class="chart"><figcaption><b>{escaped(title)}</b>{keys}'
        f'<output class="readout">{_last(thin)}</output></figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" tabindex="0" '
        f'aria-label="{escaped(title)} over steps; arrow keys read values" '
        f'data-axis="{axis}" data-points="{html.escape(json.dumps(points))}">'
        f"{''.join(parts)}</svg></figure>"
    )


def thinned(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], most: int
) -> tuple[np.ndarray, np.ndarray]:
    """About `most` points: of each bucket the lowest and highest, so that peaks stay.

    A value that is not finite stays too, or its gap would close.
    """
    if len(x) <= most:
        return x, y
    edges = np.linspace(0, len(x), most // 3 + 1).astype(int)
    keep = {0, len(x) - 1}
    for start, stop in itertools.pairwise(edges.tolist()):
        bucket = y[start:stop]
        sound = np.isfinite(bucket)
        if not sound.all():
            keep.add(start + int(sound.argmin()))
        if sound.any():
            keep.add(start + int(np.where(sound, bucket, np.inf).argmin()))
            keep.add(start + int(np.where(sound, bucket, -np.inf).argmax()))
    kept = np.array(sorted(keep))
    return x[kept], y[kept]


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


def _ticks(low: float, high: float, *, whole: bool, about: int) -> list[float]:
    """Round numbers in [low, high]: steps of 1, 2 or 5 times a power of ten."""
    if high <= low:
        return [low]
    raw = high / about - low / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    if whole:
        step = max(round(step), 1)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)] or [low]
