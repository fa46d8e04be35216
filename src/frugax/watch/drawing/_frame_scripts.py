"""Scripts that draw frames and move through them, in the live page and in reports."""

import importlib.resources
import re

_STATIC = importlib.resources.files("frugax.watch.drawing") / "static"
# ES modules without imports, by their names.
FRAME_MODULES = {
    name: (_STATIC / name).read_text("utf-8") for name in ("cells.js", "player.js")
}
# For a page with a single script.
FRAME_SCRIPT = re.sub(
    r"^export ", "", "\n".join(FRAME_MODULES.values()), flags=re.MULTILINE
)
