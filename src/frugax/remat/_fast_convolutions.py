"""`fast_convolutions`: a function whose convolutions are fast on CPU in loops too."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from frugax.jaxprs import trace, use_fast_convolutions


def fast_convolutions(
    fn: Callable[..., Any], *, everywhere: bool = False
) -> Callable[..., Any]:
    """`fn` with convolutions that stay fast on CPU inside loops and branches.

    In the body of a `lax.scan` or `lax.while_loop` and in a `lax.cond`, XLA on CPU
    runs the gradients of convolutions, and all convolutions except NHWC ones, 10 to 100
    times slower than elsewhere. This transformation writes them in the form that is
    fast. It covers derivatives of the result, of any order and in both modes, and its
    `vmap`. Values agree up to rounding. On other backends nothing changes.

    Convolutions outside of loops and branches stay as they are, with two exceptions
    whose kernel gradients are slow there, too: grouped convolutions with more than one
    channel in each group, and convolutions that make their data wider, such as
    `lax.conv_transpose`. The rules of a `custom_vjp` or `custom_jvp` stay as they are.

    Args:
        fn: a function of arrays and pytrees of arrays: a loss, its gradient, or a
            whole training step. It is traced and compiled as by `jax.jit`.
        everywhere: rewrite all convolutions. Use it for a function that you call inside
            a loop or a branch, which cannot be seen from inside the function.

    References:
        `python -m benchmarks.remat convolutions` measures the times.

    Example:
        >>> import jax.numpy as jnp
        >>> from jax import lax
        >>> def net(kernels, x):  # (layers, features, features, 3, 3), NCHW
        ...     layer = lambda x, w: (jnp.tanh(lax.conv(x, w, (1, 1), "SAME")), None)
        ...     return lax.scan(layer, x, kernels)[0].sum()
        >>> kernels, x = jnp.ones((4, 8, 8, 3, 3)) / 72, jnp.ones((2, 8, 16, 16))
        >>> gradient = jax.jit(jax.grad(fast_convolutions(net)))
        >>> gradient(kernels, x).shape
        (4, 8, 8, 3, 3)
    """

    def fast(*args: Any, **kwargs: Any) -> Any:
        both = (args, kwargs)
        graph = trace(lambda args, kwargs: fn(*args, **kwargs), both)
        graph = use_fast_convolutions(graph, everywhere=everywhere)
        run = graph.run(graph.eqns, graph.inputs, graph.outputs)
        outs = run(*graph.const_values, *jax.tree.leaves(both))
        return jax.tree.unflatten(graph.out_tree, outs)

    # Compiled as a whole: otherwise each call would bring new loops to compile.
    return jax.jit(functools.wraps(fn)(fast))
