"""Build HTML pages and SVG charts that need no network, no fonts and no library.

Start at `page` for a whole HTML file and at `line_chart` for curves in it; `COLOURS` is
the one palette, light and dark, `PAGE_STYLE` styles a page with it, and `CHART_SCRIPT`
lets readers read off values. `svg_picture` builds a picture of its own, and `svg_file`
makes one of a chart.
`element` builds any other markup and escapes its text.
"""

from ._bar_chart import bar_chart
from ._downsample import downsample
from ._line_chart import FULL_WIDTH, HALF_WIDTH, ChartSize, line_chart
from ._markup import Markup, element, escape, format_number, fragment
from ._page import CHART_SCRIPT, PAGE_STYLE, page
from ._picture import svg_line, svg_picture, svg_text
from ._receipt_table import number_cells, receipt_table
from ._svg_file import svg_file
from ._theme import COLOURS, page_theme, svg_theme
from ._ticks import ticks

__all__ = [
    "CHART_SCRIPT",
    "COLOURS",
    "FULL_WIDTH",
    "HALF_WIDTH",
    "PAGE_STYLE",
    "ChartSize",
    "Markup",
    "bar_chart",
    "downsample",
    "element",
    "escape",
    "format_number",
    "fragment",
    "line_chart",
    "number_cells",
    "page",
    "page_theme",
    "receipt_table",
    "svg_file",
    "svg_line",
    "svg_picture",
    "svg_text",
    "svg_theme",
    "ticks",
]
