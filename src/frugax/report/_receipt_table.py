"""`receipt_table`: a receipt as an HTML table, with figures and verdict per budget."""

from collections.abc import Sequence

from frugax.budget import Spend, amount

from ._markup import Markup, element, fragment


def receipt_table(spends: Sequence[Spend]) -> Markup:
    """Return the table of a receipt: a row for each budget, with its verdict.

    Args:
        spends: the receipt's rows; without any, a sentence says so.
    """
    if not spends:
        return element("p", "No budget was stated.", class_="note")
    rows = [
        element(
            "tr",
            element("td", s.name),
            element(
                "td",
                element("span", s.verdict, class_=f"verdict {s.verdict.split()[0]}"),
            ),
            number_cells(
                s.limit_text,
                amount(s.predicted, s.unit),
                s.measured_text,
                labels=("limit", "predicted", "measured"),
            ),
        )
        for s in spends
    ]
    problems = [
        element("p", element("b", s.name), f": {s.problems}", class_="note")
        for s in spends
        if s.problems
    ]
    head = element(
        "tr",
        element("th", "budget"),
        element("th", "verdict"),
        [element("th", n, class_="n") for n in ("limit", "predicted", "measured")],
    )
    sources = [element("li", element("b", s.name), f": {s.source}") for s in spends]
    return fragment(
        element("table", head, rows, class_="stack"),
        problems,
        element(
            "details",
            element("summary", "How each figure was measured"),
            element("ul", sources),
        ),
    )


def number_cells(*texts: str, labels: Sequence[str] = ()) -> list[Markup]:
    """Build cells; with labels, which a narrow screen shows beside each number."""
    if not labels:
        return [element("td", text, class_="n") for text in texts]
    pairs = zip(texts, labels, strict=True)
    return [element("td", t, class_="n", data_label=label) for t, label in pairs]
