"""`Surrogate`: a trained network that predicts causal edges from a table of samples."""

import dataclasses
import warnings
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Bool, Float

from frugax.options import check_number

from ..data import Samples, complete_rows, describe_oddities
from ._parent_set_posterior import ParentSetPosterior
from .evidence import (
    compute_evidence,
    exclude_two_cycles,
    moments,
    other_variables,
    set_members,
)
from .network import Prediction, Weights, apply_network

# The number of parent sets doubles with each variable: 12 x 2,048 sets take 15 ms.
MAX_VARIABLES = 12
# More rows than in training count as 300: simple models are misspecified, and their
# evidence against all others would grow without bound.
_MAX_ROWS = 300.0
# Values further from the median than this many robust standard deviations count as
# that far: columns that know nothing of each other seem related if both have their
# wildest value in one row. Of 30 tables of independent columns with heavy tails 21 got
# an edge without this bound, and 3 with it.
_MAX_STDS = 10.0


@dataclasses.dataclass(frozen=True, eq=False)
class Surrogate:
    """An amortized posterior over causal graphs: a trained network, not fitted to data.

    Inference runs in NumPy, without JAX and without compiling.

    Attributes:
        weights: of the network, NumPy arrays by name.
        temperature: divisor of log-probabilities.
    """

    weights: Weights
    temperature: float = 1.0

    def with_temperature(self, temperature: float) -> "Surrogate":
        """Return the same network, more (below 1) or less (above 1) certain.

        Args:
            temperature: > 0 and finite.

        Raises:
            ValueError: `temperature` is not such a number.
        """
        check_number("temperature", temperature, above=0)
        return dataclasses.replace(self, temperature=float(temperature))

    def edge_probabilities(self, samples: Samples) -> Float[np.ndarray, "d d"]:
        """Estimate the probability of each edge `[parent, child]`.

        Up to 12 variables these are the marginals of `posterior`, scaled down where the
        probabilities of an edge and its reverse add up to more than 1. Beyond that, the
        parents of each variable are sought among the 11 most related to it.

        Args:
            samples: observations, experiments or both; at least two rows.

        Raises:
            TypeError: `samples` is not a `Samples`.
            ValueError: fewer than two rows have a value of each variable.

        Warns:
            UserWarning: values may be slips, rows lack values or repeat others, or
                variables are constant or the same.
        """
        values, intervened, present = table_arrays(samples)
        d = values.shape[1]
        result = np.zeros((d, d), np.float32)
        if 1 < d <= MAX_VARIABLES:
            every = list(range(d))
            result = self._predict_columns(
                every, samples.variables, values, intervened, present
            ).edges[0]
        _warn(samples)
        if d <= MAX_VARIABLES:
            return result
        # Each child is predicted among its own 12 columns. Two children are then judged
        # in different contexts, and the results may contain an edge and its reverse.
        near = nearest_variables(values, intervened, present)
        for child, ranked in enumerate(near):
            columns = sorted(ranked)
            prediction = self._predict_columns(
                columns, samples.variables, values, intervened, present
            )
            result[columns, child] = prediction.edges[0][:, columns.index(child)]
        return exclude_two_cycles(result)

    def posterior(
        self,
        samples: Samples,
        target: str,
        required: Iterable[str] = (),
        forbidden: Iterable[str] = (),
    ) -> ParentSetPosterior:
        """Estimate the probability of every possible parent set of `target`.

        Up to 12 variables this covers all sets. Beyond that, parents are sought among
        the required variables and those most related to the target, 11 in all.

        Args:
            samples: see `edge_probabilities`.
            target: the variable.
            required: known parents.
            forbidden: variables known not to be parents.

        Raises:
            TypeError: `samples` is not a `Samples`.
            ValueError: a name is unknown, both required and forbidden, or the target
                itself; or fewer than two rows have a value of each variable.

        Warns:
            UserWarning: as for `edge_probabilities`.
        """
        required, forbidden = frozenset(required), frozenset(forbidden)
        check_samples(samples)
        column = samples.index(target)
        if target in required:
            raise ValueError(
                f"{target!r} is required as a parent of itself, which is impossible: "
                "remove it from required=."
            )
        for name in required | forbidden:
            samples.index(name)
        if len(required) >= MAX_VARIABLES:
            raise ValueError(
                f"{len(required)} parents are required, the most is {MAX_VARIABLES - 1}"
            )
        values, intervened, present = table_arrays(samples)
        if values.shape[1] == 1:
            return ParentSetPosterior(
                target=target, parent_sets=(frozenset(),), probs=np.ones(1)
            )
        columns = list(range(values.shape[1]))
        if len(columns) > MAX_VARIABLES:
            columns = related_columns(samples, target, required)
        prediction = self._predict_columns(
            columns, samples.variables, values, intervened, present
        )
        _warn(samples)
        place, width = columns.index(column), len(columns)
        names = [samples.variables[columns[j]] for j in other_variables(width)[place]]
        sets = set_members(width) > 0
        posterior = ParentSetPosterior(
            target=target,
            parent_sets=tuple(
                frozenset(n for n, on in zip(names, row, strict=True) if on)
                for row in sets
            ),
            # In float64, so that the sum of 2,048 probabilities is closer to 1.
            probs=np.exp(prediction.log_sets[0, place].astype(np.float64)),
            variables=tuple(name for name in samples.variables if name != target),
        )
        if required or forbidden:
            return posterior.condition(required, forbidden)
        return posterior

    def predict(
        self,
        values: Float[np.ndarray, "sets rows d"],
        intervened: Float[np.ndarray, "sets rows d"],
        present: Float[np.ndarray, "sets rows d"],
    ) -> Prediction:
        """Run the network on many data sets of one shape at once.

        Args:
            values: float32 and finite; d <= 12.
            intervened: 1 for values that were set.
            present: 1 if row, variable and value are present.
        """
        m = moments(values, intervened, present)
        rows = m[:, -1:, :1, :1]
        # A factor on all moments changes neither means nor covariances, only the number
        # of rows. It tempers the likelihood, the remedy of Grünwald & van Ommen 2017
        # (Bayesian Analysis 12:1069-1103) for misspecified models.
        m = m * np.minimum(1, _MAX_ROWS / np.maximum(rows, 1)).astype(np.float32)
        mask = present.max(1)
        prediction = apply_network(
            self.weights, compute_evidence(m, mask), mask, temperature=self.temperature
        )
        return prediction._replace(edges=exclude_two_cycles(prediction.edges))

    def _predict_columns(
        self, columns: list[int], names: Sequence[str], *arrays: np.ndarray
    ) -> Prediction:
        """Run the network on the complete rows of some columns.

        A value in place of a missing one, whatever it is, does not block the path
        through its variable: causes of causes would look like causes.
        """
        chosen = [array[:, columns] for array in arrays]
        rows = complete_rows(chosen[-1] > 0, [names[j] for j in columns])
        return self.predict(*(array[None, rows] for array in chosen))


