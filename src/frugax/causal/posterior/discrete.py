"""The posterior over graphs of discrete variables, by BDeu scores.

Each variable has a table of probabilities for each setting of its parents, with a
Dirichlet prior that can be integrated out.

References:
    Heckerman, Geiger & Chickering 1995, Machine Learning 20:197-243 (the BDeu score);
    Cooper & Yoo 1999, UAI (rows of interventions).
"""

import dataclasses
import itertools
import math
import warnings

import numpy as np
import scipy.special
from jaxtyping import Bool, Float, Int

from frugax.causal.data import Samples, describe_oddities
from frugax.causal.surrogate import MAX_VARIABLES
from frugax.causal.surrogate.evidence import (
    NEVER,
    exclude_two_cycles,
    marginal_edges,
    order_posterior,
)
from frugax.options import check_instance, check_integer, check_number

# Whole numbers of more levels count as continuous: their table would be empty.
_MAX_LEVELS = 12
_NUM_BINS = 4  # of equal counts, for other variables
_MAX_CELLS = 20_000  # of one table of probabilities


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DiscretePosterior:
    """The posterior over causes where variables are binary, categorical or counted.

    A variable with more than 12 values, or with fractions, is divided into four levels
    of equal counts. Rows in which a variable was set say nothing about its causes; rows
    that lack a value are left out. A variable that does not vary has no edges.

    Attributes:
        max_parents: largest number of causes of one variable.
        prior_rows: rows that the prior is worth (the equivalent sample size).

    Example:
        >>> import numpy as np
        >>> from frugax.causal import Samples
        >>> rng = np.random.default_rng(0)
        >>> x = rng.integers(0, 2, 400)
        >>> y = np.where(rng.random(400) < 0.9, x, 1 - x)
        >>> values = np.stack([x, y], axis=1).astype(np.float32)
        >>> is_set = np.zeros((400, 2), bool)
        >>> is_set[200:, 1], values[200:, 1] = True, rng.integers(0, 2, 200)
        >>> edges = DiscretePosterior().edges(Samples(("x", "y"), values, is_set))
        >>> bool(edges[0, 1] > 0.95)
        True
    """

    max_parents: int = 3
    prior_rows: float = 1.0

    def __post_init__(self) -> None:
        check_integer("max_parents", self.max_parents, minimum=0)
        check_number("prior_rows", self.prior_rows, above=0)

    def edges(self, samples: Samples) -> Float[np.ndarray, "d d"]:
        """Compute the probability of each edge, `[parent, child]`.

        Args:
            samples: observations, experiments or both.

        Raises:
            TypeError: `samples` are not `Samples`.
            ValueError: no row is complete.

        Warns:
            UserWarning: as for `Surrogate.edge_probabilities`.
        """
        check_instance("samples", samples, Samples, example="Samples.from_frame(frame)")
        values = samples.values.astype(np.float64)
        whole = np.isfinite(values).all(1)
        if not whole.any():
            raise ValueError("no row has a value of every variable: drop columns.")
        levels = [to_levels(column) for column in values[whole].T]
        for oddity in describe_oddities(samples):
            warnings.warn(f"{oddity}.", UserWarning, stacklevel=2)
        scores = _Scores(
            levels, samples.intervened[whole], self.max_parents, self.prior_rows
        )
        d = len(levels)
        if d <= MAX_VARIABLES:
            return scores.find_edges(list(range(d)))
        # As the surrogate does it: each child among the variables most related to it.
        found = np.zeros((d, d))
        for child in range(d):
            near = scores.rank_candidates(child)[: MAX_VARIABLES - 1]
            context = sorted([child, *near])
            edges = scores.find_edges(context)
            found[context, child] = edges[:, context.index(child)]
        return exclude_two_cycles(found)


