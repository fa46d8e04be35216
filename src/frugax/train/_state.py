"""What a training step takes in and gives back: the step number, weights, optimiser."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from frugax.typing import PyTree


class TrainState(NamedTuple):
    """All that training carries from one step to the next; nothing else is needed.

    Attributes:
        step: how many steps have been taken, int32.
        params: the weights.
        opt_state: what the optimiser remembers.
    """

    step: Int[Array, ""]
    params: PyTree
    opt_state: PyTree


def init_state(params: PyTree, optimizer: optax.GradientTransformation) -> TrainState:
    """The state before the first step.

    Everything is copied: the step gives its input's memory back to the compiler
    (donation), and neither your `params` nor an array that an optimiser holds twice
    may go with it.

    Args:
        params: the weights, any pytree of arrays.
        optimizer: the same one that `make_train_step` is given.
    """
    state = TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))
    return jax.tree.map(jnp.array, state)
