"""Gates that keep XLA from merging recomputed operations back into the first pass.

XLA on CPU drops optimisation barriers before it last merges equal operations, so
`jax.checkpoint` alone does not survive there. These gates hold by data flow: the
recomputation reads a boolean that the compiler cannot know before the gradient is
there. Each gate therefore also holds inside a `jit` of the user's own.

`cond`     a branch that is always taken. It runs as a whole when its turn comes, which
           is best for memory. XLA on CPU is slow at convolutions in branches; they are
           rewritten (`jaxprs.use_fast_convolutions`) where that is possible.
`select`   the saved inputs pass through a `where` on that boolean, where it is not.
`barrier`  an optimisation barrier, for GPU and TPU, which keep it.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from frugax.jaxprs import (
    JaxprEqn,
    has_convolution,
    has_explicit_axes,
    shape_of,
    trace,
    varying_axes,
)
from frugax.measure import GATE_SCOPE

Gate = Literal["cond", "select", "barrier"]


def choose_gate(eqns: Sequence[JaxprEqn], platform: str) -> Gate:
    """The gate for a segment with these operations on this kind of device."""
    if platform != "cpu":
        return "barrier"
    # Six nets planned for half and a quarter of their bytes under each gate: `cond`
    # took as few bytes and as little time as barriers that are kept, and `select` up to
    # a third more bytes (benchmarks/remat_gates.py at commit ff222437; table in
    # docs/maintainers.md).
    return "select" if any(map(_is_slow_in_branches, eqns)) else "cond"


def _is_slow_in_branches(eqn: JaxprEqn) -> bool:
    # Convolutions inside user-defined rules are the ones that cannot be rewritten.
    return eqn.primitive.name.startswith("custom_") and has_convolution(eqn)


def through_gate(
    gate: Gate,
    pull_back: Callable[[Sequence[Any], Sequence[Any]], list[Any]],
    inputs: Sequence[Any],
    cotangents: Sequence[Any],
    *,
    tied: Sequence[bool],
) -> list[Any]:
    """Run a segment's backward pass so that it is neither merged nor started early."""
    arrived = [c for c in cotangents if c.size]
    if not arrived:
        return pull_back(inputs, cotangents)  # no gradient arrives: nothing to protect
    if gate == "barrier":
        return pull_back(*wait_at_barrier(list(inputs), list(cotangents)))
    # All cotangents: a single one could be a constant that the compiler folds.
    true = opaque_true(arrived)
    if gate == "select":
        # Measured on a 24-layer MLP: as small as `cond` (26 of 71 MiB), but the
        # compiler may postpone gradients of weights and keep activations alive for
        # them. On a 4-layer transformer it held 127 MiB where `cond` held 104.
        pairs = zip(inputs, tied, strict=True)
        waiting = [wait_for(true, x) if t else x for x, t in pairs]
        return pull_back(waiting, cotangents)
    # A branch is a computation of its own, so common subexpressions are not found
    # across it, and XLA schedules it as one unit. A loop of one iteration would not do:
    # XLA inlines it.
    traced = trace(pull_back, (list(inputs), list(cotangents)))
    shapes = list(map(shape_of, traced.outputs))
    zeros = lambda *_: list(map(zeros_of, shapes))
    with jax.named_scope(GATE_SCOPE):
        return lax.cond(true, pull_back, zeros, list(inputs), list(cotangents))


def zeros_of(shape: jax.ShapeDtypeStruct, dtype: Any = None) -> jax.Array:
    """Zeros of this shape, of another type if `dtype` is given."""
    place = shape.sharding if has_explicit_axes(shape) else None
    zeros = jnp.zeros(shape.shape, dtype or shape.dtype, out_sharding=place)
    # Inside of `shard_map` both branches of a `cond`, or all carries of a loop, must
    # vary along the same axes.
    return vary_as(shape, zeros)


def vary_as(shape: jax.ShapeDtypeStruct, x: jax.Array) -> jax.Array:
    """`x`, which is the same on all devices, as varying as a value of this shape."""
    axes = tuple(sorted(varying_axes(shape)))
    return lax.pcast(x, axes, to="varying") if axes else x


def is_device_varying(atom: Any) -> bool:
    """Whether this variable differs between devices, inside of a `shard_map`."""
    return bool(varying_axes(atom.aval))


def opaque_true(arrays: Sequence[Any]) -> jax.Array:
    """A true boolean that no compiler pass works out: a sign bit is 0 or 1.

    It is true for every value, NaN and infinities included, and known only once all
    `arrays` are.
    """
    return jnp.stack([_sign_bit(a) < 2 for a in arrays if a.size]).all()


def _sign_bit(array: Any) -> jax.Array:
    # The maximum over a few numbers, not one number: XLA does not fuse a reduction into
    # its readers. It would look a single number up again in each of them, and keep the
    # whole array alive for that.
    spec = jax.typeof(array).sharding.spec
    if any(spec):
        # Axes that are divided by the type can be neither joined nor cut.
        numbers = array[tuple(slice(None if axis else 1) for axis in spec)]
    else:
        numbers = array.reshape(-1)[:16]
    # `bitcast_convert_type` does not take complex numbers.
    if jnp.iscomplexobj(numbers):
        numbers = numbers.real
    width = numbers.dtype.itemsize * 8
    bits = lax.bitcast_convert_type(numbers, jnp.dtype(f"uint{width}"))
    return lax.shift_right_logical(bits, jnp.full_like(bits, width - 1)).max()


def wait_for(true: jax.Array, x: Any) -> Any:
    """`x`, which now cannot be used before `true` is known."""
    if not jnp.issubdtype(x.dtype, jnp.inexact) or not _varies_as([true], x):
        return x
    return jnp.where(true, x, jnp.zeros_like(x))


def wait_at_barrier(
    inputs: Sequence[Any], arrived: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """`inputs` and `arrived`, none of which can be used before all are known."""
    waits = [_varies_as(arrived, x) for x in inputs]
    held = [x for x, w in zip(inputs, waits, strict=True) if w]
    held, arrived = lax.optimization_barrier((held, list(arrived)))
    rest = iter(held)
    both = zip(inputs, waits, strict=True)
    return [next(rest) if w else x for x, w in both], arrived


def _varies_as(arrived: Sequence[Any], x: Any) -> bool:
    """Whether `x` may wait for these values and keep its type.

    Inside of `shard_map` a value that is the same on all devices would differ between
    them, by its type, once it has waited for one that does.
    """
    axes = {a for value in arrived for a in varying_axes(jax.typeof(value))}
    return axes <= varying_axes(jax.typeof(x))
