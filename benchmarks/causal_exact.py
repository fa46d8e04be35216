"""The exact posterior over graphs of a linear-Gaussian model, to judge approximations.

The sum over every acyclic graph takes sinks off a set of variables, with alternating
signs so that no graph counts twice. It costs 3^d instead of the number of graphs. Its
derivative with respect to one variable's scores gives the weights of the parent sets.

References:
    Tian & He 2009, UAI, 'Computing posterior probabilities of structural features in
    Bayesian networks using dynamic programming'.
"""

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np
from jaxtyping import Float

from frugax.causal import ParentSetPosterior, Samples
from frugax.causal.posterior import (
    MAX_VARIABLES,
    Domain,
    ParentScores,
    score_parent_sets,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExactLinearPosterior:
    """The posterior over causes if all effects are linear and the noise is Gaussian.

    Every acyclic graph counts; weights and noise are integrated out. Twelve variables
    take three seconds, ten a tenth of a second.

    Attributes:
        max_parents: largest number of causes of one variable.
    """

    max_parents: int = 3

    def posterior(
        self,
        samples: Samples,
        target: str,
        *,
        required: Sequence[str] = (),
        forbidden: Sequence[str] = (),
    ) -> ParentSetPosterior:
        """Compute the probability of each set of causes of a variable."""
        v = samples.index(target)
        scores = self._score(
            samples,
            [(samples.index(name), v) for name in required],
            [(samples.index(name), v) for name in forbidden],
        )
        probs = parent_set_probabilities(scores, v)
        sets = [
            frozenset(n for u, n in enumerate(samples.variables) if int(mask) >> u & 1)
            for mask in scores.sets[v]
        ]
        return ParentSetPosterior(
            target=target,
            parent_sets=tuple(sets),
            probs=probs,
            variables=tuple(name for name in samples.variables if name != target),
        )

    def edges(self, samples: Samples) -> Float[np.ndarray, "d d"]:
        """Compute the probability of each edge, `[parent, child]`."""
        scores = self._score(samples, (), ())
        d = len(samples.variables)
        found = np.zeros((d, d))
        for v in range(d):
            probs = parent_set_probabilities(scores, v)
            bits = scores.sets[v][:, None] >> np.arange(d) & 1
            found[:, v] = probs @ bits
        return found

    def _score(
        self,
        samples: Samples,
        required: Collection[tuple[int, int]],
        forbidden: Collection[tuple[int, int]],
    ) -> ParentScores:
        values = samples.values.astype(np.float64)
        complete = values[np.isfinite(values).all(1)]
        spread, centre = np.ones(values.shape[1]), np.zeros(values.shape[1])
        if len(complete):
            spread, centre = complete.std(0), complete.mean(0)
        return score_parent_sets(
            values,
            samples.intervened,
            Domain(centre, np.where(spread > 0, spread, 1.0)),
            max_parents=self.max_parents,
            curved=False,
            required=required,
            forbidden=forbidden,
        )


def parent_set_probabilities(
    scores: ParentScores, target: int
) -> Float[np.ndarray, " sets"]:
    """Compute the posterior probability of each parent set of a variable."""
    d = len(scores.sets)
    if d > MAX_VARIABLES:
        raise ValueError(
            f"got {d} variables, but at most {MAX_VARIABLES} can be enumerated: leave "
            "some out."
        )
    full = (1 << d) - 1
    # longdouble has 80 bits on x86: the best parent set of a variable and those that
    # remain for it without a cycle can differ by more than 10^308 in likelihood.
    sums = np.zeros((d, 1 << d), np.longdouble)
    for v, (sets, logs) in enumerate(zip(scores.sets, scores.logs, strict=True)):
        if len(sets):
            sums[v, sets] = np.exp((logs - logs.max()).astype(np.longdouble))
    # The zeta transform: from the weight of a set to the sum over its subsets.
    for bit in range(d):
        split = sums.reshape(d, -1, 2, 1 << bit)
        split[:, :, 1] += split[:, :, 0]
    # graphs[U]: the sum over all acyclic graphs on the variables of U alone.
    graphs = np.zeros(1 << d, np.longdouble)
    graphs[0] = 1.0
    signed = [_enumerate_sinks(full ^ U, sums[:, U]) for U in range(1 << d)]
    for U in range(1 << d):
        sinks, products = signed[U]
        graphs[U | sinks[1:]] -= graphs[U] * products[1:]
    # Reverse mode by hand: how graphs[full] changes with graphs[U] ...
    gradient = np.zeros(1 << d, np.longdouble)
    gradient[full] = 1.0
    for U in range(full - 1, -1, -1):
        sinks, products = signed[U]
        gradient[U] = -np.sum(products[1:] * gradient[U | sinks[1:]])
    # ... and with the target's own sum over the subsets of each set.
    weight = np.zeros(1 << d, np.longdouble)
    bit = 1 << target
    for U in range(1 << d):
        if not U & bit:
            sinks, products = _enumerate_sinks(full ^ U ^ bit, sums[:, U])
            weight[U] = graphs[U] * np.sum(products * gradient[U | bit | sinks])
    # The transpose of the zeta transform: a parent set is in the sums of its supersets.
    for b in range(d):
        split = weight.reshape(-1, 2, 1 << b)
        split[:, 0] += split[:, 1]
    sets, logs = scores.sets[target], scores.logs[target]
    found = np.exp((logs - logs.max()).astype(np.longdouble)) * weight[sets]
    total = found.sum()
    if not (np.isfinite(total) and total > 0):
        raise ValueError(
            "no acyclic graph agrees with these edges and data: relax the required or "
            "forbidden edges."
        )
    # The alternating signs can leave a negligible set slightly below zero.
    found = np.maximum(found, 0.0)
    return (found / found.sum()).astype(np.float64)


def _enumerate_sinks(
    candidates: int, factors: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return all subsets, and (-1)^size times the product of their factors."""
    sets = np.zeros(1, np.int64)
    products = np.ones(1, np.longdouble)
    for v in range(len(factors)):
        if candidates >> v & 1:
            sets = np.concatenate([sets, sets | 1 << v])
            products = np.concatenate([products, -products * factors[v]])
    return sets, products
