"""Each experiment of a campaign beside what was forecast for it."""

import dataclasses

import numpy as np

from . import _ledger
from ._campaign import Campaign
from ._ledger import Entry, Forecast


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One experiment.

    Attributes:
        entry: it.
        forecast: what was believed when it was chosen.
        cost: its price; 0 if it never took place.
        spent_before: what those before it cost.
        outcome: mean of the target in its rows; None if none came.
        inside: whether the outcome is within the forecast's 90 % interval, widened by
            the outcome's own error; None without an outcome.
    """

    entry: Entry
    forecast: Forecast
    cost: float
    spent_before: float
    outcome: float | None
    inside: bool | None


def history(campaign: Campaign) -> tuple[Step, ...]:
    """All experiments, in the order in which they were asked for.

    Args:
        campaign: as it stands.
    """
    budget, table = campaign.settings.budget, campaign.samples
    one_row = campaign.look().one_row
    steps: list[Step] = []
    for entry in campaign.asks:
        if entry.forecast is None:
            continue
        f, outcome, inside = entry.forecast, None, None
        rows = np.empty(0)
        if table is not None and campaign.settings.target in table.variables:
            rows = campaign.rows_of(entry)[campaign.settings.target].astype(float)
            rows = rows[np.isfinite(rows)]
        if len(rows):
            outcome = float(rows.mean())
            noise = 1.645 * one_row / np.sqrt(len(rows))
            half = f.high - f.expected if outcome > f.expected else f.expected - f.low
            inside = bool(abs(outcome - f.expected) <= np.hypot(half, noise))
        held = entry.status != "refunded"
        before = campaign.asks[: entry.id]
        steps.append(
            Step(
                entry=entry,
                forecast=f,
                cost=float(_ledger.price(budget, entry.values)) if held else 0.0,
                spent_before=float(
                    _ledger.paid(budget, before, "pending", "answered", "failed")
                ),
                outcome=outcome,
                inside=inside,
            )
        )
    return tuple(steps)
