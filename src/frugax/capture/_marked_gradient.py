"""`MarkedGradient`: a gradient in a traced program, as two operations of our own."""

import dataclasses
from typing import Any

from jax.interpreters import mlir

from frugax.jaxprs import (
    ClosedJaxpr,
    InlinedPrimitive,
    Jaxpr,
    jaxpr_as_fun,
    jaxprs_in_params,
)


@dataclasses.dataclass(frozen=True, eq=False)
class MarkedGradient:
    """One function that is differentiated.

    Attributes:
        function: the traced function of its constants and its flat arguments; it
            returns its flat results, then the auxiliary ones.
        num_consts: the number of leading inputs that are not differentiated.
        num_outputs: the number of leading results that are differentiated.
        forward: the inputs of `function` to its results and the residuals.
        backward: the residuals and the cotangents to the gradients.
        source: `file.py:line` of the user's code that took the gradient.
    """

    function: ClosedJaxpr
    num_consts: int
    num_outputs: int
    forward: ClosedJaxpr
    backward: ClosedJaxpr
    source: str

    @property
    def num_results(self) -> int:
        """The number of results of `function`."""
        return len(self.function.jaxpr.outvars)

    @property
    def has_custom_vjp(self) -> bool:
        """Whether a part of the function has a rule of its own for its gradient."""
        return _has_custom_vjp(self.function.jaxpr)

    @property
    def residual_bytes(self) -> int:
        """Bytes that the forward pass hands to the backward pass."""
        residuals = self.forward.out_avals[self.num_results :]
        return sum(x.size * x.dtype.itemsize for x in residuals if hasattr(x, "dtype"))


def _has_custom_vjp(jaxpr: Jaxpr) -> bool:
    return any(
        e.primitive.name == "custom_vjp_call"
        or any(map(_has_custom_vjp, jaxprs_in_params(e.params)))
        for e in jaxpr.eqns
    )


# Parameters: `gradient`, a MarkedGradient; `call`, the jaxpr that it stands for; and
# `is_forward`; of a backward pass for rows of cotangents also `is_mapped`.
gradient_p = InlinedPrimitive("marked_gradient")


@gradient_p.def_effectful_abstract_eval
def _abstract(*_: Any, call: ClosedJaxpr, **__: Any) -> tuple[list[Any], Any]:
    return list(call.out_avals), call.effects


def _inline(*operands: Any, call: ClosedJaxpr, **_: Any) -> list[Any]:
    return jaxpr_as_fun(call)(*operands)


mlir.register_lowering(gradient_p, mlir.lower_fun(_inline, multiple_results=True))
