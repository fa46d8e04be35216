"""Count the floating-point operations and the matrix products of a traced program.

Unlike in the compiler's own count, a loop's body counts as often as it runs.
"""

import itertools
import math
import re
from typing import Any

from ._graph import shape_of
from ._jax_internals import (
    Jaxpr,
    JaxprEqn,
    Var,
    jaxprs_in_params,
    remove_dead_code,
)

# Operations that move or create numbers without computing on them.
_FREE = frozenset(
    {
        "bitcast_convert_type",
        "broadcast_in_dim",
        "concatenate",
        "convert_element_type",
        "copy",
        "copy_p",
        "device_put",
        "dynamic_slice",
        "dynamic_update_slice",
        "expand_dims",
        "gather",
        "iota",
        "name",
        "optimization_barrier",
        "pad",
        "pcast",
        "pvary",
        "random_bits",
        "random_fold_in",
        "random_seed",
        "random_split",
        "random_unwrap",
        "random_wrap",
        "reshape",
        "rev",
        "scatter",
        "select_n",
        "sharding_constraint",
        "slice",
        "split",
        "squeeze",
        "stack",
        "stop_gradient",
        "threefry2x32",
        "tile",
        "transpose",
        "unstack",
    }
)
_CONVOLUTIONS = frozenset({"conv_general_dilated", "fast_convolution"})
_HEAVY = _CONVOLUTIONS | {"dot_general", "ragged_dot_general"}
# In HLO text: `%name = f32[8,8]{1,0} dot(...)`, and the library calls that replace a
# product on some CPUs.
_HEAVY_IN_HLO = re.compile(
    r"= (?:\([^=]*\)|\S+) (?:dot|convolution)\(|"
    r'custom_call_target="[^"]*(?:matmul|conv|gemm)[^"]*"',
    re.IGNORECASE,
)


def flops(jaxpr: Jaxpr) -> int:
    """Floating-point operations of a program, without its dead code.

    One multiplication and one addition count as two. A `scan` counts as often as it
    iterates; a `while` loop, whose trip count is unknown, counts once. Of a `cond` the
    most expensive branch counts, and of a `shard_map` the work of all devices.

    Args:
        jaxpr: a traced program: `jax.make_jaxpr(f)(*args).jaxpr`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> a, b = jnp.ones((2, 3)), jnp.ones((3, 5))
        >>> flops(jax.make_jaxpr(jnp.dot)(a, b).jaxpr)
        60
    """
    live, _ = remove_dead_code(jaxpr, [True] * len(jaxpr.outvars))
    return sum(flops_of(eqn) for eqn in live.eqns)


def flops_of(eqn: JaxprEqn) -> int:
    """Floating-point operations of one operation, including those of its body."""
    name = eqn.primitive.name
    if name == "cond":
        return max(flops(b.jaxpr) for b in eqn.params["branches"])
    if name == "scan":
        return eqn.params["length"] * flops(eqn.params["jaxpr"].jaxpr)
    if name == "shard_map":
        sizes = dict(eqn.params["mesh"].shape)
        copies = math.prod(sizes[a] for a in eqn.params["newly_manual_axes"])
        return copies * sum(map(flops, _bodies(eqn)))
    if name == "dot_general":
        return _dot(eqn)
    if name in _CONVOLUTIONS:
        return _convolution(eqn)
    if bodies := _bodies(eqn):
        return sum(map(flops, bodies))
    if name in _FREE:
        return 0
    if name.startswith(("reduce", "arg", "cum")):
        return sum(_size(v) for v in eqn.invars)
    return sum(_size(v) for v in eqn.outvars)


def count_heavy(jaxpr: Jaxpr) -> int:
    """Matrix products and convolutions in a program, without its dead code.

    Each counts once, also in loops and in every branch of a `cond`: this is the number
    to compare with `count_heavy_in_hlo`. Products that are the same in each iteration
    of a loop do not count: XLA computes them before the loop, once for all loops.
    """
    return _count_heavy(jaxpr, [True] * len(jaxpr.invars))


