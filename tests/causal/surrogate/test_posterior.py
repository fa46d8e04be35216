"""A distribution over parent sets, and the quantities derived from it."""

import numpy as np
import pytest

from frugax.causal import ParentSetPosterior
from refusals import refuses


def _posterior(probs=(0.5, 0.3, 0.2)):
    sets = (frozenset(), frozenset("a"), frozenset("ab"))
    return ParentSetPosterior(target="y", parent_sets=sets, probs=np.array(probs))


def test_derived_quantities():
    p = _posterior()
    assert p.marginals == pytest.approx({"a": 0.5, "b": 0.2})
    expected = -sum(x * np.log(x) for x in (0.5, 0.3, 0.2))
    assert p.entropy == pytest.approx(expected)
    assert p.best == frozenset()
    assert p.prob({"b", "a"}) == pytest.approx(0.2)
    assert p.prob({"b"}) == 0
    assert _posterior((1.0, 0.0, 0.0)).entropy == 0


def test_only_possible_parents_are_scored():
    p = _posterior()
    for wrong in ("y", "q"):
        with refuses(ValueError, wrong, "'y'"):
            p.prob({"a", wrong})
    assert p.condition(forbidden="b").prob({"b"}) == 0


def test_given_conditions():
    p = _posterior().condition(required=frozenset("a"))
    assert p.prob({"a"}) == pytest.approx(0.6)
    assert _posterior().condition(forbidden=frozenset("b")).prob(
        {"a"}
    ) == pytest.approx(0.375)
    with refuses(ValueError, "'c'"):
        _posterior().condition(required=frozenset("c"))


@pytest.mark.parametrize(
    ("sets", "probs", "named"),
    [
        (("a",), (0.5,), 0.5),
        (("a", "b"), (1.0,), 2),
        (("a", "a"), (0.5, 0.5), "twice"),
        (("a", "b"), (1.5, -0.5), ""),
        (("a", "b"), (1.0, float("nan")), "finite"),
    ],
)
def test_an_invalid_distribution_is_refused(sets, probs, named):
    with refuses(ValueError, named):
        ParentSetPosterior(
            target="y",
            parent_sets=tuple(frozenset(s) for s in sets),
            probs=np.array(probs),
        )
