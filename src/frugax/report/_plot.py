"""`Plot`: marks over two axes, as a figure of an HTML page or as an SVG file."""

import dataclasses
import importlib.resources
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from frugax.budget import to_json

from ._markup import Child, Markup, element, format_number
from ._theme import svg_theme
from ._ticks import ticks

_STATIC = importlib.resources.files("frugax.report") / "static"
PLOT_STYLE = (_STATIC / "plot.css").read_text("utf-8")
# Text cannot be measured here: this is the average width of a letter, in px.
_LETTER = 7.5
_SIDE = 16  # px of an SVG file beside its drawing
_FULL = 600  # px of width from which a figure is drawn for a whole page


def format_tick(value: float) -> str:
    """Write a value on an axis, in few letters.

    >>> format_tick(25000.0), format_tick(0.25)
    ('2.5e4', '0.25')
    """
    return re.sub(r"e([+-])0*", lambda m: "e" + m[1].strip("+"), f"{value:.4g}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The values along one side of a plot, and its labels.

    Attributes:
        low: the value at the left, or at the bottom.
        high: the value at the right, or at the top; finite, like `low`.
        label: the meaning of the values; shown beside the axis.
        is_log: whether equal ratios are equally far apart; then `low` is > 0.
        about: the approximate number of labelled values; 0 for none.
        whole: whether only whole numbers are labelled.
        unit: labelled values are round multiples of it; > 0.
        text: writes a labelled value.
    """

    low: float
    high: float
    label: str = ""
    is_log: bool = False
    about: int = 5
    whole: bool = False
    unit: float = 1.0
    text: Callable[[float], str] = format_tick

    @staticmethod
    def around(low: float, high: float) -> "Axis":
        """Choose an axis for values from `low` to `high`, which are finite.

        It is logarithmic where they are positive and span two powers of ten. Otherwise
        it ends at labelled values, and starts at 0 where that does not squeeze them.
        """
        # Losses fall by orders of magnitude: on a linear axis their end would be flat.
        if 0 < 100 * low < high:
            return Axis(low=low, high=high, is_log=True)
        if 0 <= low < 0.5 * high:
            low = 0.0
        if low == high:
            low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
        labels = ticks(low, high, about=5)
        # A single label gives no distance, so the axis stays as it is.
        step = labels[1] - labels[0] if len(labels) > 1 else math.inf
        first = labels[0] - step if labels[0] > low else low
        last = labels[-1] + step if labels[-1] < high else high
        if math.isfinite(first) and math.isfinite(last):
            low, high = first, last
        return Axis(low=low, high=high)

    def share(self, value: Any) -> Any:
        """The place of a number, or of each of an array, with 0 at `low`, 1 at `high`.

        A number without a place, such as the logarithm of 0, is NaN.
        """
        low, high, value = self.low, self.high, np.asarray(value, dtype=np.float64)
        if self.is_log:
            low, high = math.log10(low), math.log10(high)
            value = np.log10(value, out=np.full(value.shape, np.nan), where=value > 0)
        value = np.where(np.isfinite(value), value, np.nan)
        # Halved, because the difference of two finite numbers may overflow.
        return (value / 2 - low / 2) / ((high / 2 - low / 2) or 1)

    def labelled(self) -> list[float]:
        """The values that get a label."""
        if not self.about:
            return []
        if self.is_log:
            low, high = math.log10(self.low), math.log10(self.high)
            return [10.0**t for t in ticks(low, high, about=self.about, whole=True)]
        low, high = self.low / self.unit, self.high / self.unit
        found = ticks(low, high, about=self.about, whole=self.whole)
        return [t * self.unit for t in found]


class Plot:
    """Lines, areas, bars and dots over two axes; every mark is placed by its values.

    Colours are names of `COLOURS`, which follow the reader's light or dark theme.
    `figure` gives the plot to an HTML page, `svg` makes a file of it.
    """

    def __init__(
        self,
        title: str,
        *,
        x: Axis,
        y: Axis,
        width: float,
        height: float,
        right: float = 14,
        notes: Sequence[str] = (),
        description: str = "",
    ) -> None:
        """Begin a plot without marks.

        Args:
            title: the heading, which screen readers read, too.
            x: the horizontal axis.
            y: the vertical axis.
            width: of the picture with its labels, in px.
            height: of the area between the axes, in px.
            right: px kept free beside the area, for labels of marks.
            notes: lines below the heading of a file.
            description: a longer text for screen readers.
        """
        self.title = title
        self.notes = tuple(notes)
        self.description = description or title
        self.width, self.height = width, height
        self._x, self._y = x, y
        labels = [y.text(tick) for tick in y.labelled()]
        self._left = 2 + max((8 + _LETTER * len(label) for label in labels), default=0)
        self._left += 22 * bool(y.label)
        self._inner = width - self._left - right
        self._below = 24 * bool(x.about) + 20 * bool(x.label) + 4
        self._marks: list[Markup] = []
        self._labels: list[Markup] = []
        self._taken: list[tuple[float, float, float]] = []
        self._keys: dict[str, str] = {}
        self._points: dict[str, list[list[float | None]]] = {}

    def line(
        self,
        x: Float[np.ndarray, " n"],
        y: Float[np.ndarray, " n"],
        colour: str,
        *,
        name: str = "",
        is_dashed: bool = False,
    ) -> None:
        """Draw a line; a value that is not finite leaves a gap.

        Args:
            x: the places, increasing.
            y: the values.
            colour: a name of `COLOURS`.
            name: for the legend, and for reading values off; "" leaves it out.
            is_dashed: whether the line is dashed.
        """
        self._draw_path(_commands(*self._place(x, y)), colour, is_dashed=is_dashed)
        if name:
            self.key(name, colour)
            self._points[name] = [
                [a, float(f"{b:.5g}")]  # five digits suffice for a readout
                for a, b in zip(x.tolist(), y.tolist(), strict=True)
            ]

    def steps(
        self, edges: Float[np.ndarray, " m"], y: Float[np.ndarray, " n"], colour: str
    ) -> None:
        """Draw the area under values that each hold from one edge to the next.

        Args:
            edges: the places where values change; one more than there are values.
            y: the values, all finite.
            colour: of the edge; the area is a lighter shade of it.
        """
        if not len(y):
            return
        xs, ys = self._place(np.repeat(edges, 2)[1:-1], np.repeat(y, 2))
        top = list(_commands(xs, ys))
        close = f"V{self.height:g}H{format_number(float(xs[0]))}Z"
        shade = f"fill:var(--{colour})"
        d = "".join([*top, close])
        self._marks.append(element("path", class_="area", d=d, style=shade))
        self._draw_path(top, colour)

    def dots(
        self,
        x: Sequence[float] | np.ndarray,
        y: Sequence[float] | np.ndarray,
        colour: str,
        *,
        tips: Sequence[str] = (),
        radius: float = 4,
        is_ring: bool = False,
    ) -> None:
        """Draw a dot, or a ring, at each finite value.

        Args:
            x: the places.
            y: the values.
            colour: a name of `COLOURS`.
            tips: the text that the pointer shows on each; empty for none.
            radius: in px.
            is_ring: whether the dots are empty.
        """
        xs, ys = self._place(x, y)
        paint = "fill:none;stroke" if is_ring else "fill"
        for i in np.flatnonzero(np.isfinite(ys)).tolist():
            tip = [element("title", tips[i])] if tips else []
            at = {"cx": float(xs[i]), "cy": float(ys[i]), "r": radius}
            style = f"{paint}:var(--{colour})"
            kind = "ring" if is_ring else "dot"
            self._marks.append(element("circle", tip, class_=kind, style=style, **at))

    def bar(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        colour: str,
        *,
        tip: str,
    ) -> None:
        """Draw a box from the first to the second value of both axes.

        Args:
            x: its sides.
            y: its bottom and its top.
            colour: a name of `COLOURS`.
            tip: the text that the pointer shows on it.
        """
        (left, right), (bottom, top) = self._place(x, y)
        self._marks.append(
            element(
                "rect",
                element("title", tip),
                x=float(left),
                y=float(top),
                # A bar without width would look like a missing value.
                width=max(float(right - left), 1.0),
                height=float(bottom - top),
                rx=2,
                style=f"fill:var(--{colour})",
            )
        )

    def limit(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        """Draw the straight line that marks a limit, from one point to another."""
        (x1, x2), (y1, y2) = self._place(x, y).tolist()
        self._marks.append(element("line", class_="limit", x1=x1, x2=x2, y1=y1, y2=y2))

    def text(
        self,
        x: float,
        y: float,
        text: str,
        kind: str | None = None,
        *,
        anchor: str = "start",
        shift: tuple[float, float] = (0, 0),
        is_inside: bool = False,
    ) -> None:
        """Write over all marks; of texts in one place only the first is written.

        Args:
            x: the place.
            y: the value.
            text: the words, on one line.
            kind: "strong", "limit" or "label", which stands out from the marks below
                it; None for plain text.
            anchor: which part of the text is at x: "start", "middle" or "end".
            shift: px to the right and downwards from there.
            is_inside: whether to move the text sideways until it is between the axes.
        """
        (px,), (py,) = self._place([x], [y]).tolist()
        px, py = px + shift[0], py + shift[1]
        length = _LETTER * len(text)
        start = px - {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor] * length
        if is_inside:
            inside = max(min(start, self._inner - length), 0.0)
            px, start = px + inside - start, inside
        for a, b, c in self._taken:
            if start < b and a < start + length and abs(py - c) < 13:
                return
        self._taken.append((start, start + length, py))
        at = {"x": px, "y": py, "text_anchor": None if anchor == "start" else anchor}
        self._labels.append(element("text", text, class_=kind, **at))

    def key(self, name: str, colour: str) -> None:
        """Add a name and its colour to the legend."""
        self._keys[name] = colour

    def figure(self) -> Markup:
        """The plot as a `<figure>` of an HTML page; a sentence if nothing is drawn.

        `CHART_SCRIPT` reads values off its named lines, by pointer or arrow keys.
        """
        caption = [element("b", self.title)]
        if not self._marks:
            note = element("p", "No finite value was recorded.", class_="note")
            head = element("figcaption", caption)
            return element("figure", head, note, class_="chart")
        top, about = 10.0, self.title
        height = top + self.height + self._below
        readable: dict[str, str | float] = {}
        parts = [self._draw(self._left, top)]
        if self._points:
            about = f"{self.title} over steps; arrow keys read values"
            left, right = self._left, self._left + self._inner
            readable = {
                "tabindex": 0,
                "data_axis": to_json([self._x.low, self._x.high, left, right]),
                "data_points": to_json(self._points),
            }
            # Outside of the picture until the script moves it to a step.
            ends = {"x1": -9, "x2": -9, "y1": top, "y2": top + self.height}
            parts.append(element("line", class_="cursor", **ends))
            last = ", ".join(
                f"{math.nan if y is None else y:.4g}"
                for *_, (_, y) in self._points.values()
            )
            caption += [
                element(
                    "span",
                    element("i", style=f"background:var(--{colour})"),
                    name,
                    class_="key",
                )
                for name, colour in self._listed_keys()
            ]
            caption.append(element("output", f"last {last}", class_="readout"))
        drawing = element(
            "svg",
            parts,
            viewBox=f"0 0 {self.width:g} {height:g}",
            role="img",
            aria_label=about,
            **readable,
        )
        kind = "chart full" if self.width > _FULL else "chart"
        if not self._points:
            kind = "chart bars"
        head = element("figcaption", caption)
        return element("figure", head, drawing, class_=kind)

    def svg(self) -> str:
        """The plot as an SVG file with its heading and legend, for light and dark.

        Raises:
            ValueError: nothing is drawn.
        """
        if not self._marks:
            raise ValueError(f"{self.title!r} has no drawing: no value is finite.")
        parts = [element("text", self.title, class_="title", x=_SIDE, y=32)]
        y = 32.0
        for note in self.notes:
            y += 20
            parts.append(element("text", note, x=_SIDE, y=y))
        x = float(_SIDE)
        for i, (name, colour) in enumerate(self._listed_keys()):
            step = 36 + _LETTER * len(name)
            if i == 0 or x + step > self.width + _SIDE:
                x, y = float(_SIDE), y + 24
            at = {"x": x, "y": y - 10, "width": 12, "height": 12, "rx": 3}
            parts.append(element("rect", style=f"fill:var(--{colour})", **at))
            parts.append(element("text", name, class_="strong", x=x + 18, y=y))
            x += step
        top = y + 24
        parts.append(self._draw(_SIDE + self._left, top))
        return svg_picture(
            self.title,
            parts,
            width=self.width + 2 * _SIDE,
            height=top + self.height + self._below + 12,
            description=self.description,
        )

    def _listed_keys(self) -> list[tuple[str, str]]:
        # The title names a single line.
        return list(self._keys.items()) if len(self._keys) > 1 else []

    def _place(self, x: Any, y: Any) -> np.ndarray:
        """Points in px, from the upper left corner of the area."""
        across, up = self._x.share(x), self._y.share(y)
        return np.array([across * self._inner, (1 - up) * self.height])

    def _draw_path(
        self,
        commands: Iterable[str],
        colour: str,
        *,
        is_dashed: bool = False,
    ) -> None:
        kind, style = "line", f"stroke:var(--{colour})"
        if is_dashed:
            kind = "line dashed"
        drawn = element("path", class_=kind, d="".join(commands), style=style)
        self._marks.append(drawn)

    def _draw(self, left: float, top: float) -> Markup:
        """Axes, marks and their labels, with the area's corner at a place."""
        wide, high = self._inner, self.height
        parts: list[Markup] = []
        for tick in self._y.labelled():
            y = float(self._place(self._x.low, tick)[1])
            text = self._y.text(tick)
            ends = {"x1": 0, "x2": wide, "y1": y, "y2": y}
            parts.append(element("line", class_="grid", **ends))
            parts.append(element("text", text, x=-6, y=y + 4, text_anchor="end"))
        for tick in self._x.labelled():
            x = float(self._place(tick, self._y.low)[0])
            at = {"x": x, "y": high + 18, "text_anchor": "middle"}
            parts.append(element("text", self._x.text(tick), **at))
        if self._x.label:
            at = {"x": wide / 2, "y": high + self._below - 4, "text_anchor": "middle"}
            parts.append(element("text", self._x.label, **at))
        if self._y.label:
            turn = f"translate({12 - self._left:g} {high / 2:g}) rotate(-90)"
            at = {"transform": turn, "text_anchor": "middle"}
            parts.append(element("text", self._y.label, **at))
        place = f"translate({left:g} {top:g})"
        return element("g", parts, self._marks, self._labels, transform=place)


def svg_picture(
    title: str,
    *parts: Child,
    width: float,
    height: float,
    description: str = "",
    style: str = PLOT_STYLE,
) -> str:
    """Build an SVG file with a ground, which needs no script and no fonts.

    Args:
        title: read out by screen readers, and shown as the document's name.
        *parts: the drawing, as of `element`.
        width: of the picture, in px.
        height: of the picture, in px.
        description: a longer text for screen readers.
        style: CSS of the drawing; the colours of `COLOURS` are its variables.
    """
    drawn = element(
        "svg",
        element("title", title),
        element("desc", description or title),
        element("style", Markup(svg_theme() + style)),
        element("rect", style="fill:var(--card)", width=width, height=height, rx=10),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
        role="img",
    )
    return f"{drawn}\n"


def _commands(xs: np.ndarray, ys: np.ndarray) -> Iterator[str]:
    pen = "M"
    for x, y in zip(xs.tolist(), ys.tolist(), strict=True):
        if math.isfinite(y):
            yield f"{pen}{format_number(x)} {format_number(y)}"
            pen = "L"
        else:
            pen = "M"
