"""One palette for every page and picture, readable on light and dark screens."""

import itertools
import re
from pathlib import Path

import pytest

from frugax.report import COLOURS, PAGE_STYLE, page_theme, svg_theme

SOURCE = Path(__file__).parents[2] / "src" / "frugax"
GROUNDS = {"paper", "card"}
NOT_TEXT = {"line", "pad", "tint"}


def luminance(colour):
    """Relative luminance (WCAG 2.2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [
        p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts
    ]
    return sum(w * v for w, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(first, second):
    low, high = sorted([luminance(first), luminance(second)])
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_computed_by_the_standard():
    assert contrast("#000000", "#ffffff") == 21
    assert contrast("#777777", "#ffffff") == pytest.approx(4.478, abs=1e-3)


@pytest.mark.parametrize("name", sorted(set(COLOURS) - GROUNDS - NOT_TEXT))
def test_text_can_be_read_on_both_grounds(name):
    for ground, dark in itertools.product(GROUNDS, (0, 1)):
        assert contrast(COLOURS[name][dark], COLOURS[ground][dark]) >= 4.5


@pytest.mark.parametrize(
    "path",
    [
        "report/static/page.css",
        "report/static/plot.css",
        "watch/serve/static/app.css",
    ],
)
def test_pages_use_the_palette_and_define_no_colour_of_their_own(path):
    css = (SOURCE / path).read_text()
    used = set(re.findall(r"var\(--([a-z0-9]+)", css))
    own = set(re.findall(r"[{;\s]--([a-z0-9]+)\s*:", css))
    defined = set(re.findall(r"--([a-z0-9]+):", page_theme()))
    assert used <= defined | own, used - defined - own
    assert not own & defined
    assert not re.findall(r"#[0-9a-f]{3,8}\b(?![^{]*\{)", css)


def test_each_theme_defines_every_colour_for_light_and_dark():
    for name, (light, dark) in COLOURS.items():
        for css in (page_theme(), svg_theme(), PAGE_STYLE):
            assert f"--{name}:{light};" in css
            assert f"--{name}:{dark};" in css
