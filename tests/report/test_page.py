"""A page on the screen of a phone."""

import pytest

from chromium import BROWSER, chromium
from frugax.budget import Spend
from frugax.report import PAGE_STYLE, element, fragment, page, receipt_table


@pytest.mark.browser
@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_long_words_and_wide_tables_do_not_widen_a_phone(tmp_path):
    spend = Spend(name="file", unit="bytes", limit=10**9, measured=1, source="a" * 99)
    wide = element("tr", [element("td", "1,000,000 MiB", class_="n")] * 20)
    body = fragment(
        element("section", element("p", "9" * 64), receipt_table([spend])),
        element("section", element("div", element("table", wide), class_="scroll")),
    )
    path = tmp_path / "page.html"
    path.write_text(page("a run", body, style=PAGE_STYLE, script=""))
    with chromium() as browser:
        for width in (400, 1280):
            browser.size(width, 800)
            browser.open(path.as_uri())
            browser.wait_for("document.title === 'a run'")
            assert browser.run("document.documentElement.scrollWidth") == width
            browser.open("about:blank")
            browser.wait_for("document.title === ''")
