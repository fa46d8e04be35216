"""Make a size budget's receipt: each limit beside its predicted and measured use."""

from typing import NamedTuple

from frugax.budget import Receipt, Spend


class Limit(NamedTuple):
    """One quantity that a budget may limit, beside its limit.

    Attributes:
        name: of the quantity.
        unit: of its numbers; empty for a relative error.
        limit: the most allowed; None if the budget does not limit it.
        predicted: before the work; None without a prediction.
        measured: after it; None if nobody could.
        source: of the measurement.
        problems: sentences that say what went wrong; empty if nothing did.
    """

    name: str
    unit: str
    limit: float | None
    predicted: float | None
    measured: float | None
    source: str
    problems: str = ""


def make_receipt(*limits: Limit) -> Receipt:
    """Return the receipt of the quantities that are limited."""
    return Receipt(
        tuple(Spend(**row._asdict()) for row in limits if row.limit is not None)
    )
