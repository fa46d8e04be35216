"""The op for operations of torch's ATen library, which imported modules are made of."""

from typing import Any

from jaxtyping import Shaped

from ._table import op

Array = Shaped[Any, "*shape"]
Result = Shaped[Any, "*new_shape"]


@op()
def aten(
    xp: Any,
    *inputs: Array,
    function: str,
    arguments: tuple[Any, ...] = (),
    named: tuple[Any, ...] = (),
    results: int = 1,
) -> Result:
    """An operation of ATen, such as `"layer_norm.default"`, by torch's rules.

    `arguments` and `named` are those of torch's schema, with `"@0"` for the first input
    and `"dtype:float"` for the dtype of the backend; `results` counts the outputs.
    """
    return xp.aten(function, inputs, arguments, named)