def select_graph(edges: Float[np.ndarray, "d d"]) -> Bool[np.ndarray, "d d"]:
    """Select the edges that maximize the expected F1 under their probabilities.

    Of two directions only the more probable one is selected. If little is certain, the
    selection includes edges with a probability below one half. The empty graph is
    selected if it is probable enough, as its F1 is 1 where there are no edges.

    Args:
        edges: from `Surrogate.edge_probabilities`.

    Raises:
        ValueError: `edges` is not a square matrix of probabilities.

    References:
        Ye et al. 2012, ICML, "Optimizing F-measures" (thresholds for the expected F1).
    """
    edges = np.asarray(edges)
    if edges.ndim != 2 or edges.shape[0] != edges.shape[1]:
        raise ValueError(
            f"edges has shape {edges.shape}, but must be (d, d), [parent, child]."
        )
    wrong = np.argwhere(~((edges >= 0) & (edges <= 1)))  # includes NaN
    if len(wrong):
        i, j = map(int, wrong[0])
        raise ValueError(
            f"edges[{i}, {j}] is {edges[i, j]}, which is not a probability: give "
            "numbers from 0 to 1."
        )
    # Of two equally probable directions, take the one above the diagonal.
    first = np.triu(np.ones(edges.shape, bool), 1) & (edges == edges.T)
    likelier = edges * ((edges > edges.T) | first)
    pairs = np.argwhere(likelier > 0)
    forward = likelier[likelier > 0].astype(np.float64)
    backward = edges.T[likelier > 0].astype(np.float64)
    order = np.argsort(-forward, kind="stable")
    expected = _expected_f1(forward[order], np.minimum(backward, 1 - forward)[order])
    selected = np.zeros(edges.shape, bool)
    # Selections end before a less probable edge, so that equal edges are together.
    ends = np.append(np.diff(forward[order]) < 0, True) if len(pairs) else []
    sizes = [0, *(np.flatnonzero(ends) + 1)]
    best = max(sizes, key=lambda size: expected[size])
    selected[tuple(pairs[order[:best]].T)] = True
    return selected


def _expected_f1(
    forward: Float[np.ndarray, " n"], backward: Float[np.ndarray, " n"]
) -> list[float]:
    """Return the expected F1 of selecting the first 0, 1, ... n edges.

    F1 = 2 hits / (selected + true edges), and 1 if there are neither. Pairs of
    variables are independent, and so are hits and the true edges that are not hits.

    Args:
        forward: probability of each edge, falling.
        backward: probability of its reverse.
    """
    n = len(forward)
    # Numbers of true edges among the pairs that are not selected, from the last on.
    rest = [np.ones(1)]
    for p in (forward + backward)[::-1]:
        rest.append(_add_one(rest[-1], min(float(p), 1.0)))
    rest.reverse()
    found = [float(rest[0][0])]
    hits, reversed_ = np.ones(1), np.ones(1)
    for k in range(1, n + 1):
        hits = _add_one(hits, float(forward[k - 1]))
        reversed_ = _add_one(reversed_, float(backward[k - 1]))
        others = np.convolve(reversed_, rest[k])
        h, m = np.arange(len(hits))[:, None], np.arange(len(others))
        found.append(float(hits @ (2 * h / (k + h + m)) @ others))
    return found


