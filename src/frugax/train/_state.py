"""What a training step takes in and gives back: the step number, weights, optimiser."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from frugax.trees import PyTree

from ._models import Parts, Rest, take_apart, whole
from ._precision import LossScale, Precision, first_scale


class TrainState(NamedTuple):
    """All that training carries from one step to the next; nothing else is needed.

    Attributes:
        step: how many steps have been taken, int32.
        params: the weights.
        opt_state: what the optimiser remembers.
        scale: of a float16 loss; None in other precisions.
        carried: what the loss changes itself, such as running averages; None if
            nothing.
        rest: what of the model is not trained and never changes; None if nothing.
    """

    step: Int[Array, ""]
    params: PyTree
    opt_state: PyTree
    scale: LossScale | None = None
    carried: PyTree = None
    rest: Rest | None = None

    @property
    def model(self) -> PyTree:
        """The whole model, as it was given to `init`, with the weights of now."""
        return whole(self.params, self.carried, self.rest)


def init_state(
    model: PyTree,
    optimizer: optax.GradientTransformation,
    *,
    precision: Precision = "f32",
    carried: PyTree = None,
) -> TrainState:
    """The state before the first step.

    Everything is copied: the step gives its input's memory back to the compiler
    (donation), and neither your `model` nor an array that an optimiser holds twice
    may go with it.

    Args:
        model: the weights, any pytree of arrays; or a module of equinox or flax nnx,
            functions, flags and all. Of a module that is not weights throughout, the
            state's `params` are a flat dict by name; `state.model` is whole.
        optimizer: the same one that `make_train_step` is given.
        precision: the same one that `make_train_step` is given.
        carried: arrays that the loss itself changes, such as the running averages of
            batch normalisation: the loss is then called `loss(model, batch, carried)`
            and gives `(loss, metrics, carried)`.

    Raises:
        TypeError: `optimizer` or `model` is none, nothing in it can be trained, it
            holds what is neither an array nor hashable, or `carried` was given for a
            module that holds that itself.
    """
    return first_state(parts_of(model, carried), optimizer, precision=precision)


def parts_of(model: PyTree, carried: PyTree) -> Parts:
    """A model taken apart, unless it only holds one.

    Raises:
        TypeError: it is a state, or flax's variables with running averages in them;
            see also `take_apart`.
    """
    if isinstance(model, TrainState):
        raise TypeError(
            "init takes weights or a module, got a TrainState: go on with it as it is, "
            "or start anew with init(state.model)."
        )
    if isinstance(model, Mapping) and {"params", "batch_stats"} <= set(model):
        raise TypeError(
            "these are flax's variables, whose batch_stats are running averages and "
            'not trained: write init(variables["params"], '
            'carried=variables["batch_stats"]), and let the loss give back the new '
            "ones; see docs/train.md, Models."
        )
    return take_apart(model, carried)


def first_state(
    parts: Parts, optimizer: optax.GradientTransformation, *, precision: Precision
) -> TrainState:
    """The same for a model that was taken apart; it can be traced.

    Raises:
        TypeError: `optimizer` is none, or there is nothing to train.
    """
    check_optimizer(optimizer)
    params, carried, rest = parts
    if not jax.tree.leaves(params):
        raise TypeError(
            "there is nothing to train: the model holds no floating-point array. Give "
            "init the weights, or the module that holds them."
        )
    state = TrainState(
        jnp.zeros((), jnp.int32),
        params,
        optimizer.init(params),
        first_scale(precision),
        carried,
        rest,
    )
    return jax.tree.map(_copied, state)


def _copied(x: Any) -> jax.Array:
    """Of a type that no step changes: a Python number's yields to that of others."""
    if jnp.issubdtype(jnp.result_type(x), jax.dtypes.extended):  # a random key
        return jnp.array(x)
    return jnp.array(x, jnp.result_type(x))


def check_optimizer(optimizer: object) -> None:
    """Refuse a learning rate, and a maker of optimisers that was not called.

    Raises:
        TypeError: it has no `init` and `update`.
    """
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise TypeError(
            "optimizer must be one of optax, such as optax.adam(1e-3), got "
            f"{optimizer!r:.99}."
        )


def refuse_given_away(state: TrainState) -> None:
    """XLA's own words for this name neither the state nor the way out.

    Raises:
        ValueError: the memory of this state was given to an earlier step.
    """
    leaves = [x for x in jax.tree.leaves(state) if isinstance(x, jax.Array)]
    if any(x.is_deleted() for x in leaves):
        raise ValueError(
            "this state was given away to an earlier step: go on with the state that "
            "step gave back (after fit, with result.state), or use "
            "make_train_step(donate=False)."
        )
