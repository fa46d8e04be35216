"""Variables that may be set but that the observed rows leave out: what were they?

Rows that are not whole say little. A variable that is measured only where it is set was
presumably the same all the time while nobody turned it.
"""

import numpy as np
from jaxtyping import Bool, Float

from ._settings import Settings


def usual_values(
    values: Float[np.ndarray, "n d"],
    intervened: Bool[np.ndarray, "n d"],
    names: tuple[str, ...],
    settings: Settings,
) -> dict[str, float]:
    """What a variable counts as where it was neither set nor measured.

    Args:
        values: the data; NaN is missing.
        intervened: where a value was set by an intervention.
        names: the variables, in the order of columns.
        settings: which may be set, and their ranges.

    Returns:
        By name, for those that some observed rows leave out and that never varied
        where they were not set: the value they had there, else the middle of the range.
    """
    nobody = ~intervened.any(1)
    found: dict[str, float] = {}
    for j, name in enumerate(names):
        if name not in settings.variables or np.isfinite(values[nobody, j]).all():
            continue
        unset = values[~intervened[:, j], j]
        unset = unset[np.isfinite(unset)]
        if not len(unset):
            low, high = settings.variables[name]
            found[name] = low + (high - low) / 2
        elif not np.ptp(unset):
            found[name] = float(unset[0])
    return found


def note(usual: dict[str, float], settings: Settings) -> str:
    """What is assumed of variables that no observed row has; empty for nothing.

    Args:
        usual: what each counts as.
        settings: their ranges.
    """
    said = ", ".join(f"{name} = {value:g}" for name, value in usual.items())
    if not said:
        return ""
    return (
        f" Observed rows leave out what may be set: they count as {said}. If that is "
        "not its usual value, tell observations with a column for it."
    )
