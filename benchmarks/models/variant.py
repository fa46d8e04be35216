"""One way to write a net by hand in JAX, and how it becomes a contestant.

Weights are a flat dict straight into one `jax.jit`: no wrapper is cheaper.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .contestant import Arrays, Contestant
from .nets import Net

Params = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to write a net.

    Attributes:
        forward: `forward(params, x)`.
        load: the net's weights, in the form that `forward` wants.
        unload: such arrays, back in the net's form.
        data: the batch, in the layout that `forward` wants.
    """

    forward: Callable[[Params, jax.Array], jax.Array]
    load: Callable[[Arrays], Arrays] = lambda weights: weights
    unload: Callable[[Arrays], Arrays] = lambda arrays: arrays
    data: Callable[[np.ndarray], np.ndarray] = lambda x: x


def loss_of(out: jax.Array) -> jax.Array:
    """Mean square: the same in every framework, and it needs no labels."""
    return jnp.mean(out * out)


def contestant(net: Net, variant: Variant) -> Contestant:
    params = {k: jnp.asarray(v) for k, v in variant.load(net.weights()).items()}
    x = jnp.asarray(variant.data(net.data()))
    # Wrapped again, so that two contestants never share a compiled program.
    loss = lambda params, x: loss_of(variant.forward(params, x))
    step = functools.partial(jax.jit(jax.value_and_grad(loss)), params, x)
    forward = functools.partial(
        jax.jit(lambda params, x: variant.forward(params, x)), params, x
    )

    def result() -> tuple[float, Arrays]:
        value, grads = step()
        got = {k: np.asarray(v) for k, v in grads.items()}
        return float(value), variant.unload(got)

    return Contestant(step, forward, jax.block_until_ready, result)


def transposed(arrays: Arrays) -> Arrays:
    """Transpose matrices between `(out, in)` and `(in, out)`; keep other arrays."""
    return {k: v.T if v.ndim == 2 else v for k, v in arrays.items()}


def rows_by(x: jax.Array, weight: jax.Array) -> jax.Array:
    """`x W^T`, with no transpose written."""
    return lax.dot_general(x, weight, (((x.ndim - 1,), (1,)), ((), ())))
