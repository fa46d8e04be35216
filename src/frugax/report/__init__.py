"""Build HTML pages and SVG plots that need no network, no fonts and no library.

Start at `page` for a whole HTML file and at `Plot` for drawings over two axes, in
a page or as a file; `line_chart` and `bar_chart` make the usual ones. `COLOURS` is the
one palette, light and dark, `PAGE_STYLE` styles a page with it, and `CHART_SCRIPT` lets
readers read off values. `svg_picture` makes a file of any other drawing, and `element`
builds any other markup and escapes its text.
"""

from ._bar_chart import Bar, bar_chart
from ._downsample import downsample
from ._line_chart import line_chart
from ._markup import Markup, element, format_number, fragment
from ._page import CHART_SCRIPT, PAGE_STYLE, page
from ._plot import Axis, Plot, svg_picture
from ._receipt_table import number_cells, receipt_table
from ._theme import COLOURS, page_theme, svg_theme
from ._ticks import ticks

__all__ = [
    "CHART_SCRIPT",
    "COLOURS",
    "PAGE_STYLE",
    "Axis",
    "Bar",
    "Markup",
    "Plot",
    "bar_chart",
    "downsample",
    "element",
    "format_number",
    "fragment",
    "line_chart",
    "number_cells",
    "page",
    "page_theme",
    "receipt_table",
    "svg_picture",
    "svg_theme",
    "ticks",
]
