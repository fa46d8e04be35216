"""`ParentSetPosterior`: a distribution over the parent sets of one variable."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType

import numpy as np
from jaxtyping import Float


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ParentSetPosterior:
    """A distribution over the parent sets of one variable.

    Attributes:
        target: the variable.
        parent_sets: the possible sets, each once.
        probs: their probabilities; they sum to 1.
        variables: all other variables; by default those in any set.
    """

    target: str
    parent_sets: tuple[frozenset[str], ...]
    probs: Float[np.ndarray, " sets"]
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
        # Thousands of float32 probabilities sum to 1 up to rounding only; the division
        # below removes the rest.
        if not math.isclose(probs.sum(), 1, abs_tol=1e-4):
            raise ValueError(f"probs sum to {probs.sum():.6g}, not to 1.")
        if len(set(sets)) < len(sets):
            raise ValueError("a parent set is given twice: add up its probabilities.")
        object.__setattr__(self, "parent_sets", sets)
        object.__setattr__(self, "probs", probs / probs.sum())

    @cached_property
    def marginals(self) -> Mapping[str, float]:
        """For each variable in any set, the probability that it is a parent."""
        names = sorted(frozenset().union(*self.parent_sets))
        # Read-only, because all readers share the cached mapping.
        return MappingProxyType(
            {name: float(sum(p for s, p in self._pairs if name in s)) for name in names}
        )

    @property
    def _pairs(self) -> list[tuple[frozenset[str], float]]:
        return list(zip(self.parent_sets, self.probs.tolist(), strict=True))

    @cached_property
    def entropy(self) -> float:
        """Entropy in nats; 0 if one set is certain."""
        # 0 log 0 is 0 by continuity, and NaN in floating point.
        p = self.probs[self.probs > 0]
        return float(-(p * np.log(p)).sum())

    @property
    def best(self) -> frozenset[str]:
        """The most probable set (the MAP estimate)."""
        return self.parent_sets[int(self.probs.argmax())]

    def prob(self, parents: Iterable[str]) -> float:
        """Return the probability of exactly these parents; 0 for an unlisted set.

        Args:
            parents: their names.

        Raises:
            ValueError: a name is not a variable, or is the target itself.
        """
        parents = frozenset(parents)
        known = self.variables or tuple(self.marginals)
        if unknown := sorted(parents.difference(known)):
            raise ValueError(
                f"{unknown[0]!r} cannot be a parent of {self.target!r}, only "
                f"{', '.join(known) or 'nothing'}: correct the name."
            )
        return dict(self._pairs).get(parents, 0.0)

    def condition(
        self,
        required: Iterable[str] = (),
        forbidden: Iterable[str] = (),
    ) -> "ParentSetPosterior":
        """Condition on known parents and known non-parents.

        Args:
            required: names that must be parents.
            forbidden: names that must not be.

        Raises:
            ValueError: the remaining sets have probability 0.
        """
        required, forbidden = frozenset(required), frozenset(forbidden)
        # Knowledge that excludes sets has a likelihood of 0 or 1, so Bayes' rule leaves
        # the remaining sets and rescales them.
        kept = [(s, p) for s, p in self._pairs if required <= s and not forbidden & s]
        total = sum(p for _, p in kept)
        if not total > 0:
            raise ValueError(
                f"no set of parents of {self.target!r} has all of "
                f"{sorted(required)} and none of {sorted(forbidden)}: remove a name "
                "from one of them."
            )
        return ParentSetPosterior(
            target=self.target,
            parent_sets=tuple(s for s, _ in kept),
            probs=np.array([p / total for _, p in kept]),
            variables=self.variables or tuple(self.marginals),
        )
