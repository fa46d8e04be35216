"""What the answer of an experiment is worth before it is known.

An answer makes worlds that predicted it likelier and others less likely; then another
intervention may be the best. What is worth is how much better that one is, on average
over the answers that are to be expected.

References:
    Frazier, Powell & Dayanik 2009, INFORMS J. Computing 21:599-613 (the knowledge
    gradient).
"""

import dataclasses

import numpy as np
from jaxtyping import Float

from ._outlook import Outlook


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """The worth of one experiment, in the target's unit.

    Attributes:
        learn: what knowing the target's causes better would be worth.
        exploit: what knowing more of how strong effects are would add.
        cost: what the experiment costs, in budget units.
    """

    learn: float
    exploit: float
    cost: float

    @property
    def total(self) -> float:
        """Expected betterment of the recommendation, in the target's unit."""
        return self.learn + self.exploit

    @property
    def per_cost(self) -> float:
        """The same for one unit of the budget."""
        return self.total / self.cost


def value_of(outlook: Outlook, point: int) -> Value:
    """What the answer of an experiment is worth.

    Args:
        outlook: what is known.
        point: the experiment.
    """
    loss, now = _sure_loss(outlook), float(outlook.mean[outlook.best])
    weights = _after(outlook, point)
    total = now - float((weights @ loss).min(1).mean())
    # The same answers, but each only tells which causes are likely.
    classes = (outlook.causes[:, None] == np.unique(outlook.causes)).astype(float)
    shares = weights @ classes / classes.sum(0)
    learn = now - float((shares @ classes.T @ loss).min(1).mean())
    total = max(total, 0.0)
    learn = min(max(learn, 0.0), total)
    return Value(learn=learn, exploit=total - learn, cost=float(outlook.price[point]))


def totals(outlook: Outlook, points: np.ndarray) -> Float[np.ndarray, " points"]:
    """What the answers of several experiments are worth.

    Args:
        outlook: what is known.
        points: the experiments.
    """
    loss, now = _sure_loss(outlook), float(outlook.mean[outlook.best])
    each = [now - (_after(outlook, int(c)) @ loss).min(1).mean() for c in points]
    return np.maximum(np.array(each), 0.0)


def _sure_loss(outlook: Outlook) -> Float[np.ndarray, "worlds points"]:
    return outlook.loss[:, np.isfinite(outlook.mean)]


def _after(outlook: Outlook, point: int) -> Float[np.ndarray, "answers worlds"]:
    """How likely each world is after the answer that each of them expects."""
    answer = outlook.loss[:, point]
    noise = max(outlook.noise, 1e-6 * float(np.ptp(answer))) or 1.0
    logs = -0.5 * ((answer[:, None] - answer) / noise) ** 2
    weights = np.exp(logs - logs.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)
