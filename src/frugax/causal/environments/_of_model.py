"""Any model as a problem with a known optimum.

Reads: an SCM and the ranges of what may be set. Gives: an `Environment`, so that regret
on random models is measured against their true optimum.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from frugax.causal.scm import SCM, expectation

from ._environment import Environment


def environment_of(
    scm: SCM,
    ranges: Mapping[str, tuple[float, float]] | tuple[float, float] = (-3.0, 3.0),
    *,
    minimise: bool = True,
    largest_set: int = 1,
    nodes: int = 2048,
) -> Environment:
    """A model to optimise, with the true optimum found by quadrature.

    Args:
        scm: the model; needs a target.
        ranges: what may be set and from where to where; one pair for every variable
            that is seen, but the target.
        minimise: whether a small target is good.
        largest_set: how many variables one experiment may set.
        nodes: points in the space of the noise; see `expectation`.

    Raises:
        ValueError: the model has no target, or a range is for no variable that may be
            set, is empty, or is of a discrete one.

    Example:
        >>> scm = SCM.linear({"x": {}, "y": {"x": -2.0}}, target="y")
        >>> print(environment_of(scm).best)
        do(x = 3)
    """
    target = scm.target
    if target is None:
        raise ValueError("the model has no target: scm.with_target(name) gives one.")
    free = [name for name in scm.observed if name != target]
    if not isinstance(ranges, Mapping):
        ranges = dict.fromkeys(free, ranges)
    for name, (low, high) in ranges.items():
        if name not in free:
            raise ValueError(
                f"ranges has {name!r}, which cannot be set: it may be "
                f"{', '.join(free):.200}."
            )
        if states := scm.states(name):
            raise ValueError(
                f"{name!r} has the states {', '.join(states):.200} and no range to "
                "search: compare them by expectation(scm, target, values)."
            )
        if not -np.inf < low < high < np.inf:
            raise ValueError(f"range of {name!r} must go up, not from {low} to {high}.")
    causes = scm.ancestors(target)

    def mean(do: Mapping[str, Any]) -> np.ndarray:
        # What does not reach the target changes nothing and need not be evaluated.
        reaching = {name: value for name, value in do.items() if name in causes}
        means = expectation(scm, target, reaching, nodes=nodes)
        points = max((len(value) for value in do.values()), default=1)
        return np.broadcast_to(means, (points,))

    return Environment(
        name="model",
        scm=scm,
        ranges=dict(ranges),
        minimise=minimise,
        largest_set=largest_set,
        mean=mean,
        grid=121,
    )
