"""What in an answer is so far from everything else that it may be a slip."""

import numpy as np

from frugax.causal.data import Samples

from ._campaign import Campaign
from ._ledger import Entry

_ENOUGH = 3  # values from which what is usual can be seen
_FAR = 3.0  # widths of what is usual, beyond its ends


def doubts(campaign: Campaign, entry: Entry, rows: Samples) -> tuple[str, ...]:
    """What to ask again about, each in words; `tell` takes it all the same.

    A value is doubted that is further from its range, from what other rows have and
    from the forecast than three times the width of the first two.

    Args:
        campaign: as it stands.
        entry: the experiment.
        rows: its answer, from `read_answer`.
    """
    settings, others = campaign.settings, campaign.rows_beside(entry)
    found: list[str] = []
    for name in rows.variables:
        if name in entry.values:
            continue
        ends = list(settings.variables.get(name, ()))
        seen = np.empty(0)
        if others is not None and name in others.variables:
            seen = others[name].astype(np.float64)
            seen = seen[np.isfinite(seen)]
        if len(seen) >= _ENOUGH:
            ends += [float(seen.min()), float(seen.max())]
        if not ends:
            continue
        far = _FAR * (max(ends) - min(ends))
        if name == settings.target and entry.forecast is not None:
            ends += [entry.forecast.low, entry.forecast.high]
        low, high = min(ends), max(ends)
        told = rows[name].astype(np.float64)
        odd = told[(told < low - far) | (told > high + far)]
        if far and len(odd):
            found.append(
                f"{name} = {odd[0]:g} is far from what was seen or expected, {low:.4g} "
                f"to {high:.4g}"
            )
    return tuple(found)
