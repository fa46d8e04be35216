"""The posterior over graphs of discrete variables, by BDeu scores and sampled orders.

Each variable has a table of probabilities for each setting of its parents, with a
Dirichlet prior that can be integrated out. Given an order of the variables, the sum
over all graphs that agree with it is a product over the variables, and each factor a
number in a table that is computed once. Orders are sampled, after a search.

References:
    Heckerman, Geiger & Chickering 1995, Machine Learning 20:197-243 (the BDeu score);
    Cooper & Yoo 1999, UAI (rows of interventions); Friedman & Koller 2003, Machine
    Learning 50:95-125 (sampling orders); Kuipers & Moffa 2017, JASA 112:282-299.
"""

import dataclasses
import itertools
import warnings
from math import comb, exp, log

import numpy as np
import scipy.special
from jaxtyping import Bool, Float, Int

from frugax.causal.data import Samples, describe_oddities
from frugax.options import check_instance, check_integer, check_number

from ._orders import sum_subsets

# Whole numbers of more levels count as continuous: their table would be empty.
_MAX_LEVELS = 12
_NUM_BINS = 4  # of equal counts, for other variables
_MAX_CANDIDATES = 10  # parents of one variable that are considered; 2^10 sets
_MAX_CELLS = 20_000  # of one table of probabilities
_SEARCH_MOVES, _SAMPLE_MOVES = 150, 150  # for each variable
_SEARCHES = 3
_HOTTEST = 30.0  # in nats; the search cools down from there
_MAX_LISTED = 5  # variables whose orders are all looked at


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DiscretePosterior:
    """The posterior over causes where variables are binary, categorical or counted.

    A variable with more than 12 values, or with fractions, is divided into four levels
    of equal counts. Rows in which a variable was set say nothing about its causes; rows
    that lack a value are left out. A variable that does not vary has no edges.

    Attributes:
        max_parents: largest number of causes of one variable.
        prior_rows: rows that the prior is worth (the equivalent sample size).
        seed: seed of the sampled orders.

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
    seed: int = 0

    def __post_init__(self) -> None:
        check_integer("max_parents", self.max_parents, minimum=0)
        check_integer("seed", self.seed, minimum=0)
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
        tables = score_tables(
            levels,
            samples.intervened[whole],
            max_parents=self.max_parents,
            prior_rows=self.prior_rows,
        )
        # Few orders need no draws; and of two variables, moves would only swap them, so
        # that one order came up in every other step.
        if len(levels) <= _MAX_LISTED:
            return sum_orders(tables)
        return sample_orders(tables, np.random.default_rng(self.seed))


@dataclasses.dataclass(frozen=True, slots=True)
class SetTable:
    """The parent sets of one variable, by the candidates that precede it."""

    candidates: tuple[int, ...]  # the variables that may be parents
    # Log of the sum over the sets inside of each set of candidates (bit masks).
    sums: Float[np.ndarray, " masks"]

    def edge_probs(self, mask: int) -> Float[np.ndarray, " candidates"]:
        """Return the probability of each candidate, if those in `mask` precede."""
        bits = 1 << np.arange(len(self.candidates))
        without = np.exp(self.sums[mask & ~bits] - self.sums[mask])
        return np.where(mask & bits, 1 - without, 0.0)


def to_levels(column: Float[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Number the levels of a variable from 0; divide others at their quartiles."""
    distinct, codes = np.unique(column, return_inverse=True)
    if len(distinct) <= _MAX_LEVELS and (distinct == distinct.round()).all():
        return codes
    inner = np.arange(1, _NUM_BINS) / _NUM_BINS
    return np.searchsorted(np.unique(np.quantile(column, inner)), column)


def score_tables(
    levels: list[Int[np.ndarray, " n"]],
    intervened: Bool[np.ndarray, "n d"],
    *,
    max_parents: int,
    prior_rows: float,
) -> list[SetTable]:
    """Score the parent sets of each variable, among its most promising candidates."""
    d, found = len(levels), list[SetTable]()
    sizes = [int(x.max()) + 1 for x in levels]
    for v in range(d):
        free = ~intervened[:, v]
        own = [x[free] for x in levels]
        scores: dict[tuple[int, ...], float] = {}

        def score(
            parents: tuple[int, ...],
            v: int = v,
            own: list[np.ndarray] = own,
            scores: dict[tuple[int, ...], float] = scores,
        ) -> float:
            parents = tuple(sorted(parents))
            if parents not in scores:
                scores[parents] = _log_score(v, parents, own, sizes, prior_rows)
            return scores[parents]

        # A column without a second value would have its edges at their prior.
        rest = [u for u in range(d) if u != v and np.ptp(own[v]) and np.ptp(own[u])]
        # A cause may show only beside another one: candidates are ranked by the better
        # of their gains alone and beside the best one.
        gain = {u: score((u,)) - score(()) for u in rest}
        if best := sorted(rest, key=lambda u: -gain[u])[:1]:
            for u in rest:
                if u != best[0]:
                    beside = score((u, best[0])) - score((best[0],))
                    gain[u] = max(gain[u], beside)
        kept = tuple(sorted(rest, key=lambda u: -gain[u])[:_MAX_CANDIDATES])
        sums = np.full(1 << len(kept), -np.inf)
        for k in range(min(max_parents, len(kept)) + 1):
            for members in itertools.combinations(range(len(kept)), k):
                # Equal prior odds for every number of parents, then for every set.
                prior = -log(comb(max(d - 1, 1), k))
                mask = sum(1 << i for i in members)
                sums[mask] = score(tuple(kept[i] for i in members)) + prior
        found.append(SetTable(kept, sum_subsets(sums)))
    return found


