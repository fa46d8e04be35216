"""Build a self-contained HTML page with a strict content security policy."""

import base64
import hashlib
import importlib.resources

from ._markup import Markup, element
from ._plot import PLOT_STYLE
from ._theme import page_theme

# An empty icon: without it a browser asks the server for /favicon.ico and complains.
_ICON = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg'/%3E"

_STATIC = importlib.resources.files("frugax.report") / "static"
PAGE_STYLE = page_theme() + (_STATIC / "page.css").read_text("utf-8") + PLOT_STYLE
CHART_SCRIPT = (_STATIC / "charts.js").read_text("utf-8")


def page(title: str, body: str, *, style: str, script: str) -> Markup:
    """Build an HTML document that loads nothing from anywhere else.

    Args:
        title: the title of the window; any text.
        body: the content, as HTML.
        style: CSS.
        script: JavaScript that runs when the page has loaded. The page should say the
            same without it.
    """
    # The policy allows this one script by its hash and forbids the network. A name in
    # a record that slipped through escaping could therefore neither run nor send.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("link", rel="icon", href=_ICON),
        element("title", title),
        element("style", Markup(style)),
    )
    content = element(
        "body", element("main", Markup(body)), element("script", Markup(script))
    )
    return Markup(f"<!doctype html>\n{element('html', head, content, lang='en')}\n")
