"""How many rows are enough to tell graphs and functions, and how much they count."""

import numpy as np
from jaxtyping import Bool, Float, Int

from frugax.causal.posterior import tempering_power

# Worlds count all rows together as a thousand at most, so what more rows of one
# experiment would say is less than what is left open anyway. Its mean counts them all.
_OF_EACH, _OBSERVED = 250, 2000
# As how many rows those of one experiment, and those without one, count for graphs.
_COUNTS, _OBSERVED_COUNT = 25, 1000


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


def counted(
    used: Bool[np.ndarray, " n"], free: Bool[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """How much of each row a variable's function counts.

    Args:
        used: the rows that are used at all.
        free: where the variable was not set.
    """
    return used * tempering_power(int((used & free).sum()))


def weights(of_entry: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """As how much of a row each counts when graphs are compared.

    No graph's mechanisms are quite right. In one experiment they are as wrong in each
    row, so with ten thousand of them a wrong graph would be certain.

    Args:
        of_entry: which experiment each is of; -1 for observations.

    References:
        Miller & Dunson 2019, J. American Statistical Association 114:1113-1125: a
        likelihood to a power, where the model is only nearly right.
    """
    found = np.ones(len(of_entry))
    for entry in set(of_entry.tolist()):
        rows = of_entry == entry
        most = _COUNTS if entry >= 0 else _OBSERVED_COUNT
        found[rows] = min(1.0, most / rows.sum())
    return found
