"""Replace the convolutions that XLA:CPU compiles badly where they stand.

Reads: a `Graph`. Gives: the same, with `fast_convolution` in their place. What that is,
and why there is a difference: `_fast_convolution.py`.
"""

import dataclasses
from typing import Any

from ._fast_convolution import as_fast, is_plain_convolution, is_wider
from ._graph import Graph, shape_of
from ._jax_internals import ClosedJaxpr, Jaxpr, JaxprEqn

_LOOPS_AND_BRANCHES = frozenset({"scan", "while", "cond"})
# Operations that run the programs in their parameters as they are. A rule of the
# user's own (`custom_vjp`) is kept as functions, not as programs: that stays as it is.
_OPENED = _LOOPS_AND_BRANCHES | {
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "checkpoint",
    "remat2",
    "custom_jvp_call",
    "custom_vjp_call",
}
# What is rewritten already, so that what is called twice stays one program: the program
# and its rewritten form, by the program's id and whether all of it is rewritten.
_Done = dict[tuple[int, bool], tuple[Any, Any]]


def use_fast_convolutions(graph: Graph, *, everywhere: bool = False) -> Graph:
    """The same program, with convolutions that XLA:CPU runs fast where they stand.

    In loops and branches all are replaced. Outside of them XLA:CPU does the same by
    itself. What it compiles badly there too are the gradients of kernels in grouped
    convolutions, but for groups of one channel, and in those that make their data
    wider (transposed ones, mostly): these are replaced everywhere.

    Each operation is replaced by one with the same inputs, outputs, flops, parameters
    and derivatives; there is no difference on other backends than CPU.

    Args:
        graph: from `trace`.
        everywhere: replace all, for what will itself be put into a loop or a branch.

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
    done: _Done = {}
    eqns = tuple(_replaced(e, done, everywhere=everywhere) for e in graph.eqns)
    return dataclasses.replace(graph, eqns=eqns)


def _rewritten(jaxpr: Any, done: _Done, *, everywhere: bool) -> Any:
    """A program, rewritten; the same object if nothing in it changes."""
    key = id(jaxpr), everywhere
    if key not in done:
        if isinstance(jaxpr, Jaxpr):
            eqns = [_replaced(e, done, everywhere=everywhere) for e in jaxpr.eqns]
            same = all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True))
            new = jaxpr if same else jaxpr.replace(eqns=eqns)
        else:
            inner = _rewritten(jaxpr.jaxpr, done, everywhere=everywhere)
            same = inner is jaxpr.jaxpr
            new = jaxpr if same else ClosedJaxpr(inner, jaxpr.consts)
        done[key] = jaxpr, new
    return done[key][1]


def _replaced(eqn: JaxprEqn, done: _Done, *, everywhere: bool) -> JaxprEqn:
    if everywhere or _is_slow_anywhere(eqn):
        eqn = as_fast(eqn)
    name = eqn.primitive.name
    if name not in _OPENED:
        return eqn
    inside = everywhere or name in _LOOPS_AND_BRANCHES

    def opened(value: Any) -> Any:
        if isinstance(value, (Jaxpr, ClosedJaxpr)):
            return _rewritten(value, done, everywhere=inside)
        return tuple(map(opened, value)) if isinstance(value, tuple) else value

    params = {k: opened(v) for k, v in eqn.params.items()}
    return eqn if params == eqn.params else eqn.replace(params=params)


def _is_slow_anywhere(eqn: JaxprEqn) -> bool:
    """Whether XLA:CPU has no fast code for it or for the gradient of its kernel."""
    if not is_plain_convolution(eqn):
        return False
    data, kernel, out = (shape_of(v).shape for v in (*eqn.invars, *eqn.outvars))
    data_spec, kernel_spec, out_spec = eqn.params["dimension_numbers"]
    # The window of that gradient is as wide as what the convolution makes.
    if is_wider(kernel, kernel_spec, data, data_spec):
        return True
    if is_wider(out, out_spec, data, data_spec):
        return True
    batch_groups = eqn.params["batch_group_count"]
    groups = eqn.params["feature_group_count"] * batch_groups  # one of the two is 1
    in_one = data[data_spec[0]] // batch_groups
    read = in_one if batch_groups > 1 else kernel[kernel_spec[1]]
    made = kernel[kernel_spec[0]] // groups
    return groups > 1 and (read > 1 or made > 1)
