"""Rewrite a traced program's convolutions into ones that XLA:CPU runs fast in loops.

`_fast_convolution.py` has the replacement and the reason for the difference.
"""

import dataclasses
from typing import Any

from ._fast_convolution import as_fast, is_plain_convolution, is_wider
from ._graph import Graph, shape_of
from ._jax_internals import ClosedJaxpr, Jaxpr, JaxprEqn

_LOOPS_AND_BRANCHES = frozenset({"scan", "while", "cond"})
# Operations that run the programs in their parameters as they are. A user-defined rule
# (`custom_vjp`) is stored as functions and not as programs, and cannot be rewritten.
_CALLS = _LOOPS_AND_BRANCHES | {
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "checkpoint",
    "remat2",
    "custom_jvp_call",
    "custom_vjp_call",
}
# Each program and its rewritten form, by the program's id and whether all of it is
# rewritten. A program that is called twice must stay one object, or XLA compiles it
# twice. The program itself is stored to keep its id from being used again.
_Rewritten = dict[tuple[int, bool], tuple[Any, Any]]


def use_fast_convolutions(graph: Graph, *, everywhere: bool = False) -> Graph:
    """The same program with convolutions that XLA:CPU runs fast in their places.

    In loops and branches all convolutions are replaced. Outside of them XLA:CPU does
    the same by itself, with two exceptions that are replaced everywhere: gradients of
    kernels in grouped convolutions with more than one channel in a group, and in
    convolutions that make their data wider, mostly transposed ones.

    The replacement has the same inputs, outputs, flops, parameters and derivatives. On
    other backends than CPU nothing changes.

    Args:
        graph: the result of `trace`.
        everywhere: replace all convolutions, for a program that will itself be put into
            a loop or a branch.

    Example:
        >>> import jax.numpy as jnp
        >>> from jax import lax
        >>> from frugax.jaxprs import trace
        >>> conv = lambda x, w: lax.conv(x, w, (1, 1), "SAME")
        >>> graph = trace(conv, (jnp.ones((1, 2, 8, 8)), jnp.ones((2, 2, 3, 3))))
        >>> [str(e.primitive) for e in use_fast_convolutions(graph).eqns]
        ['conv_general_dilated']
        >>> fast = use_fast_convolutions(graph, everywhere=True)
        >>> [str(e.primitive) for e in fast.eqns]
        ['fast_convolution']
    """
    done: _Rewritten = {}
    eqns = tuple(_replace(e, done, everywhere=everywhere) for e in graph.eqns)
    return dataclasses.replace(graph, eqns=eqns)


def _rewrite_program(jaxpr: Any, done: _Rewritten, *, everywhere: bool) -> Any:
    """The rewritten program; the same object if nothing in it changes."""
    key = id(jaxpr), everywhere
    if key not in done:
        if isinstance(jaxpr, Jaxpr):
            eqns = [_replace(e, done, everywhere=everywhere) for e in jaxpr.eqns]
            new = jaxpr
            if any(a is not b for a, b in zip(eqns, jaxpr.eqns, strict=True)):
                new = jaxpr.replace(eqns=eqns)
        else:
            inner = _rewrite_program(jaxpr.jaxpr, done, everywhere=everywhere)
            new = jaxpr
            if inner is not jaxpr.jaxpr:
                new = ClosedJaxpr(inner, jaxpr.consts)
        done[key] = jaxpr, new
    return done[key][1]


def _replace(eqn: JaxprEqn, done: _Rewritten, *, everywhere: bool) -> JaxprEqn:
    if everywhere or _is_slow_anywhere(eqn):
        eqn = as_fast(eqn)
    name = eqn.primitive.name
    if name not in _CALLS:
        return eqn
    inside = everywhere or name in _LOOPS_AND_BRANCHES

    def rewrite_value(value: Any) -> Any:
        if isinstance(value, (Jaxpr, ClosedJaxpr)):
            return _rewrite_program(value, done, everywhere=inside)
        if isinstance(value, tuple):
            return tuple(map(rewrite_value, value))
        return value

    params = {k: rewrite_value(v) for k, v in eqn.params.items()}
    if params == eqn.params:
        return eqn
    return eqn.replace(params=params)


def _is_slow_anywhere(eqn: JaxprEqn) -> bool:
    """Whether XLA:CPU has no fast code for it or for the gradient of its kernel."""
    if not is_plain_convolution(eqn):
        return False
    data, kernel, out = (shape_of(v).shape for v in (*eqn.invars, *eqn.outvars))
    data_spec, kernel_spec, out_spec = eqn.params["dimension_numbers"]
    # The window of that gradient is as wide as the output of the convolution.
    if is_wider(kernel, kernel_spec, data, data_spec):
        return True
    if is_wider(out, out_spec, data, data_spec):
        return True
    batch_groups = eqn.params["batch_group_count"]
    groups = eqn.params["feature_group_count"] * batch_groups  # one of the two is 1
    # A kernel has the input channels of one group only, and the output channels of all.
    num_read = kernel[kernel_spec[1]]
    if batch_groups > 1:
        num_read = data[data_spec[0]] // batch_groups
    num_written = kernel[kernel_spec[0]] // groups
    return groups > 1 and (num_read > 1 or num_written > 1)
