"""What watching has cost, beside its budget, and what became of the records."""

from frugax.budget import Receipt, Spend

from ._account import Account
from ._handing_on import HandingOn
from .delivery import callback_stats


def receipt(
    account: Account,
    handing: HandingOn,
    *,
    predicted: float | None,
    forced: int,
    monitor: bool,
) -> Receipt:
    """The receipt of a watcher, up to its last call.

    Args:
        account: what it has earned and spent.
        handing: what became of the records; the ledger is up to date.
        predicted: the share that a plan has predicted; None: there was none.
        forced: how many drains were made only because too many records waited.
        monitor: whether it says what callbacks and sinks have cost.
    """
    said = [
        "self-measured: time inside the watcher's calls",
        *(["and CPU time of its sinks"] if handing.has_sinks else []),
        "over time outside, from the first record on. It cannot see how watching slows "
        "what runs outside; an A/B run would prove that, this is none.",
        *([f"{forced} drains were forced."] if forced else []),
        f"Records: {handing.books.losses}.",
    ]
    wrong: list[str] = []
    if handing.books.last_error:
        said.append(f"Refused last: {handing.books.last_error}")
    if handing.books.failure is not None:
        wrong.append(f"The journal could not be written: {handing.books.failure}")
    # Whatever `monitor` is: what went wrong is said where the receipt is printed.
    wrong += [f"{report}." for report in handing.reports() if report.went_wrong]
    said += wrong
    if monitor:
        well = [one for one in handing.reports() if not one.went_wrong]
        said += [f"{report}." for report in well]
        said += [note] if (note := callback_stats.describe_entries()) else []
    spend = Spend(
        name="time spent watching",
        unit="share",
        limit=account.share,
        predicted=predicted,
        measured=account.spent_share(),
        source=" ".join(said),
        problems=" ".join(wrong),
    )
    return Receipt((spend,))
