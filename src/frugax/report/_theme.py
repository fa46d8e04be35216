"""The theme of all HTML pages and SVG pictures, as CSS: colours, type and spacing.

Each colour has a value for light and one for dark screens. Text colours have a contrast
of 4.5 with both grounds (WCAG 2.2, AA; tests/report/test_theme.py).
"""

from typing import Final

COLOURS: Final = {
    # Grounds: of the page, of cards on it; lines between them.
    "paper": ("#fbfbfa", "#14171b"),
    "card": ("#ffffff", "#1b1f24"),
    "line": ("#dfe3e8", "#2e343c"),
    "pad": ("#e6e9ed", "#2a3038"),
    "tint": ("#2563c914", "#6ea8fe1c"),
    # Text, by weight.
    "ink": ("#1b1f24", "#e7e9ec"),
    "soft": ("#5b6470", "#9aa4b0"),
    "faint": ("#6b7480", "#828c98"),
    # Series of charts, told apart also by those who do not see red or green.
    "s0": ("#2563c9", "#6ea8fe"),
    "s1": ("#b8500a", "#f59e5b"),
    "s2": ("#15803d", "#4ade80"),
    "s3": ("#9333ea", "#c084fc"),
    "s4": ("#be185d", "#f472b6"),
    "s5": ("#0e7490", "#22d3ee"),
    # Verdicts; a word always stands beside the colour.
    "good": ("#15803d", "#4ade80"),
    "bad": ("#b91c1c", "#f87171"),
    "unsure": ("#a16207", "#facc15"),
}
# Measures that do not depend on the screen.
_MEASURES: Final = {
    "font": 'system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif',
    "radius": "10px",
    "gap": "18px",
}


def _declare(dark: int) -> str:
    return " ".join(f"--{name}:{pair[dark]};" for name, pair in COLOURS.items())


def page_theme() -> str:
    """CSS variables for an HTML page.

    The page follows the reader's system unless `<html data-theme="light">` or "dark" is
    set, as by a button.
    """
    measures = " ".join(f"--{name}:{value};" for name, value in _MEASURES.items())
    dark = f"color-scheme:dark; {_declare(1)} --shade:none;"
    shade = "--shade:0 1px 2px rgb(20 30 45 / 5%), 0 4px 16px rgb(20 30 45 / 4%);"
    return (
        f":root {{ color-scheme:light; {measures} {_declare(0)} {shade} }}\n"
        "@media (prefers-color-scheme: dark) { "
        f":root:not([data-theme=light]) {{ {dark} }} }}\n"
        f":root[data-theme=dark] {{ {dark} }}\n"
    )


def svg_theme() -> str:
    """CSS variables and text for a picture of its own, which follows the system."""
    return (
        f"svg {{ {_declare(0)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ svg {{ {_declare(1)} }} }}\n"
        f"text {{ font:13px {_MEASURES['font']}; fill:var(--soft); }}\n"
    )
