"""Gates: what keeps a compiler from merging recomputation back into the first pass.

XLA on CPU drops optimisation barriers before it last merges equal operations, so
`jax.checkpoint` alone does not survive there. These gates hold by data flow: the
second pass reads a truth that the compiler cannot know before the gradient is there.
Each gate therefore also holds inside a jit of the user's own.

`cond`     a branch that is always taken. It runs as a whole, when its turn comes: the
           best for memory. XLA on CPU is slow at convolutions in branches; those are
           rewritten (`jaxprs.use_fast_convolutions`), where that can be done.
`select`   the saved inputs pass through a `where` on that truth; where it cannot.
`barrier`  an optimisation barrier; for GPU and TPU, which keep it.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from frugax.jaxprs import JaxprEqn, has_convolution

Gate = Literal["cond", "select", "barrier"]


def choose_gate(eqns: Sequence[JaxprEqn], platform: str) -> Gate:
    """The gate for a segment with these operations on this kind of device."""
    if platform != "cpu":
        return "barrier"
    return "select" if any(map(_slow_in_branches, eqns)) else "cond"


def _slow_in_branches(eqn: JaxprEqn) -> bool:
    # Convolutions are rewritten, see `jaxprs.use_fast_convolutions`, but for those in
    # rules of the user's own.
    return eqn.primitive.name.startswith("custom_") and has_convolution(eqn)


def through_gate(
    gate: Gate,
    pull: Callable[[Sequence[Any], Sequence[Any]], list[Any]],
    inputs: Sequence[Any],
    cotangents: Sequence[Any],
    *,
    tied: Sequence[bool],
) -> list[Any]:
    """Run a segment's backward pass so that it can neither be merged nor moved up.

    Args:
        gate: which gate.
        pull: from (inputs, cotangents of the outputs) to cotangents of the inputs.
        inputs: what the segment saved, arguments of the loss included.
        cotangents: gradients with respect to what the segment made.
        tied: the inputs that `select` lets wait for the gradient.
    """
    given = [c for c in cotangents if c.size]
    if not given:
        return pull(inputs, cotangents)  # no gradient comes back: nothing is redone
    if gate == "barrier":
        inputs, cotangents = lax.optimization_barrier((list(inputs), list(cotangents)))
        return pull(inputs, cotangents)
    # All of them: one alone could be a number that the compiler knows.
    true = opaque_true(given)
    if gate == "select":
        pairs = zip(inputs, tied, strict=True)
        return pull([after(true, x) if t else x for x, t in pairs], cotangents)
    shapes = jax.eval_shape(pull, inputs, cotangents)
    nothing = lambda *_: [jnp.zeros(s.shape, s.dtype) for s in shapes]
    return lax.cond(true, pull, nothing, list(inputs), list(cotangents))


def opaque_true(arrays: Sequence[Any]) -> jax.Array:
    """A truth that no compiler pass works out: the sign bit of a number is 0 or 1.

    True for every value, NaN and infinities included; known once all `arrays` are.
    """
    return jnp.stack([_sign_bit(a) < 2 for a in arrays if a.size]).all()


def _sign_bit(array: Any) -> jax.Array:
    # The largest of a few, not one alone: XLA does not fuse a reduction into those
    # who read it. A single number it would look up again in each of them, and keep
    # the whole array alive for that.
    numbers = array.reshape(-1)[:16]
    numbers = numbers.real if jnp.iscomplexobj(numbers) else numbers
    width = numbers.dtype.itemsize * 8
    bits = lax.bitcast_convert_type(numbers, jnp.dtype(f"uint{width}"))
    return lax.shift_right_logical(bits, jnp.full_like(bits, width - 1)).max()


def after(true: jax.Array, x: Any) -> Any:
    """`x`, which now cannot be used before `true` is known."""
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return x
    return jnp.where(true, x, jnp.zeros_like(x))
