"""Build a self-contained HTML page with a strict content security policy."""

import base64
import hashlib

from ._markup import Markup, element

# An empty icon: without it a browser asks the server for /favicon.ico and complains.
_ICON = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg'/%3E"

# Colours, cards, tables and charts, in light and dark.
PAGE_STYLE = """
:root { color-scheme: light dark; --ink:#1b1f24; --soft:#5b6470; --line:#dfe3e8;
 --paper:#fbfbfa; --card:#fff; --s0:#2563c9; --s1:#c2570c; --s2:#15803d; --s3:#9333ea;
 --good:#15803d; --bad:#b91c1c; --unsure:#a16207; --pad:#e6e9ed; }
@media (prefers-color-scheme: dark) { :root { --ink:#e7e9ec; --soft:#9aa4b0;
 --line:#2e343c; --paper:#14171b; --card:#1b1f24; --s0:#6ea8fe; --s1:#f59e5b;
 --s2:#4ade80; --s3:#c084fc; --good:#4ade80; --bad:#f87171; --unsure:#facc15;
 --pad:#2a3038; } }
* { box-sizing: border-box; }
body { margin:0; background:var(--paper); color:var(--ink);
 font:16px/1.5 system-ui, sans-serif; }
main { margin:0 auto; padding:32px 18px 64px; }
h1 { font-size:1.7rem; margin:0 0 4px; overflow-wrap:anywhere; }
h2 { font-size:1.15rem; margin:0 0 12px; overflow-wrap:anywhere; }
.sub, .note { color:var(--soft); margin:0 0 8px; }
section { background:var(--card); border:1px solid var(--line); border-radius:10px;
 padding:18px 20px; margin-top:18px; }
.tiles { display:grid; gap:12px; margin-top:18px;
 grid-template-columns:repeat(auto-fit, minmax(130px, 1fr)); }
.tile { background:var(--card); border:1px solid var(--line); border-radius:10px;
 padding:12px 14px; } .tile b { display:block; font-size:1.35rem; }
.tile span { color:var(--soft); font-size:.85rem; }
.scroll { overflow-x:auto; }
table { border-collapse:collapse; width:100%; font-variant-numeric:tabular-nums; }
th, td { text-align:left; padding:7px 10px 7px 0; border-bottom:1px solid var(--line);
 vertical-align:top; } th { font-weight:600; color:var(--soft); font-size:.85rem; }
td.n, th.n { text-align:right; white-space:nowrap; }
.verdict { font-weight:600; white-space:nowrap; padding:1px 9px; border-radius:99px;
 border:1px solid currentColor; font-size:.88rem; }
.kept { color:var(--good); } .broken { color:var(--bad); }
.cannot { color:var(--unsure); }
summary { cursor:pointer; color:var(--soft); margin-top:10px; }
.chart { margin:0; min-width:0; } .chart svg { width:100%; height:auto; display:block; }
.chart text { fill:var(--soft); font-size:11px; font-variant-numeric:tabular-nums; }
.chart .grid { stroke:var(--line); }
.chart .cursor { stroke:var(--soft); stroke-dasharray:3 3; }
.line { fill:none; stroke-width:1.7; stroke-linejoin:round; } .dot { stroke:none; }
.line.s0 { stroke:var(--s0) } .line.s1 { stroke:var(--s1) }
.line.s2 { stroke:var(--s2) } .line.s3 { stroke:var(--s3) }
.dot.s0 { fill:var(--s0) } .dot.s1 { fill:var(--s1) } .dot.s2 { fill:var(--s2) }
.dot.s3 { fill:var(--s3) }
figcaption { color:var(--soft); font-size:.85rem; display:flex; gap:4px 14px;
 flex-wrap:wrap; } figcaption b { color:var(--ink); overflow-wrap:anywhere; }
.key i { display:inline-block; width:10px; height:10px; border-radius:3px;
 margin-right:5px; } i.s0 { background:var(--s0) } i.s1 { background:var(--s1) }
i.s2 { background:var(--s2) } i.s3 { background:var(--s3) }
.readout { margin-left:auto; font-variant-numeric:tabular-nums; }
@media (max-width: 480px) { main { padding:20px 10px 48px; } section { padding:14px; }
 .tiles { grid-template-columns:1fr 1fr; } .chart text { font-size:13px; } }
"""


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