def _log_score(
    v: int,
    parents: tuple[int, ...],
    levels: list[Int[np.ndarray, " n"]],
    sizes: list[int],
    prior_rows: float,
) -> float:
    """Compute the log marginal likelihood of a variable given its parents (BDeu)."""
    settings = int(np.prod([sizes[u] for u in parents], dtype=np.int64))
    if settings * sizes[v] > _MAX_CELLS:
        return -np.inf
    code = np.zeros(len(levels[v]), np.int64)
    for u in parents:
        code = code * sizes[u] + levels[u]
    counts = np.bincount(code * sizes[v] + levels[v], minlength=settings * sizes[v])
    counts = counts.reshape(settings, sizes[v])
    each = prior_rows / counts.size
    total = counts.sum(1)
    log_gamma = scipy.special.gammaln
    inside = log_gamma(each + counts[counts > 0]) - log_gamma(each)
    seen = total[total > 0]
    outside = log_gamma(each * sizes[v]) - log_gamma(each * sizes[v] + seen)
    return float(inside.sum() + outside.sum())


class _Order:
    """An order of the variables, with the candidates that precede each of them."""

    def __init__(self, tables: list[SetTable], order: list[int]) -> None:
        self.tables, self.order = tables, order
        # bit[v][u]: the bit of u among the candidates of v, or 0.
        self._bit = [
            {u: 1 << i for i, u in enumerate(table.candidates)} for table in tables
        ]
        self._sums = [table.sums.tolist() for table in tables]
        self.masks = [0] * len(order)
        for i, v in enumerate(order):
            for u in order[:i]:
                self.masks[v] |= self._bit[v].get(u, 0)

    def move(self, i: int, j: int) -> tuple[float, dict[int, int]]:
        """Return the gain of moving the variable at `i` to `j`, and the new masks."""
        v = self.order[i]
        passed = self.order[i + 1 : j + 1] if i < j else self.order[j:i]
        mask, gain, new = self.masks[v], 0.0, dict[int, int]()
        for u in passed:
            mask ^= self._bit[v].get(u, 0)
            if bit := self._bit[u].get(v, 0):
                new[u] = self.masks[u] ^ bit
                gain += self._sums[u][new[u]] - self._sums[u][self.masks[u]]
        gain += self._sums[v][mask] - self._sums[v][self.masks[v]]
        new[v] = mask
        return gain, new

    def accept(self, i: int, j: int, new: dict[int, int]) -> None:
        self.order.insert(j, self.order.pop(i))
        for v, mask in new.items():
            self.masks[v] = mask

    @property
    def score(self) -> float:
        return sum(s[m] for s, m in zip(self._sums, self.masks, strict=True))


def sum_orders(tables: list[SetTable]) -> Float[np.ndarray, "d d"]:
    """Average the edge probabilities over all orders of a few variables."""
    every = [
        _Order(tables, list(order))
        for order in itertools.permutations(range(len(tables)))
    ]
    weights = scipy.special.softmax([each.score for each in every])
    found = np.zeros((len(tables),) * 2)
    for weight, each in zip(weights, every, strict=True):
        for v, table in enumerate(tables):
            probs = table.edge_probs(each.masks[v])
            found[list(table.candidates), v] += weight * probs
    return found


def sample_orders(
    tables: list[SetTable], rng: np.random.Generator
) -> Float[np.ndarray, "d d"]:
    """Average the edge probabilities over sampled orders of three variables or more."""
    d = len(tables)
    found = np.zeros((d, d))
    best: _Order | None = None
    for _ in range(_SEARCHES):
        each = _Order(tables, rng.permutation(d).tolist())
        moves = _SEARCH_MOVES * d
        for step in range(moves):
            _step(each, rng, max(_HOTTEST * (1 - 1.25 * step / moves), 0.1))
        if best is None or each.score > best.score:
            best = each
    assert best is not None
    taken = 0
    for step in range(_SAMPLE_MOVES * d):
        _step(best, rng, 1.0)
        # The first tenth settles; neighbouring orders are nearly the same.
        if step >= 0.1 * _SAMPLE_MOVES * d and step % d == 0:
            taken += 1
            for v, table in enumerate(tables):
                found[list(table.candidates), v] += table.edge_probs(best.masks[v])
    return found / max(taken, 1)


def _step(order: _Order, rng: np.random.Generator, temperature: float) -> None:
    d = len(order.order)
    i, j = rng.integers(d), rng.integers(d - 1)
    j += j >= i
    gain, new = order.move(int(i), int(j))
    if gain >= 0 or rng.random() < exp(max(gain / temperature, -700.0)):
        order.accept(int(i), int(j), new)
