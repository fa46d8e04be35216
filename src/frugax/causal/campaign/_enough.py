"""Rows that are enough to tell graphs and functions: not all of long experiments."""

import numpy as np
from jaxtyping import Bool, Float, Int

# Worlds count all rows together as a thousand at most, so what more rows of one
# experiment would say is less than what is left open anyway. Its mean counts them all.
_OF_EACH, _OBSERVED = 250, 2000


def enough(
    values: Float[np.ndarray, "n d"], of_entry: Int[np.ndarray, " n"], seed: int
) -> Bool[np.ndarray, " n"]:
    """Which rows to use; whole ones first, else any.

    Args:
        values: the rows; NaN is missing.
        of_entry: which experiment each is of; -1 for observations.
        seed: of the choice, which stays the same while an experiment has its rows.
    """
    used = np.ones(len(values), bool)
    broken = np.asarray(np.isnan(values).any(1))
    for entry in set(of_entry.tolist()):
        rows = np.flatnonzero(of_entry == entry)
        most = _OF_EACH if entry >= 0 else _OBSERVED
        if len(rows) > most:
            mixed = np.random.default_rng([seed, entry + 1]).permutation(rows)
            used[mixed[np.argsort(broken[mixed], kind="stable")][most:]] = False
    return used
