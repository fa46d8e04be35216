"""The op for operations of torch's ATen library, which imported modules are made of."""

import operator
from typing import Any

from jaxtyping import Shaped

from ._table import op

Array = Shaped[Any, "*shape"]
Result = Shaped[Any, "*new_shape"]

_RELATIONS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@op()
def aten(
    xp: Any,
    *inputs: Array,
    function: str,
    arguments: tuple[Any, ...] = (),
    named: tuple[Any, ...] = (),
    results: int = 1,
    conditions: tuple[Any, ...] = (),
) -> Result:
    """An operation of ATen, such as `"layer_norm.default"`, by torch's rules.

    `arguments` and `named` are those of torch's schema, with `"@0"` for the first input
    and `"dtype:float"` for the dtype of the backend; `results` counts the outputs.
    `conditions` on lengths are checked: each is a length, a relation such as `"<="`,
    another length, and its text.

    Raises:
        ValueError: a condition does not hold.
    """
    # Not for lengths that stand in for free ones: JAX's symbols, torch's on "meta".
    stands_in = str(getattr(xp, "device", "")) == "meta"
    for left, relation, right, text in conditions:
        known = isinstance(left, int) and isinstance(right, int) and not stands_in
        if known and not _RELATIONS[relation](left, right):
            raise ValueError(
                "the module takes another branch for this length: it was imported "
                f"where {text}; import it with an example of this length"
            )
    return xp.aten(function, inputs, arguments, named)
