"""The trained network as the user meets it: a table in, probabilities out."""

import dataclasses
import math
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from ..data import Samples
from ._posterior import ParentSetPosterior
from .evidence import evidence, members, moments, others
from .network import Answer, Weights, apply_network

MOST = 12  # variables whose sets of parents are all weighed against each other
# The most rows that training had. More count as that many, since simple models are
# never quite true and their evidence would grow without end.
_ROWS = 300.0


@dataclasses.dataclass(frozen=True, eq=False)
class Surrogate:
    """Who causes whom in a table of data, without fitting anything to it.

    Neither JAX nor a compiler is needed to ask: the network runs in NumPy, at the size
    of the table.

    Attributes:
        weights: of the network, NumPy arrays by name.
        temperature: log-probabilities are divided by it.
    """

    weights: Weights
    temperature: float = 1.0

    def with_temperature(self, temperature: float) -> "Surrogate":
        """The same network, more (below 1) or less (above 1) certain.

        Args:
            temperature: > 0 and finite.

        Raises:
            ValueError: it is not, or no number.
        """
        real = isinstance(temperature, int | float | np.number)
        if not real or isinstance(temperature, bool) or not 0 < temperature < math.inf:
            raise ValueError(
                f"temperature must be a number > 0 and finite, got {temperature!r}."
            )
        return dataclasses.replace(self, temperature=float(temperature))

    def edges(self, samples: Samples) -> Float[np.ndarray, "d d"]:
        """Probability of each edge `[parent, child]`; 0 on the diagonal.

        Up to 12 variables these are the marginals of `posterior`, made smaller where an
        edge and its reverse would together be above 1. With more, each variable is
        judged among the 11 that move most with it.

        Args:
            samples: observations, experiments or both; at least two rows.

        Raises:
            TypeError: this is no `Samples`.
            ValueError: there are too few rows.
        """
        values, intervened, present = table_arrays(samples)
        _warn_of_constants(samples, values)
        d = values.shape[1]
        if d == 1:
            return np.zeros((1, 1), np.float32)
        if d <= MOST:
            return self.ask(values[None], intervened[None], present[None]).edges[0]
        result = np.zeros((d, d), np.float32)
        near = neighbours(values, intervened, present)
        for child, columns in enumerate(near):
            some = (values[None][..., columns], intervened[None][..., columns])
            answer = self.ask(*some, present[None][..., columns])
            result[columns, child] = answer.edges[0][:, columns.index(child)]
        return _of_either(result)

    def posterior(
        self,
        samples: Samples,
        target: str,
        required: Iterable[str] = (),
        forbidden: Iterable[str] = (),
    ) -> ParentSetPosterior:
        """Probability of every set of parents that `target` can have.

        No set is left out for up to 12 variables. With more, parents are sought among
        the 11 that move most with the target, and those that are required.

        Args:
            samples: as for `edges`.
            target: the variable whose causes are asked for.
            required: variables known to be parents.
            forbidden: variables known not to be.

        Raises:
            TypeError: `samples` is no `Samples`.
            ValueError: a name is not in the samples, both required and forbidden, or
                the target itself; or there are too few rows.
        """
        required, forbidden = frozenset(required), frozenset(forbidden)
        check_samples(samples)
        column = samples.index(target)
        if target in required:
            raise ValueError(
                f"{target!r} is required as a parent of itself, which no variable can "
                "be: take it out of required=."
            )
        for name in required | forbidden:
            samples.index(name)
        if len(required) >= MOST:
            raise ValueError(
                f"{len(required)} parents are required; at most {MOST - 1} can be."
            )
        values, intervened, present = table_arrays(samples)
        _warn_of_constants(samples, values)
        if values.shape[1] == 1:
            return ParentSetPosterior(
                target=target, parent_sets=(frozenset(),), probs=np.ones(1)
            )
        columns = list(range(values.shape[1]))
        if len(columns) > MOST:
            needed = [samples.index(name) for name in sorted(required)]
            columns = neighbours(values, intervened, present)[column]
            free = [c for c in columns if c not in needed and c != column]
            columns = sorted([column, *needed, *free[: MOST - 1 - len(needed)]])
        answer = self.ask(
            values[None][..., columns],
            intervened[None][..., columns],
            present[None][..., columns],
        )
        place = columns.index(column)
        names = [samples.variables[columns[j]] for j in others(len(columns))[place]]
        sets = members(len(columns)) > 0
        found = ParentSetPosterior(
            target=target,
            parent_sets=tuple(
                frozenset(n for n, on in zip(names, row, strict=True) if on)
                for row in sets
            ),
            probs=np.exp(answer.log_sets[0, place].astype(np.float64)),
            variables=tuple(name for name in samples.variables if name != target),
        )
        return found.given(required, forbidden) if required or forbidden else found

    def ask(self, values: Any, intervened: Any, present: Any) -> Answer:
        """Answers for many data sets of one shape at once.

        Args:
            values: `(sets, rows, d)` float32, d <= 12; finite.
            intervened: 1 where a value was set, of the same shape.
            present: 1 where row, variable and value are there, of the same shape.
        """
        m = moments(values, intervened, present)
        rows = m[:, -1:, :1, :1]
        m = m * np.minimum(1, _ROWS / np.maximum(rows, 1)).astype(np.float32)
        mask = present.max(1)
        told = evidence(m, mask)
        answer = apply_network(self.weights, told, mask, temperature=self.temperature)
        return answer._replace(edges=_of_either(answer.edges))


