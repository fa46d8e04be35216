"""Numbers left out at random while training."""

import dataclasses

from ._settings import check_fraction
from ._weightless import Weightless


@dataclasses.dataclass(frozen=True)
class Dropout(Weightless):
    """Each number is 0 with probability `rate`, else divided by 1 - rate.

    The random key goes in with the data as `key`; each place draws from its own. A
    model compiled with `inference=True` has no dropout and needs no key.
    Srivastava et al. 2014, J. Machine Learning Research 15:1929-1958.

    Attributes:
        rate: in [0, 1].

    Example:
        >>> import jax
        >>> from frugax.models import Dropout, JaxBackend, compile
        >>> backend = JaxBackend()
        >>> model = compile(Dropout(0.5), backend, shapes={"input": (2, 3)})
        >>> data = {"input": backend.ones(2, 3), "key": jax.random.key(0)}
        >>> sorted({float(x) for x in model.evaluate({}, data)["output"].ravel()})
        [0.0, 2.0]
    """

    rate: float = 0.5

    op = "dropout"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction(self, "rate")

    def inference_layer(self) -> None:
        return None