def _count_heavy(jaxpr: Jaxpr, varies: list[bool]) -> int:
    """The same, of a program some of whose inputs differ between iterations."""
    # XLA removes dead code as well; the two counts would differ without this.
    live, used = remove_dead_code(jaxpr, [True] * len(jaxpr.outvars))
    left = itertools.compress(varies, used)
    changing = {v for v, yes in zip(live.invars, left, strict=True) if yes}
    found = 0
    for e in live.eqns:
        reads = [isinstance(v, Var) and v in changing for v in e.invars]
        if any(reads):
            changing |= set(e.outvars)
            found += e.primitive.name in _HEAVY
        for body in _bodies(e):
            found += _count_heavy(body, _varies_inside(e, body, reads))
    return found


def _varies_inside(eqn: JaxprEqn, body: Jaxpr, reads: list[bool]) -> list[bool]:
    """Which inputs of an operation's body differ between iterations of a loop."""
    name = eqn.primitive.name
    if name == "scan":
        num_consts, num_carry = split_scan(eqn)
        carry = body.invars[num_consts : num_consts + num_carry]
        changes = [v is not o for v, o in zip(carry, body.outvars, strict=False)]
        rest = [True] * (len(body.invars) - num_consts - num_carry)
        return [False] * num_consts + changes + rest
    inputs = reads[1:] if name == "cond" else reads
    # The bodies of a `while` and of unknown operations: anything may change.
    return inputs if len(inputs) == len(body.invars) else [True] * len(body.invars)


def count_heavy_in_hlo(text: str) -> int:
    """Matrix products and convolutions in an optimised program.

    Args:
        text: `compiled.as_text()`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x = jnp.ones((8, 8))
        >>> compiled = jax.jit(lambda x: x @ (x @ x)).lower(x).compile()
        >>> count_heavy_in_hlo(compiled.as_text())
        2
    """
    return len(_HEAVY_IN_HLO.findall(text))


def is_heavy(eqn: JaxprEqn) -> bool:
    """Whether an operation is or contains a matrix product or convolution."""
    return eqn.primitive.name in _HEAVY or any(
        is_heavy(e) for j in _bodies(eqn) for e in j.eqns
    )


def has_convolution(eqn: JaxprEqn) -> bool:
    """Whether an operation is or contains a convolution."""
    return eqn.primitive.name in _CONVOLUTIONS or any(
        has_convolution(e) for j in _bodies(eqn) for e in j.eqns
    )


def split_scan(eqn: JaxprEqn) -> tuple[int, int]:
    """The numbers of a scan's constants and carried values, its leading inputs.

    They follow from the shapes: a scanned input has one axis more outside of the body
    than inside. The parameters that state them differ between JAX 0.10 and 0.12.
    """
    body = eqn.params["jaxpr"].jaxpr
    is_whole = lambda outer, inner: outer.aval.ndim == inner.aval.ndim
    num_whole = sum(map(is_whole, eqn.invars, body.invars))
    num_carry = sum(map(is_whole, eqn.outvars, body.outvars))
    return num_whole - num_carry, num_carry


def _bodies(eqn: JaxprEqn) -> list[Jaxpr]:
    return list(jaxprs_in_params(eqn.params))


def _dot(eqn: JaxprEqn) -> int:
    # Each number of the result sums products over the contracted axes: one
    # multiplication and one addition for each.
    (contracted, _), _ = eqn.params["dimension_numbers"]
    left = shape_of(eqn.invars[0]).shape
    return 2 * _size(eqn.outvars[0]) * math.prod(left[i] for i in contracted)


def _convolution(eqn: JaxprEqn) -> int:
    # The kernel has the input channels of one group only: groups are accounted for.
    kernel = shape_of(eqn.invars[1]).shape
    out_features = kernel[eqn.params["dimension_numbers"].rhs_spec[0]]
    return 2 * _size(eqn.outvars[0]) * math.prod(kernel) // max(out_features, 1)


def _size(atom: Any) -> int:
    return int(getattr(atom.aval, "size", 0))
