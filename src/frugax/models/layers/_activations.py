"""`PRelu`, an activation with a weight, and `Dropout`."""

import dataclasses

from frugax.models.graph import Fill, Primitive, Shape, Weight, require_static
from frugax.models.ops import Fraction

from ._field_op import FieldOp


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
class Dropout(FieldOp):
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
    weight_names = frozenset()

    def inference_layer(self) -> None:
        return None  # readers get the input instead
