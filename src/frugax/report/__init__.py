"""Pages and curves that need nothing else: no network, no fonts, no library.

Start at `page` for a whole HTML file and at `line_chart` for curves in it, which
`CURVES_SCRIPT` lets read; `PAGE_STYLE` has the colours, light and dark. `escaped`,
`ticks` and `thinned` are what other drawings share with these.
"""

from ._curves_script import CURVES_SCRIPT
from ._escaped import escaped
from ._line_chart import HALF, WHOLE, Size, line_chart
from ._page import page
from ._page_style import PAGE_STYLE
from ._thinned import thinned
from ._ticks import ticks

__all__ = [
    "CURVES_SCRIPT",
    "HALF",
    "PAGE_STYLE",
    "WHOLE",
    "Size",
    "escaped",
    "line_chart",
    "page",
    "thinned",
    "ticks",
]
