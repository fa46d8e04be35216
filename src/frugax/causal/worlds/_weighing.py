"""Worlds weighed by what they say of experiments whose rows are not whole.

Graphs are compared on rows in which every variable was measured. An experiment that
left one out says nothing there, but worlds that foretell its outcome are likelier than
those that do not: more worlds are drawn than are wanted, and the best of them are kept.

References:
    Neal 2001, Statistics and Computing 11:125-139 (annealed importance sampling);
    Jasra, Stephens, Doucet & Tsagaris 2011, Scand. J. Statistics 38:1-22 (how far to go
    is told by the effective sample size).
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from ._basis import Basis
from ._belief import Belief
from ._effects import Deviation, Outcomes, answers, kernel
from ._orders import edges

# How far a world that is right may be off, as a share of the variable's spread: its
# functions are not quite right, and it answers with some draws of the noise only.
_OFF = 0.05
# How far a wrong one may be off, and over which length that changes, in half-widths.
_SIZES, _LENGTHS = (0.15, 0.4, 1.0), (0.25, 0.6)
_LEFT = 0.25  # of the worlds that are wanted, so many must differ in effect
_STEPS = 30


def weighed(
    belief: Belief,
    measured: Sequence[tuple[int, Outcomes, float]],
    basis: Basis,
    *,
    count: int,
    rng: np.random.Generator,
    shares: Sequence[float] = (1.0,),
) -> tuple[Belief, float]:
    """Keep the worlds that foretell experiments best.

    Args:
        belief: more worlds than are wanted.
        measured: variables, what experiments gave for them, and their spreads.
        basis: ranges of the variables.
        count: how many worlds are wanted.
        rng: where the choice comes from.
        shares: of the outcomes' errors that may be true.

    Returns:
        The worlds that are kept, some more than once, and the share of the errors that
        makes the outcomes likeliest.
    """
    told = [
        (answers(belief, outcomes.points, [v], rng)[:, :, 0], outcomes, scale)
        for v, outcomes, scale in measured
    ]
    logs = np.zeros((len(shares), len(belief.worlds)))
    for i, share in enumerate(shares):
        for worlds, outcomes, scale in told:
            less = dataclasses.replace(outcomes, error=share * outcomes.error)
            logs[i] += misfits(worlds, less, basis, scale)[0]
    best = int(np.argmax(np.logaddexp.reduce(logs, axis=1)))
    which = _kept(logs[best], count, rng)
    graphs = belief.graphs[which]
    kept = dataclasses.replace(
        belief,
        worlds=tuple(belief.worlds[i] for i in which.tolist()),
        graphs=graphs,
        edges=edges(graphs).mean(0),
    )
    return kept, shares[best]


def misfits(
    worlds: Float[np.ndarray, "worlds experiments"],
    outcomes: Outcomes,
    basis: Basis,
    scale: float,
) -> tuple[Float[np.ndarray, " worlds"], tuple[Deviation, ...]]:
    """How far each world is from the experiments.

    Args:
        worlds: what each says of them.
        outcomes: what they gave.
        basis: ranges of the variables.
        scale: standard deviation of what was measured, in its unit.

    Returns:
        Log likelihood of each world, whatever its deviation; and the deviation that
        explains best what it misses.
    """
    gap = outcomes.mean - worlds
    # Experiments go further than what was observed, and so may worlds go wrong.
    far = max(scale, float(np.sqrt(np.mean(gap**2)))) if gap.size else scale
    each = [Deviation(0.0, _LENGTHS[0])]
    each += [Deviation(size * far, length) for size in _SIZES for length in _LENGTHS]
    error = np.diag(outcomes.error**2 + (1e-3 * scale) ** 2)
    logs: list[np.ndarray] = []
    for one in each:
        # What is off is off at all experiments nearby: they count as one.
        off = max(one.size, _OFF * scale) ** 2
        among = kernel(outcomes.points, outcomes.points, basis, one.length)
        # One wild outcome makes what is off so large that rounding exceeds the errors.
        among = among + 1e-12 * np.eye(len(among))
        root = np.linalg.cholesky(off * among + error)
        half = np.linalg.solve(root, gap.T)
        # Worlds that are right are as likely as all that are not.
        odds = 0.5 / (len(each) - 1) if one.size else 0.5
        fit = -0.5 * np.sum(half**2, axis=0) - np.log(np.diag(root)).sum()
        logs.append(np.log(odds) + fit)
    best = np.argmax(logs, axis=0)
    return np.logaddexp.reduce(logs, axis=0), tuple(each[i] for i in best.tolist())


def _kept(
    logs: Float[np.ndarray, " worlds"], count: int, rng: np.random.Generator
) -> Int[np.ndarray, " {count}"]:
    """Which worlds to go on with: a likely one more than once, an unlikely one never.

    Likelihoods are raised to the highest power, at most 1, that leaves enough worlds.
    """

    def weights(power: float) -> Float[np.ndarray, " worlds"]:
        found = np.exp(power * (logs - logs.max()))
        return found / found.sum()

    def enough(power: float) -> bool:
        return bool(1 / np.sum(weights(power) ** 2) >= _LEFT * count)

    low, high = 0.0, 1.0
    for _ in range(0 if enough(1.0) else _STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if enough(middle) else (low, middle)
    edge = np.cumsum(weights(high))
    at = (np.arange(count) + rng.random()) / count
    return np.minimum(np.searchsorted(edge, at), len(logs) - 1)
