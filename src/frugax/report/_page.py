"""A whole HTML file; a strict policy allows its one script by hash, and no network."""

import base64
import hashlib

from ._escaped import escaped

# An empty icon: without it a browser asks the server for /favicon.ico and complains.
_ICON = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg'/%3E"


def page(title: str, body: str, *, style: str, script: str) -> str:
    """An HTML document.

    Args:
        title: of the window; any text.
        body: what is shown, as HTML.
        style: CSS.
        script: JavaScript, run when the page is there. Without it the page should say
            the same.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="{_ICON}"><title>{escaped(title)}</title>'
        f"<style>{style}</style></head><body><main>{body}</main>"
        f"<script>{script}</script></body></html>\n"
    )