def _add_one(counts: Float[np.ndarray, " k"], p: float) -> Float[np.ndarray, " k_1"]:
    """Return the distribution of a count after one more event; rare tails are cut."""
    more = np.append(counts * (1 - p), 0.0)
    more[1:] += counts * p
    # The mass beyond the last entry that is kept is far below any difference in F1.
    return more[: np.flatnonzero(more > 1e-12)[-1] + 1]


def table_arrays(
    samples: Samples,
) -> tuple[
    Float[np.ndarray, "n d"], Float[np.ndarray, "n d"], Float[np.ndarray, "n d"]
]:
    """Return scaled values and the masks of intervened and present values, float32."""
    check_samples(samples)
    present = np.isfinite(samples.values)
    few = [n for n, k in zip(samples.variables, present.sum(0), strict=True) if k < 2]
    if few:
        raise ValueError(
            f"{few[0]!r} has fewer than two values: leave it out with `select`, or "
            "give more rows."
        )
    # Centred in float64: float32 sums of large values would lose their differences.
    values = _bound_tails(samples)
    values = np.where(present, values - np.nanmean(values, axis=0), 0)
    # Squares of values in very large or small units would overflow or vanish in
    # float32, and so would differences of its largest values.
    spread = np.abs(values).max(0)
    values = (values / np.where(spread > 0, spread, 1)).astype(np.float32)
    return values, samples.intervened.astype(np.float32), present.astype(np.float32)


def _bound_tails(samples: Samples) -> Float[np.ndarray, "n d"]:
    """Return the values in float64, those far from nearly all others moved nearer."""
    values = samples.values.astype(np.float64)
    # An experiment moves its effects as far as it likes.
    natural = ~samples.intervened.any(1)
    for column in values.T:
        seen = column[natural & np.isfinite(column)]
        if len(seen):
            median = np.median(seen)
            # 0.6745 is the median deviation of a standard normal variable.
            far = _MAX_STDS * np.median(np.abs(seen - median)) / 0.6745
            if far > 0:
                bounded = np.clip(column, median - far, median + far)
                column[natural] = bounded[natural]
    return values


def check_samples(samples: Samples) -> None:
    """Raise on a frame or an array in place of a table."""
    if not isinstance(samples, Samples):
        constructor = "from_frame(frame)"
        if isinstance(samples, np.ndarray):
            constructor = "observed(names, array)"
        raise TypeError(
            f"samples must be a table with names, not {type(samples).__name__}: give "
            f"Samples.{constructor}."
        )


def _warn(samples: Samples) -> None:
    for oddity in describe_oddities(samples):
        warnings.warn(f"{oddity}.", UserWarning, stacklevel=3)


def nearest_variables(
    values: Float[np.ndarray, "n d"],
    intervened: Float[np.ndarray, "n d"],
    present: Float[np.ndarray, "n d"],
) -> list[list[int]]:
    """List each variable and the 11 most related to it, the most related first."""
    d = values.shape[1]
    # In float64: a singular matrix of correlations would otherwise get a negative
    # variance by rounding.
    values, present = values.astype(np.float64), present.astype(np.float64)
    natural = present * (1 - intervened)
    mean = (values * natural).sum(0) / np.maximum(natural.sum(0), 1)
    centred = (values - mean) * present
    z = centred / np.sqrt(np.maximum((centred**2).mean(0), 1e-12))
    near = []
    for child in range(d):
        use = natural[:, child : child + 1]
        # Products of observed pairs only: a mean in place of a missing value would
        # weaken its relations.
        gram = (z * use).T @ z / np.maximum((present * use).T @ present, 1)
        scale = np.sqrt(np.maximum(np.diag(gram), 1e-6 / max(float(use.sum()), 1)))
        r = gram / scale[:, None] / scale
        if not present.all():
            # Pairs from different rows need not fit together.
            sizes, axes = np.linalg.eigh(r)
            r = (axes * np.maximum(sizes, 0)) @ axes.T
        # The ridge turns partial correlations into plain ones if rows are few.
        inverse = np.linalg.inv(r + np.eye(d) * (0.05 + d / max(float(use.sum()), 1)))
        # Partial correlations are the scaled entries of the inverse, up to the sign
        # (Lauritzen 1996, "Graphical Models", section 5.1).
        partial = inverse[child] / np.sqrt(inverse[child, child] * np.diag(inverse))
        strength = np.maximum(np.abs(partial), 0.5 * np.abs(r[child]))
        strength[child] = np.inf
        near.append(np.argsort(-strength)[:MAX_VARIABLES].tolist())
    return near


def related_columns(
    samples: Samples, target: str, required: Iterable[str] = ()
) -> list[int]:
    """Choose 12 columns: the target, required ones, and the most related to it.

    They are in the order of the data, so that a position says nothing of its role.
    """
    near = nearest_variables(*table_arrays(samples))[samples.index(target)]
    first = map(samples.index, [target, *required])
    return sorted([*dict.fromkeys([*first, *near])][:MAX_VARIABLES])
