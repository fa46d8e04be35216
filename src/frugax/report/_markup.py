"""Build HTML and SVG elements whose text and attributes are escaped by default."""

import html
import re
from collections.abc import Iterable
from typing import TypeAlias

# XML cannot represent these characters, not even escaped.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
# Elements that HTML and SVG parsers both accept in the short form <tag/>. A browser
# reads any other short form in HTML as an opening tag that is never closed.
_SHORT = {"br", "circle", "image", "input", "line", "link", "meta", "path", "rect"}


class Markup(str):
    """Text that is already HTML or SVG, and is not escaped again."""

    __slots__ = ()


Child: TypeAlias = str | Iterable[str]
Attribute: TypeAlias = str | float | bool | None


def fragment(*children: Child) -> Markup:
    """Join text, which is escaped, and markup, which is not."""
    return Markup("".join(_flatten(children)))


def element(tag: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """Build one element.

    Args:
        tag: the name of the element.
        *children: text, which is escaped, `Markup`, or iterables of these.
        **attributes: `data_x` means `data-x`, and `class_` means `class`. None and
            False leave an attribute out; True writes its name alone; numbers are
            written by `format_number`.

    Example:
        >>> element("text", "a < b", x=1.0, y=2.25, text_anchor="end")
        '<text x="1" y="2.25" text-anchor="end">a &lt; b</text>'
        >>> element("g", [element("path", d="M0 0"), "&"], class_="line")
        '<g class="line"><path d="M0 0"/>&amp;</g>'
    """
    parts = [f"<{tag}"]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        # Built-ins such as `class` and `for` take a trailing underscore in Python.
        parts.append(f" {name.rstrip('_').replace('_', '-')}")
        if value is not True:
            text = value if isinstance(value, str) else format_number(value)
            # Only double quotes need escaping here, so JSON and policies stay readable.
            quoted = html.escape(_clean(text), quote=False).replace('"', "&quot;")
            parts.append(f'="{quoted}"')
    content = "".join(_flatten(children))
    # An empty <g> or <div> must not get the short form; see `_SHORT`.
    if not content and tag in _SHORT:
        return Markup("".join(parts) + "/>")
    return Markup(f"{''.join(parts)}>{content}</{tag}>")


def format_number(value: float) -> str:
    """Write a coordinate with at most two decimals: a 1/100 of a pixel is not seen.

    Example:
        >>> format_number(2.0), format_number(1 / 3), format_number(-0.001)
        ('2', '0.33', '0')
    """
    # Adding 0.0 turns the -0.0 that rounding may leave into 0.0.
    return f"{round(value, 2) + 0.0:.10g}"


def _flatten(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if isinstance(child, Markup):
            yield child
        elif isinstance(child, str):
            yield html.escape(_clean(child))
        else:
            yield from _flatten(child)


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
