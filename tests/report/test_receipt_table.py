"""A receipt on a page has each row with its verdict, its units and its problems."""

from frugax.budget import Spend
from frugax.report import receipt_table


def test_a_receipt_has_a_row_for_each_budget():
    kept = Spend(name="file", unit="bytes", limit=2048, measured=1024, source="a scale")
    unknown = Spend(
        name="share <x>",
        unit="share",
        limit=0.01,
        measured=None,
        source="a clock",
        problems="no pair is complete.",
    )
    table = str(receipt_table([kept, unknown]))
    assert '<span class="verdict kept">kept</span>' in table
    assert '<span class="verdict cannot">cannot tell</span>' in table
    assert '<td class="n" data-label="limit">2 KiB</td>' in table
    assert "share &lt;x&gt;" in table
    assert "no pair is complete." in table
    assert "a clock" in table


def test_without_budgets_a_sentence_says_so():
    assert "No budget was stated." in str(receipt_table([]))
