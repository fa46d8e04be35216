"""Markup cannot be broken by the text in it."""

from xml.etree import ElementTree as ET

import pytest

from frugax.report import Markup, element, format_number, fragment, page

HOSTILE = "</script><b onclick='x'>\"&\x00\ud800"


def test_text_and_attributes_come_back_as_they_were_given():
    text = HOSTILE.replace("\x00", "").replace("\ud800", "")
    built = ET.fromstring(element("g", text, data_x=text))
    assert (built.text, built.attrib) == (text, {"data-x": text})


def test_characters_that_xml_cannot_represent_are_replaced():
    built = ET.fromstring(element("text", HOSTILE, title=HOSTILE))
    assert "\ufffd\ufffd" in (built.text or "")


def test_markup_is_not_escaped_again():
    inner = element("path", d="M0 0")
    assert element("g", inner) == f"<g>{inner}</g>"
    assert fragment("<", [inner, "<"]) == f"&lt;{inner}&lt;"
    assert isinstance(fragment(inner), Markup)


def test_only_elements_that_html_may_close_early_are_short():
    assert element("rect") == "<rect/>"
    assert element("i") == "<i></i>"


def test_attributes_may_be_left_out_or_have_no_value():
    given = {"class_": None, "hidden": False, "selected": True, "for_": "a"}
    assert element("p", **given) == '<p selected for="a"></p>'


@pytest.mark.parametrize(
    ("value", "text"),
    [(3, "3"), (0.125, "0.12"), (-0.004, "0"), (123456.5, "123456.5"), (1e7, "1e+07")],
)
def test_numbers_have_at_most_two_decimals(value, text):
    assert float(format_number(value)) == float(text)


def test_a_page_escapes_its_title_and_keeps_its_parts():
    built = page("a < b", "<h1>x</h1>", style="a>b{}", script="if (1 < 2) {}")
    assert "<title>a &lt; b</title>" in built
    assert "<main><h1>x</h1></main><script>if (1 < 2) {}</script>" in built
    assert "<style>a>b{}</style>" in built
