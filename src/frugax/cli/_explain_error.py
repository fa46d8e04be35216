"""`frugax explain-error`: what an error means and what to do, from the errors' page."""

import re
from collections.abc import Mapping
from pathlib import Path

import frugax
from frugax.errors import ConfigError

from ._consoles import console, say

_PACKAGE = Path(frugax.__file__).parent


def explain_error(code: str = "", /) -> int:
    """Say what an error means and what to do about it.

    For example:

    frugax explain-error infeasible-budget

    Args:
        code: the code at the end of an error's message; without one, all are listed.
    """
    from rich.markdown import Markdown

    sections = _read_sections()
    if not code:
        say("\n".join(sections))
        return 0
    _check(code, sections)
    console.print(Markdown(sections[code]))
    return 0


def _check(code: str, sections: Mapping[str, str]) -> None:
    if code not in sections:
        raise ConfigError(
            f"no error has the code {code!r:.80}: choose from {', '.join(sections)}."
        )


def _read_sections() -> dict[str, str]:
    page = _PACKAGE / "errors.md"  # where wheels have it
    if not page.exists():
        page = _PACKAGE.parents[1] / "docs" / "errors.md"
    parts = re.split(r"^## (\S+)\n", page.read_text("utf8"), flags=re.MULTILINE)
    return {
        code: text.strip() for code, text in zip(parts[1::2], parts[2::2], strict=True)
    }
