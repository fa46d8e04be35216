"""`bar_chart`: horizontal bars of one unit as a plot, each with its parts and limit."""

import dataclasses
from collections.abc import Mapping, Sequence

from frugax.budget import amount

from ._plot import Axis, Plot

_HEAD, _LINE, _GAP = 20, 19, 14  # px above a bar, of a line below it, and after a row


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One row of `bar_chart`.

    Attributes:
        label: written above the bar, with its length.
        parts: its lengths, as (name, value, colour), from left to right.
        limit: where a line crosses the bar; None for no line.
        remark: what follows the length above the bar.
        notes: lines below it.
    """

    label: str
    parts: tuple[tuple[str, float, str], ...]
    limit: float | None = None
    remark: str = ""
    notes: tuple[str, ...] = ()


def bar_chart(
    bars: Sequence[Bar],
    *,
    title: str,
    unit: str,
    is_wide: bool = False,
    keys: Mapping[str, str] | None = None,
    description: str = "",
) -> Plot:
    """Draw horizontal bars with their values, to one scale.

    A limit is named below its bar, or below the last of several bars in a row that
    have the same one.

    Args:
        bars: the rows.
        title: the heading of the chart.
        unit: of the values, as in `frugax.budget.Spend`.
        is_wide: whether it fills a page.
        keys: the legend: colours by name.
        description: a longer text for screen readers.
    """
    thick = 26 if is_wide else 14
    followers = [*bars[1:], None]
    named = [
        bar.limit is not None and (after is None or after.limit != bar.limit)
        for bar, after in zip(bars, followers, strict=True)
    ]
    heights = [
        _HEAD + thick + _LINE * (len(bar.notes) + is_named) + _GAP
        for bar, is_named in zip(bars, named, strict=True)
    ]
    sums = [sum(value for _, value, _ in bar.parts) for bar in bars]
    # 1 where all values are 0, which leaves nothing to divide by.
    most = max([*sums, *(bar.limit or 0.0 for bar in bars)], default=0.0) or 1.0
    height = float(sum(heights))
    plot = Plot(
        title,
        x=Axis(low=0, high=most, about=0),
        y=Axis(low=height, high=0, about=0),  # in px, downwards
        width=880 if is_wide else 440,
        height=height,
        right=2,
        description=description,
    )
    for name, colour in (keys or {}).items():
        plot.key(name, colour)
    top = 0.0
    for bar, whole, is_named, row in zip(bars, sums, named, heights, strict=True):
        top, bottom, after = top + _HEAD, top + _HEAD + thick, top + row
        words = f"{bar.label}: {amount(whole, unit)}{bar.remark}"
        plot.text(0, top - 6, words, "strong")
        start = 0.0
        for name, value, colour in bar.parts:
            sides = (start, start + value)
            tip = f"{name}: {amount(value, unit)}"
            plot.bar(sides, (bottom, top), colour, tip=tip)
            start += value
        if bar.limit is not None:
            plot.limit((bar.limit, bar.limit), (bottom + 4, top - 2))
            if is_named:
                bottom += _LINE
                words = f"limit {amount(bar.limit, unit)}"
                middle = {"anchor": "middle", "is_inside": True}
                plot.text(bar.limit, bottom, words, "limit", **middle)
        for note in bar.notes:
            bottom += _LINE
            plot.text(0, bottom, note)
        top = after
    return plot
