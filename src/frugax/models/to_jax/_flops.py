"""Count the flops of one op's forward pass, by tracing it, for a model's summary."""

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from frugax.jaxprs import flops
from frugax.models.graph import OpNode, Spec, hash_key, op_arguments, op_attributes
from frugax.models.ops import OPS

from ._namespace import JaxNamespace


def flops_of(
    node: OpNode, known: Mapping[str, Any], float_dtype: np.dtype
) -> int | None:
    """Count the floating-point operations of a node's forward pass, for any backend."""
    op = OPS.get(node.op)
    if op is None:
        return None
    args: list[Any] = []
    for i, key in enumerate(op_arguments(op, node.inputs)):
        value = None
        if key is not None:
            value = known[key]
        # A torch key is an int64 tensor, from which JAX cannot draw. The count is of
        # JAX's program for both backends.
        if op.is_random and i == 0:
            value = "key"
        elif not isinstance(value, (Spec, bool, int, float, type(None))):
            # A constant of a torch model is a tensor: str(torch.float32) is
            # "torch.float32". JAX counts the flops of both backends, so that summaries
            # agree.
            value = Spec(tuple(value.shape), np.dtype(str(value.dtype).split(".")[-1]))
        args.append(value)
    tensors = tuple(args)
    attrs = tuple(op_attributes(node, lambda key: known[key].shape).items())
    return _count(node.op, tensors, attrs, hash_key((tensors, attrs)), float_dtype)


@functools.lru_cache(maxsize=4096)
def _count(
    name: str,
    args: tuple[Any, ...],
    attrs: tuple[tuple[str, Any], ...],
    _exact: Any,
    float_dtype: np.dtype,
) -> int:
    xp = JaxNamespace(float_dtype)
    arrays: list[Any] = []
    for value in args:
        if isinstance(value, Spec):
            arrays.append(jax.ShapeDtypeStruct(value.shape, value.dtype))
        elif isinstance(value, str):  # stands for a random key
            arrays.append(jax.eval_shape(lambda: jax.random.key(0)))

    def body(*arrays: Any) -> Any:
        return OPS[name](xp, *_fill_in(args, arrays), **dict(attrs))

    # float64 shapes need 64-bit numbers even for a trace; without them make_jaxpr would
    # count another program.
    with jax.enable_x64(float_dtype.itemsize == 8):
        return flops(jax.make_jaxpr(body)(*arrays).jaxpr)


def _fill_in(args: Iterable[Any], arrays: Iterable[Any]) -> list[Any]:
    """Replace each spec, or text, among the arguments by the next array."""
    rest = iter(arrays)
    return [next(rest) if isinstance(a, (Spec, str)) else a for a in args]
