"""Which variables the worlds are about."""

import numpy as np

from frugax.causal.data import Samples
from frugax.causal.posterior import MAX_VARIABLES

from ._settings import Settings

_MEASURED = 0.5  # share of rows in which a variable must be known to count


def chosen(settings: Settings, table: Samples) -> tuple[str, ...]:
    """The variables that the worlds are about: at most twelve, in alphabetical order.

    Not in the table's: then the order of its columns would decide how numbers are
    rounded and which draws fall on which variable.

    Raises:
        ValueError: an edge or a constraint names a variable that no row has.
    """
    settings.check_named(table.variables)
    must = settings.weighed
    rest = [n for n in table.variables if n not in must]
    # What is hardly ever measured says little and costs whole rows.
    seen = np.isfinite(table.values).sum(0) / max(len(table), 1)
    rest = [
        n for n in rest if n in settings.variables or seen[table.index(n)] >= _MEASURED
    ]
    strength = {n: _strength(table, n, settings.target) for n in rest}
    rest.sort(key=lambda n: (-strength[n], n))
    kept = {*must, *rest[: MAX_VARIABLES - len(must)]}
    sets = settings.allowed_sets()
    if not any({*s} <= kept for s in sets):
        # Something must be left to set: the set that goes closest with the target.
        least = [s for s in sets if len({*s} | must) <= MAX_VARIABLES]
        must |= {*max(least, key=lambda s: sum(strength.get(n, 0.0) for n in s))}
        rest = [n for n in rest if n not in must]
        kept = {*must, *rest[: MAX_VARIABLES - len(must)]}
    return tuple(sorted(kept))


def _strength(table: Samples, name: str, target: str) -> float:
    """How closely a variable goes with the target, straight or bent."""
    x, y = table[name].astype(np.float64), table[target].astype(np.float64)
    both = np.isfinite(x) & np.isfinite(y)
    x, y = x[both], y[both]
    if len(x) < 3 or not x.std() or not y.std():
        return 0.0
    x = (x - x.mean()) / x.std()
    fit = np.stack([x, x**2 - 1], axis=1)
    fit = fit[:, fit.std(0) > 0]
    y = (y - y.mean()) / y.std()
    explained = fit @ np.linalg.lstsq(fit, y, rcond=None)[0]
    return float(explained.var())