def _of_either(edges: Float[np.ndarray, "*sets d d"]) -> Float[np.ndarray, "*sets d d"]:
    """Edges of which no two that are each other's reverse add up to more than 1.

    Each variable's causes are weighed apart, and no graph has both edges of a pair.
    """
    return edges / np.maximum(edges + edges.swapaxes(-1, -2), 1)


def likely_graph(edges: Float[np.ndarray, "d d"]) -> Bool[np.ndarray, "d d"]:
    """The edges to name where each wrong one costs as much as each one left out.

    Those that make the expected F1 largest, by the probabilities themselves; of two
    directions only the likelier. Where little is certain, edges below one half are in.

    Args:
        edges: their probabilities, from `Surrogate.edges`.

    Raises:
        ValueError: they are no square table of probabilities.
    """
    edges = np.asarray(edges)
    if edges.ndim != 2 or edges.shape[0] != edges.shape[1]:
        raise ValueError(
            f"edges has shape {edges.shape}, but must be (d, d), [parent, child]."
        )
    wrong = np.argwhere(~((edges >= 0) & (edges <= 1)))  # true for NaN also
    if len(wrong):
        i, j = map(int, wrong[0])
        raise ValueError(
            f"edges[{i}, {j}] is {edges[i, j]}, which is no probability: give numbers "
            "from 0 to 1."
        )
    # Of two that are equal the upper one.
    first = np.triu(np.ones(edges.shape, bool), 1) & (edges == edges.T)
    likelier = edges * ((edges > edges.T) | first)
    ranked = np.sort(likelier[likelier > 0])[::-1].astype(np.float64)
    if not len(ranked):
        return np.zeros(edges.shape, bool)
    named = np.arange(1, len(ranked) + 1)
    expected = 2 * np.cumsum(ranked) / (named + edges.sum())
    return likelier >= ranked[expected.argmax()]


def table_arrays(samples: Samples) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values, what was set, and what is there; float32 `(n, d)`.

    Raises:
        ValueError: there are too few rows.
    """
    check_samples(samples)
    present = np.isfinite(samples.values)
    few = [n for n, k in zip(samples.variables, present.sum(0), strict=True) if k < 2]
    if few:
        raise ValueError(
            f"{few[0]!r} has fewer than two values: leave it out with `select`, or "
            "give more rows."
        )
    # Sums of large values would lose what they differ by.
    centre = np.nanmean(samples.values.astype(np.float64), axis=0)
    values = np.where(present, samples.values - centre, 0).astype(np.float32)
    spread = np.abs(values).max(0)
    values /= np.where(spread > 0, spread, 1)
    return values, samples.intervened.astype(np.float32), present.astype(np.float32)


def check_samples(samples: Samples) -> None:
    """Refuse a frame or an array in the place of a table.

    Args:
        samples: what was given.

    Raises:
        TypeError: this is no `Samples`.
    """
    if not isinstance(samples, Samples):
        way = "from_frame(frame)"
        if isinstance(samples, np.ndarray):
            way = "observed(names, array)"
        raise TypeError(
            f"samples must be a table with names, not {type(samples).__name__}: give "
            f"Samples.{way}."
        )


def _warn_of_constants(samples: Samples, values: np.ndarray) -> None:
    moved = np.atleast_1d(values.any(axis=0))  # they are centred
    names = [n for n, m in zip(samples.variables, moved, strict=True) if not m]
    if names:
        warnings.warn(
            f"{', '.join(names):.200}: constant in every row, which shows neither "
            "causes nor effects; what is said of it is what training assumed. Leave it "
            "out with `select`.",
            UserWarning,
            stacklevel=3,
        )


def neighbours(
    values: np.ndarray, intervened: np.ndarray, present: np.ndarray
) -> list[list[int]]:
    """For each variable itself and the 11 it is most related to, in ascending order."""
    d = values.shape[1]
    natural = present * (1 - intervened)
    mean = (values * natural).sum(0) / np.maximum(natural.sum(0), 1)
    centred = (values - mean) * present
    z = centred / np.sqrt(np.maximum((centred**2).mean(0), 1e-12))
    near = []
    for child in range(d):
        use = natural[:, child : child + 1]
        gram = (z * use).T @ z
        scale = np.sqrt(np.maximum(np.diag(gram), 1e-6))
        r = gram / scale[:, None] / scale
        # Partial correlations where rows are enough for them, by a ridge.
        inverse = np.linalg.inv(r + np.eye(d) * (0.05 + d / max(float(use.sum()), 1)))
        partial = inverse[child] / np.sqrt(inverse[child, child] * np.diag(inverse))
        strength = np.maximum(np.abs(partial), 0.5 * np.abs(r[child]))
        strength[child] = np.inf
        near.append(sorted(np.argsort(-strength)[:MOST].tolist()))
    return near