def to_levels(column: Float[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Number the levels of a variable from 0; divide others at their quartiles."""
    distinct, codes = np.unique(column, return_inverse=True)
    if len(distinct) <= _MAX_LEVELS and (distinct == distinct.round()).all():
        return codes
    inner = np.arange(1, _NUM_BINS) / _NUM_BINS
    return np.searchsorted(np.unique(np.quantile(column, inner)), column)


class _Scores:
    """Log marginal likelihoods of the parent sets of discrete variables."""

    def __init__(
        self,
        levels: list[Int[np.ndarray, " n"]],
        intervened: Bool[np.ndarray, "n d"],
        max_parents: int,
        prior_rows: float,
    ) -> None:
        self._max_parents, self._prior_rows = max_parents, prior_rows
        self._sizes = [int(x.max()) + 1 for x in levels]
        # Rows in which a variable was set say nothing about its causes.
        self._levels = [[x[~is_set] for x in levels] for is_set in intervened.T]
        self._known: dict[tuple[int, tuple[int, ...]], float] = {}

    def score(self, child: int, parents: tuple[int, ...]) -> float:
        """Compute the log marginal likelihood of a variable given parents (BDeu)."""
        key = child, tuple(sorted(parents))
        if key not in self._known:
            self._known[key] = self._compute(*key)
        return self._known[key]

    def _compute(self, child: int, parents: tuple[int, ...]) -> float:
        levels, sizes = self._levels[child], self._sizes
        settings = math.prod(sizes[u] for u in parents)
        if settings * sizes[child] > _MAX_CELLS:
            return NEVER
        code = np.zeros(len(levels[child]), np.int64)
        for u in parents:
            code = code * sizes[u] + levels[u]
        cells = settings * sizes[child]
        counts = np.bincount(code * sizes[child] + levels[child], minlength=cells)
        counts = counts.reshape(settings, sizes[child])
        each = self._prior_rows / counts.size
        total = counts.sum(1)
        log_gamma = scipy.special.gammaln
        inside = log_gamma(each + counts[counts > 0]) - log_gamma(each)
        seen = each * sizes[child]
        outside = log_gamma(seen) - log_gamma(seen + total[total > 0])
        return float(inside.sum() + outside.sum())

    def rank_candidates(self, child: int) -> list[int]:
        """List the variables that may be causes of another, the likeliest first.

        A column without a second value would have its edges at their prior. A cause may
        show only beside another one, so the better of two gains counts: that alone, and
        that beside the best one.
        """
        levels = self._levels[child]
        rest = [
            u
            for u in range(len(levels))
            if u != child and np.ptp(levels[child]) and np.ptp(levels[u])
        ]
        gain = {u: self.score(child, (u,)) - self.score(child, ()) for u in rest}
        if rest:
            best = max(rest, key=lambda u: gain[u])
            alone = self.score(child, (best,))
            for u in rest:
                if u != best:
                    gain[u] = max(gain[u], self.score(child, (u, best)) - alone)
        return sorted(rest, key=lambda u: -gain[u])

    def find_edges(self, variables: list[int]) -> Float[np.ndarray, "w w"]:
        """Compute the probability of each edge, summed over all acyclic graphs."""
        width = len(variables)
        if width == 1:
            return np.zeros((1, 1))
        scores = np.full((width, 1 << (width - 1), 1), NEVER)
        for i, child in enumerate(variables):
            others = [u for u in variables if u != child]
            allowed = {*self.rank_candidates(child)}
            bits = [t for t, u in enumerate(others) if u in allowed]
            for k in range(min(self._max_parents, len(bits)) + 1):
                # Equal prior odds for every number of parents, then for every set.
                prior = math.log(math.comb(max(width - 1, 1), k))
                for members in itertools.combinations(bits, k):
                    mask = sum(1 << t for t in members)
                    parents = tuple(others[t] for t in members)
                    scores[i, mask] = self.score(child, parents) - prior
        # Differences count, and small numbers keep more of their digits.
        scores -= scores[:, :1].copy()
        posterior = order_posterior(np.maximum(scores, NEVER))
        return marginal_edges(np.moveaxis(posterior, 2, 0))[0]
