"""Penalties on an array, such as a weight, to add to a loss."""

import dataclasses

from frugax.models.graph import Composite, Connection, op
from frugax.models.ops import NonNegative


@dataclasses.dataclass(frozen=True)
class _Penalty(Composite):
    """Base of penalties on an array, with their factor."""

    # Below 0 a penalty would reward large weights without limit.
    scale: NonNegative


@dataclasses.dataclass(frozen=True)
class L1(_Penalty):
    """L1 penalty on an array: scale times the sum of |x|, to add to a loss.

    Attributes:
        scale: the factor; >= 0.
    """

    def build(self, input: Connection) -> Connection:
        # The gradient has one size at any distance, and so pulls small weights to 0
        # (the lasso, Tibshirani 1996).
        return op("l1_penalty")(input) * self.scale


@dataclasses.dataclass(frozen=True)
class L2(_Penalty):
    """L2 penalty on an array: scale times the sum of x^2, to add to a loss.

    Attributes:
        scale: the factor; >= 0.

    Example:
        >>> from frugax.models import IOKey, L2, Linear, Model, MSE, weight_of
        >>> output = Linear(1)(IOKey("input", shape=("batch", 3)))
        >>> error = MSE()(output, IOKey("target", shape=("batch", 1)))
        >>> model = Model.create(loss=error + L2(1e-4)(weight_of(output)))
    """

    def build(self, input: Connection) -> Connection:
        # Part of the loss, so Adam rescales its gradient: this is not decoupled weight
        # decay (Loshchilov & Hutter 2019, arXiv:1711.05101).
        return op("l2_penalty")(input) * self.scale
