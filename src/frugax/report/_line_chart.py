"""`line_chart`: draw series over training steps as inline SVG for an HTML page.

Colours come from the CSS classes `s0` to `s3` of the page. Each chart carries its
points as JSON, from which `CHART_SCRIPT` reads the values at a step.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

from frugax.budget import to_json

from ._downsample import downsample
from ._markup import Markup, element, format_number
from ._ticks import ticks

Series: TypeAlias = Mapping[
    str, tuple[Float[np.ndarray, " _n"], Float[np.ndarray, " _n"]]
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChartSize:
    """The dimensions of a chart, in CSS pixels.

    Attributes:
        width: total width.
        height: total height.
        left: room for the labels of the values.
        right: room after the last step.
        top: room above the lines.
        bottom: room for the labels of the steps.
        max_points: points of a line; longer lines are downsampled.
        max_markers: draw point markers on lines with at most this many points.
    """

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    max_points: int
    max_markers: int


# Two of these stand side by side on a screen, and one fills a phone.
HALF_WIDTH = ChartSize(
    width=440,
    height=190,
    left=50,
    right=12,
    top=10,
    bottom=26,
    max_points=800,
    max_markers=1,
)
FULL_WIDTH = ChartSize(
    width=720,
    height=240,
    left=58,
    right=14,
    top=12,
    bottom=26,
    max_points=1200,
    max_markers=40,
)


def line_chart(
    series: Series,
    *,
    title: str,
    size: ChartSize = HALF_WIDTH,
    x_max: float | None = None,
) -> Markup:
    """Draw lines over one axis of steps; values that are not finite leave a gap.

    The y axis is logarithmic where all values are positive and span two powers of ten.

    Args:
        series: name to (steps, values); drawn in this order, at most four.
        title: the name of the values.
        size: the dimensions.
        x_max: a step that the axis must reach, so that several charts align; by
            default the last step of any line.

    Returns:
        A `<figure>`, which holds only a sentence if there is nothing to draw.
    """
    lines = {
        name: downsample(*xy, size.max_points)
        for name, xy in series.items()
        if len(xy[0])
    }
    finite = [y[np.isfinite(y)] for _, y in lines.values()]
    if not any(len(y) for y in finite):
        note = element("p", "No finite value was recorded.", class_="note")
        caption = element("figcaption", element("b", title))
        return element("figure", caption, note, class_="chart")
    x_low = min(float(x[0]) for x, _ in lines.values())
    x_high = max(float(x[-1]) for x, _ in lines.values())
    if x_max is not None:
        x_high = max(x_high, x_max)
    y_low = min(float(y.min()) for y in finite if len(y))
    y_high = max(float(y.max()) for y in finite if len(y))
    # Losses fall by orders of magnitude: on a linear axis their end would be flat.
    is_log = 0 < 100 * y_low < y_high
    if is_log:
        y_low, y_high = math.log10(y_low), math.log10(y_high)
    elif 0 <= y_low < 0.5 * y_high:
        y_low = 0.0  # start at zero, where that does not squeeze the curve
    if y_low == y_high:
        y_low, y_high = y_low - (abs(y_low) or 1) / 2, y_high + (abs(y_high) or 1) / 2
    if not is_log:
        y_low, y_high = _extend_to_ticks(y_low, y_high)
    left, right = size.left, size.width - size.right
    top, bottom = size.top, size.height - size.bottom

    def px(x: Any) -> Any:
        return left + (x - x_low) / (x_high - x_low or 1) * (right - left)

    def py(y: Any) -> Any:
        # Halved, because the difference of two finite numbers may overflow.
        share = (y / 2 - y_low / 2) / (y_high / 2 - y_low / 2)
        return bottom - share * (bottom - top)

    parts: list[Markup] = []
    for tick in ticks(y_low, y_high, whole=is_log, about=5):
        y = py(tick)
        value = 10.0**tick if is_log else tick
        parts += [
            element("line", class_="grid", x1=left, x2=right, y1=y, y2=y),
            element(
                "text", _format_tick(value), x=left - 6, y=y + 4, text_anchor="end"
            ),
        ]
    for tick in ticks(x_low, x_high, whole=True, about=4):
        at = {"x": px(tick), "y": size.height - 8}
        parts.append(element("text", _format_step(tick), **at, text_anchor="middle"))
    points: dict[str, list[list[float | None]]] = {}
    for i, (name, (x, y)) in enumerate(lines.items()):
        is_finite = np.isfinite(y)
        level = np.full(y.shape, np.nan)
        level[is_finite] = np.log10(y[is_finite]) if is_log else y[is_finite]
        xs, ys = px(x), py(level)
        parts.append(element("path", class_=f"line s{i}", d=_path_data(xs, ys)))
        if len(x) <= size.max_markers:
            for cx, cy in zip(xs[is_finite], ys[is_finite], strict=True):
                parts.append(element("circle", class_=f"dot s{i}", r=3, cx=cx, cy=cy))
        points[name] = [
            # Five digits suffice for a readout.
            [a, float(f"{b:.5g}")]
            for a, b in zip(x.tolist(), y.tolist(), strict=True)
        ]
    # Outside of the picture until the script moves it to a step.
    parts.append(element("line", class_="cursor", x1=-9, x2=-9, y1=top, y2=bottom))
    drawing = element(
        "svg",
        parts,
        viewBox=f"0 0 {size.width} {size.height}",
        role="img",
        tabindex=0,
        aria_label=f"{title} over steps; arrow keys read values",
        data_axis=to_json([x_low, x_high, left, right]),
        data_points=to_json(points),
    )
    kind = "chart full" if size.width > HALF_WIDTH.width else "chart"
    return element("figure", _caption(title, lines), drawing, class_=kind)


def _caption(title: str, lines: Series) -> Markup:
    keys = [
        element("span", element("i", class_=f"s{i}"), name, class_="key")
        for i, name in enumerate(lines)
    ]
    last = ", ".join(f"{y[-1]:.4g}" for _, y in lines.values())
    readout = element("output", f"last {last}", class_="readout")
    if len(keys) == 1:
        keys = []  # the title names a single line
    return element("figcaption", element("b", title), keys, readout)


def _format_tick(value: float) -> str:
    # 2.5e+04 is wider than the margin; 2.5e4 fits.
    return re.sub(r"e([+-])0*", lambda m: "e" + m[1].strip("+"), f"{value:.4g}")


def _extend_to_ticks(low: float, high: float) -> tuple[float, float]:
    """Extend the axis to the next label at either end, unless that overflows."""
    labels = ticks(low, high, about=5)
    # A single label gives no distance, so the axis stays as it is.
    step = math.inf
    if len(labels) > 1:
        step = labels[1] - labels[0]
    first, last = low, high
    if labels[0] > low:
        first = labels[0] - step
    if labels[-1] < high:
        last = labels[-1] + step
    if math.isfinite(first) and math.isfinite(last):
        return first, last
    return low, high


def _path_data(xs: Float[np.ndarray, " n"], ys: Float[np.ndarray, " n"]) -> str:
    return "".join(_path_commands(xs, ys))


def _path_commands(xs: np.ndarray, ys: np.ndarray) -> Iterator[str]:
    pen = "M"
    for x, y in zip(xs.tolist(), ys.tolist(), strict=True):
        if math.isfinite(y):
            yield f"{pen}{format_number(x)} {format_number(y)}"
            pen = "L"
        else:
            pen = "M"


def _format_step(x: float) -> str:
    for limit, unit, symbol in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(x) >= limit:
            return f"{x / unit:.4g}{symbol}"
    return f"{x:.4g}"
