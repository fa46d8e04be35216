"""What is believed of a variable's direct causes, as a distribution over sets."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ParentSetPosterior:
    """A distribution over sets of parents.

    Attributes:
        target: the variable whose parents these are.
        parent_sets: the sets, each once.
        probs: their probabilities; they sum to 1.
        variables: the others that there are, in a set or not; those in any set by
            default.
    """

    target: str
    parent_sets: tuple[frozenset[str], ...]
    probs: np.ndarray
    variables: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        probs = np.asarray(self.probs, np.float64)
        sets = tuple(frozenset(s) for s in self.parent_sets)
        if probs.shape != (len(sets),) or not sets:
            raise ValueError(
                f"probs has shape {probs.shape} for {len(sets)} parent sets: give one "
                "probability for each, and at least one."
            )
        if not (np.isfinite(probs).all() and (probs >= 0).all()):
            raise ValueError(f"probs must be finite and >= 0, got {probs!r:.200}.")
        if not math.isclose(probs.sum(), 1, abs_tol=1e-4):
            raise ValueError(f"probs sum to {probs.sum():.6g}, not to 1.")
        if len(set(sets)) < len(sets):
            raise ValueError("a parent set is given twice: add up its probabilities.")
        object.__setattr__(self, "parent_sets", sets)
        object.__setattr__(self, "probs", probs / probs.sum())

    @cached_property
    def marginals(self) -> Mapping[str, float]:
        """Probability that each variable named in any set is a parent."""
        names = sorted(frozenset().union(*self.parent_sets))
        return MappingProxyType(
            {name: float(sum(p for s, p in self._pairs if name in s)) for name in names}
        )

    @property
    def _pairs(self) -> list[tuple[frozenset[str], float]]:
        return list(zip(self.parent_sets, self.probs.tolist(), strict=True))

    @cached_property
    def entropy(self) -> float:
        """Uncertainty in nats: 0 where one set is certain."""
        p = self.probs[self.probs > 0]
        return float(-(p * np.log(p)).sum())

    @property
    def best(self) -> frozenset[str]:
        """The most probable set."""
        return self.parent_sets[int(self.probs.argmax())]

    def prob(self, parents: Iterable[str]) -> float:
        """Probability of exactly these parents; 0 for a set that is not listed.

        Args:
            parents: their names.

        Raises:
            ValueError: one is no variable, or the target itself.
        """
        parents = frozenset(parents)
        there = self.variables or tuple(self.marginals)
        if odd := sorted(parents.difference(there)):
            raise ValueError(
                f"{odd[0]!r} cannot be a parent of {self.target!r}, only "
                f"{', '.join(there) or 'nothing'}: mend the name."
            )
        return dict(self._pairs).get(parents, 0.0)

    def distance(self, other: "ParentSetPosterior") -> float:
        """Total variation: half the sum of differences, from 0 (equal) to 1.

        Args:
            other: a distribution over parents of the same target.
        """
        mine, its = dict(self._pairs), dict(other._pairs)
        return 0.5 * sum(
            abs(mine.get(s, 0.0) - its.get(s, 0.0)) for s in mine.keys() | its.keys()
        )

    def given(
        self,
        required: Iterable[str] = (),
        forbidden: Iterable[str] = (),
    ) -> "ParentSetPosterior":
        """This distribution where some parents are known, and some excluded.

        Args:
            required: names that must be parents.
            forbidden: names that must not be.

        Raises:
            ValueError: no set with any probability is left.
        """
        required, forbidden = frozenset(required), frozenset(forbidden)
        left = [(s, p) for s, p in self._pairs if required <= s and not forbidden & s]
        total = sum(p for _, p in left)
        if not total > 0:
            raise ValueError(
                f"no set of parents of {self.target!r} has all of "
                f"{sorted(required)} and none of {sorted(forbidden)}: take a name out "
                "of one of the two."
            )
        return ParentSetPosterior(
            target=self.target,
            parent_sets=tuple(s for s, _ in left),
            probs=np.array([p / total for _, p in left]),
            variables=self.variables or tuple(self.marginals),
        )
