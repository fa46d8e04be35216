"""Layers of activation functions, and dropout; `frugax.models.ops` has the formulas.

All but Softmax, LogSoftmax and Glu are elementwise; all but Glu keep the shape.
"""

import dataclasses

from frugax.models.graph import Fill, Primitive, Shape, Weight, require_static

from ._settings import Fraction, Positive, Weightless


@dataclasses.dataclass(frozen=True)
class Relu(Weightless):
    """max(x, 0)."""

    op = "relu"


@dataclasses.dataclass(frozen=True)
class Relu6(Weightless):
    """`x` within [0, 6]."""

    # The bound keeps activations within the range of low-precision arithmetic (Sandler
    # et al. 2018, arXiv:1801.04381).
    op = "relu6"


@dataclasses.dataclass(frozen=True)
class LeakyRelu(Weightless):
    """`x` above 0, slope * x below."""

    # The value of Maas et al., and torch's default.
    slope: float = 0.01

    op = "leaky_relu"


@dataclasses.dataclass(frozen=True)
class PRelu(Primitive):
    """`x` above 0, weight * x below, with a weight for each feature of the last axis.

    He et al. 2015, arXiv:1502.01852.

    Attributes:
        slope: the initial weight.
        shared: whether all features share one weight.
    """

    # The paper's initial value. It takes weight decay off these weights, because decay
    # would pull them to 0, that is, to a Relu.
    slope: float = 0.25
    shared: bool = False

    op = "prelu"
    weight_names = frozenset({"weight"})

    def weights(self, input: Shape) -> dict[str, Weight]:
        features = 1
        if not self.shared:
            features = require_static(input[-1])
        return {"weight": Weight((features,), Fill(self.slope))}


@dataclasses.dataclass(frozen=True)
class Elu(Weightless):
    """`x` above 0, alpha (exp(x) - 1) below."""

    # 1 makes the derivative continuous at 0.
    alpha: float = 1.0

    op = "elu"


@dataclasses.dataclass(frozen=True)
class Celu(Weightless):
    """`x` above 0, alpha (exp(x / alpha) - 1) below; alpha > 0."""

    # Unlike Elu's, the derivative is continuous at 0 for every alpha.
    alpha: Positive = 1.0

    op = "celu"


@dataclasses.dataclass(frozen=True)
class Selu(Weightless):
    """The elu that keeps mean 0 and variance 1."""

    # Its fixed point assumes weights of variance 1 / inputs: Glorot's in a square
    # Linear, and half of He's.
    op = "selu"


@dataclasses.dataclass(frozen=True)
class Silu(Weightless):
    """`x` * sigmoid(x)."""

    op = "silu"


@dataclasses.dataclass(frozen=True)
class Swish(Weightless):
    """`x` * sigmoid(beta x)."""

    beta: float = 1.0

    op = "swish"


@dataclasses.dataclass(frozen=True)
class Gelu(Weightless):
    """`x` times the normal distribution function of x, exact or by tanh."""

    # GPT-2 was trained with the tanh form: checkpoints need the form they were trained
    # with.
    approximate: bool = False

    op = "gelu"


@dataclasses.dataclass(frozen=True)
class Mish(Weightless):
    """`x` * tanh(softplus(x))."""

    op = "mish"


@dataclasses.dataclass(frozen=True)
class Sigmoid(Weightless):
    """1 / (1 + exp(-x))."""

    op = "sigmoid"


@dataclasses.dataclass(frozen=True)
class LogSigmoid(Weightless):
    """log(sigmoid(x)), without overflow."""

    op = "log_sigmoid"


@dataclasses.dataclass(frozen=True)
class HardSigmoid(Weightless):
    """relu6(x + 3) / 6."""

    # MobileNetV3's form, and torch's. Keras 2 has 0.2 x + 0.5 under the same name.
    op = "hard_sigmoid"


@dataclasses.dataclass(frozen=True)
class HardSwish(Weightless):
    """`x` * hard_sigmoid(x)."""

    # Piecewise polynomial, for devices without a fast exp (Howard et al. 2019, sec.
    # 5.2).
    op = "hard_swish"


@dataclasses.dataclass(frozen=True)
class Tanh(Weightless):
    """tanh(x)."""

    op = "tanh"


@dataclasses.dataclass(frozen=True)
class HardTanh(Weightless):
    """`x` within [-1, 1]."""

    op = "hard_tanh"


@dataclasses.dataclass(frozen=True)
class Softplus(Weightless):
    """log(1 + exp(x)), without overflow."""

    op = "softplus"


@dataclasses.dataclass(frozen=True)
class Softsign(Weightless):
    """`x` / (1 + |x|)."""

    # It nears its limits polynomially, tanh exponentially: gradients fade more slowly
    # (Glorot & Bengio 2010).
    op = "softsign"


@dataclasses.dataclass(frozen=True)
class Softmax(Weightless):
    """exp(x) divided by its sum along the axis."""

    axis: int = -1

    op = "softmax"


@dataclasses.dataclass(frozen=True)
class LogSoftmax(Weightless):
    """log(softmax(x)), without overflow."""

    axis: int = -1

    op = "log_softmax"


@dataclasses.dataclass(frozen=True)
class Glu(Weightless):
    """First half of the axis times the sigmoid of the second; half the length."""

    axis: int = -1

    op = "glu"


@dataclasses.dataclass(frozen=True)
class Dropout(Weightless):
    """Set numbers to 0 with probability `rate`, and divide the others by 1 - rate.

    The random key goes in with the data as `key`, and every dropout layer derives its
    own. A model that is compiled with `inference=True` has no dropout and needs no key.
    Srivastava et al. 2014, J. Machine Learning Research 15:1929-1958.

    Attributes:
        rate: the probability, in [0, 1].

    Example:
        >>> import jax
        >>> from frugax.models import Dropout, JaxBackend, compile
        >>> backend = JaxBackend()
        >>> model = compile(Dropout(0.5), backend, shapes={"input": (2, 3)})
        >>> data = {"input": backend.ones(2, 3), "key": jax.random.key(0)}
        >>> sorted({float(x) for x in model.evaluate({}, data)["output"].ravel()})
        [0.0, 2.0]
    """

    # The paper's rate for hidden units; it keeps 0.8 of the inputs.
    rate: Fraction = 0.5

    op = "dropout"

    def inference_layer(self) -> None:
        return None  # readers get the input instead
