"""Knowledge gradient: the expected improvement of the recommendation by an experiment.

An outcome reweights the posterior samples (worlds) by how well they predicted it; then
another intervention may be the best. The value of the experiment is the improvement of
the recommendation, averaged over the outcomes that the worlds predict.

References:
    Frazier, Powell & Dayanik 2009, INFORMS J. Computing 21:599-613 (the knowledge
    gradient).
"""

import dataclasses

import numpy as np
from jaxtyping import Float, Int

from ._outlook import Outlook


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """The knowledge gradient of one experiment, in the target's unit.

    Attributes:
        total: expected improvement of the recommendation.
        cost: the price of the experiment, in budget units.
    """

    total: float
    cost: float

    @property
    def per_cost(self) -> float:
        """The total value divided by the price."""
        return self.total / self.cost


def value_of(outlook: Outlook, point: int) -> Value:
    """Compute the knowledge gradient of one experiment."""
    total = float(total_values(outlook, np.array([point]))[0])
    return Value(total=total, cost=float(outlook.price[point]))


def total_values(
    outlook: Outlook, points: Int[np.ndarray, " points"]
) -> Float[np.ndarray, " points"]:
    """Compute the knowledge gradients of several experiments."""
    loss, now = _permitted_loss(outlook), float(outlook.mean[outlook.best])
    each = [now - (_reweight(outlook, int(c)) @ loss).min(1).mean() for c in points]
    worth = np.maximum(np.array(each), 0.0)
    return worth if outlook.success is None else worth * outlook.success[points]


def _permitted_loss(outlook: Outlook) -> Float[np.ndarray, "worlds points"]:
    return outlook.loss[:, np.isfinite(outlook.mean)]


def _reweight(outlook: Outlook, point: int) -> Float[np.ndarray, "answers worlds"]:
    """Posterior weights of the worlds after the outcome that each of them predicts."""
    answer = outlook.loss[:, point]
    # The floor keeps likelihoods finite where the outcome is noiseless.
    noise = max(outlook.noise, 1e-6 * float(np.ptp(answer))) or 1.0
    # Row i is the outcome that world i predicts, column j its likelihood in world j.
    # The largest is subtracted: a row of underflows could not be normalized.
    logs = -0.5 * ((answer[:, None] - answer) / noise) ** 2
    weights = np.exp(logs - logs.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)
