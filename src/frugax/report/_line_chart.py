"""`line_chart`: series over training steps as a plot."""

from collections.abc import Collection, Mapping
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from ._downsample import downsample
from ._plot import Axis, Plot, format_tick

Series: TypeAlias = Mapping[
    str, tuple[Float[np.ndarray, " _n"], Float[np.ndarray, " _n"]]
]
_COLOURS = ("s0", "s1", "s2", "s3")
_MAX_DOTS = 40  # a line of so few points shows them


def line_chart(
    series: Series,
    *,
    title: str,
    is_wide: bool = False,
    x_max: float | None = None,
    dashed: Collection[str] = (),
) -> Plot:
    """Draw lines over one axis of steps; values that are not finite leave a gap.

    Long lines are downsampled, with all of their peaks.

    Args:
        series: name to (steps, values); drawn in this order, at most four.
        title: the name of the values.
        is_wide: whether it fills a page; of others, two stand side by side.
        x_max: a step that the axis must reach, so that several charts align; by
            default the last step of any line.
        dashed: names of lines that are dashed.
    """
    width, height, max_points = (720, 202, 1200) if is_wide else (440, 154, 800)
    lines = {
        name: downsample(*xy, max_points) for name, xy in series.items() if len(xy[0])
    }
    finite = [y[np.isfinite(y)] for _, y in lines.values()]
    finite = [y for y in finite if len(y)]
    if not finite:
        nothing = Axis(low=0, high=1)
        return Plot(title, x=nothing, y=nothing, width=width, height=height)
    last = max(float(x[-1]) for x, _ in lines.values())
    x_axis = Axis(
        low=min(float(x[0]) for x, _ in lines.values()),
        high=last if x_max is None else max(last, x_max),
        about=4,
        whole=True,
        text=_format_step,
    )
    low, high = min(float(y.min()) for y in finite), max(float(y.max()) for y in finite)
    y_axis = Axis.around(low, high)
    plot = Plot(title, x=x_axis, y=y_axis, width=width, height=height)
    for colour, (name, (x, y)) in zip(_COLOURS, lines.items(), strict=False):
        plot.line(x, y, colour, name=name, is_dashed=name in dashed)
        if len(x) <= (_MAX_DOTS if is_wide else 1):
            plot.dots(x, y, colour, radius=3)
    return plot


def _format_step(x: float) -> str:
    for limit, unit, symbol in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(x) >= limit:
            return f"{format_tick(x / unit)}{symbol}"
    return format_tick(x)
