"""Ops for activation functions, with equal gradients in JAX and torch.

At a kink the gradient is that of the flat side: relu'(0) = 0, relu6'(6) = 0. Both
libraries are made to agree there, so that gradients can be compared exactly.
"""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Shaped

from ._elementwise import declare_unary
from ._settings import Positive
from ._table import op

Array = Shaped[Any, "*shape"]
Axis = int | Sequence[int] | None

# Those that are the library's own.
_UNARY = {
    "relu": "max(input, 0), with gradient 0 at 0.",
    # Its fixed point assumes weights of variance 1 / inputs: Glorot's in a square
    # Linear, and half of He's. alpha and scale solve the paper's fixed-point equations
    # for mean 0 and variance 1.
    "selu": "The elu that keeps mean 0 and variance 1. Klambauer 2017, "
    "arXiv:1706.02515.",
    "silu": "`input` * sigmoid(input). Hendrycks & Gimpel 2016, arXiv:1606.08415, "
    "sec. 2.",
    "sigmoid": "1 / (1 + exp(-input)).",
    "log_sigmoid": "log(sigmoid(input)), without overflow.",
    "softplus": "log(1 + exp(input)), without overflow. Dugas et al. 2000, NeurIPS.",
    "mish": "`input` * tanh(softplus(input)). Misra 2019, arXiv:1908.08681.",
}
for _name, _doc in _UNARY.items():
    declare_unary(_name, _doc, "float")


@op(promote="float")
def relu6(xp: Any, input: Array) -> Array:
    """Within [0, 6], with gradient 0 at both. Sandler et al. 2018, arXiv:1801.04381."""
    # The bound keeps activations within the range of low-precision arithmetic.
    return xp.clip(input, 0.0, 6.0)


@op(promote="float")
def leaky_relu(xp: Any, input: Array, *, slope: float = 0.01) -> Array:
    """`input` above 0, slope * input elsewhere. Maas et al. 2013, ICML workshop."""
    # Greater, not greater or equal: at 0 the gradient is the slope, as in torch.
    return xp.where(xp.greater(input, 0), input, input * slope)


@op(promote="float")
def prelu(xp: Any, input: Array, slope: Shaped[Any, "#features"]) -> Array:
    """`input` above 0, slope * input below. He et al. 2015, arXiv:1502.01852."""
    return xp.where(xp.greater(input, 0), input, xp.multiply(input, slope))


@op(promote="float")
def elu(xp: Any, input: Array, *, alpha: float = 1.0) -> Array:
    """`alpha` (exp(input) - 1) below 0. Clevert et al. 2015, arXiv:1511.07289."""
    # An alpha of 1 makes the derivative continuous at 0.
    return xp.elu(input, alpha)


@op(promote="float")
def celu(xp: Any, input: Array, *, alpha: Positive = 1.0) -> Array:
    """`alpha` (exp(input / alpha) - 1) below 0. Barron 2017, arXiv:1704.07483."""
    # Unlike that of elu the derivative is continuous at 0 for every alpha.
    return xp.celu(input, alpha)


@op(promote="float")
def swish(xp: Any, input: Array, *, beta: float = 1.0) -> Array:
    """`input` * sigmoid(beta input). Ramachandran et al. 2017, arXiv:1710.05941."""
    # Each library has this one as a function of its own.
    if beta == 1:
        return xp.silu(input)
    return input * xp.sigmoid(input * beta)


@op(promote="float")
def gelu(xp: Any, input: Array, *, approximate: bool = False) -> Array:
    """`input` times the normal distribution function of input, exact or by tanh.

    Hendrycks & Gimpel 2016, arXiv:1606.08415.
    """
    # GPT-2 was trained with the tanh form: checkpoints need the form they were trained
    # with.
    return xp.gelu(input, approximate=approximate)


@op(promote="float")
def hard_sigmoid(xp: Any, input: Array) -> Array:
    """relu6(input + 3) / 6. Howard et al. 2019, arXiv:1905.02244."""
    # torch's form too. Keras 2 has 0.2 x + 0.5 under the same name.
    return xp.clip(input + 3.0, 0.0, 6.0) * (1 / 6)


@op(promote="float")
def hard_swish(xp: Any, input: Array) -> Array:
    """`input` * hard_sigmoid(input). Howard et al. 2019, arXiv:1905.02244."""
    # Piecewise polynomial, for devices without a fast exp (sec. 5.2).
    return input * (xp.clip(input + 3.0, 0.0, 6.0) * (1 / 6))


@op(promote="float")
def hard_tanh(xp: Any, input: Array) -> Array:
    """Within [-1, 1], with gradient 0 at both ends and beyond. Collobert 2004."""
    return xp.clip(input, -1.0, 1.0)


@op(promote="float")
def softsign(xp: Any, input: Array) -> Array:
    """`input` / (1 + |input|). Turian et al. 2009, NAACL."""
    # It nears its limits polynomially, tanh exponentially: gradients fade more slowly
    # (Glorot & Bengio 2010).
    return input / (xp.absolute(input) + 1.0)


@op(promote="float")
def softmax(xp: Any, input: Array, *, axis: Axis = -1) -> Array:
    """exp(input) divided by its sum along the axes."""
    return xp.softmax(input, axis)


@op(promote="float")
def log_softmax(xp: Any, input: Array, *, axis: Axis = -1) -> Array:
    """log(softmax(input)), without overflow."""
    return xp.log_softmax(input, axis)


@op(promote="float")
def glu(xp: Any, input: Array, *, axis: int = -1) -> Shaped[Any, "*half"]:
    """First half times sigmoid of the second. Dauphin et al. 2016, arXiv:1612.08083."""
    # (slice(None),) * -1 is empty: a negative axis would cut the first one.
    axis = axis % input.ndim
    if input.shape[axis] % 2 != 0:
        raise ValueError(
            f"glu: axis {axis} must have an even length, got {input.shape[axis]}."
        )
    half = input.shape[axis] // 2
    front = (slice(None),) * axis
    value = xp.getitem(input, (*front, slice(None, half)))
    gate = xp.getitem(input, (*front, slice(half, None)))
    return value * xp.sigmoid(gate)
