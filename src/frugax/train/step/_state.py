"""`TrainState` and how it is first made; checks that it and the batch fit the step.

A state of another optimiser or precision would fail deep inside optax, or not fail at
all and train in an unintended way. So it is refused before anything is compiled.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jaxtyping import Array, Int

from frugax.options import join_first
from frugax.trees import PyTree

from ..compiles import Signature
from ._gradients import LossScale, Precision, first_scale
from ._model_parts import ModelParts, StaticPart, join_model, split_model
from ._trace_errors import TRACE_ERRORS


# The fields' names are part of the checkpoint format: leaves are stored by path.
class TrainState(NamedTuple):
    """Everything that training carries from one step to the next.

    Attributes:
        step: number of steps taken, int32.
        params: the weights.
        opt_state: the optimiser's state.
        scale: loss scale of float16; None in other precisions.
        carried: arrays that the loss itself changes, such as running averages, or None.
        rest: the part of the model that is not trained and never changes, or None.
    """

    step: Int[Array, ""]
    params: PyTree
    opt_state: PyTree
    scale: LossScale | None = None
    carried: PyTree = None
    rest: StaticPart | None = None

    @property
    def model(self) -> PyTree:
        """The whole model as it was given to `init`, with the current weights."""
        return join_model(self.params, self.carried, self.rest)


def init_state(
    model: PyTree,
    optimizer: optax.GradientTransformation,
    *,
    precision: Precision = "f32",
    carried: PyTree = None,
) -> TrainState:
    """Return the state before the first step.

    Every array is copied. The step donates its input's memory to the compiler, and
    neither your `model` nor an array that an optimiser holds twice may be donated.

    Args:
        model: the weights, as any pytree of arrays; or a module of equinox or flax nnx
            with its functions and flags. For a module that holds more than weights, the
            state's `params` are a flat dict by name, and `state.model` is the module.
        optimizer: the optimiser given to `make_train_step`.
        precision: the precision given to `make_train_step`.
        carried: arrays that the loss itself changes, such as the running averages of
            batch normalisation; the loss is then called `loss(model, batch, carried)`
            and returns `(loss, metrics, carried)`.

    Raises:
        TypeError: `optimizer` is not an optimiser, `model` is not a model or has
            nothing to train, a leaf is neither an array nor hashable, or `carried` was
            given for a module that holds such arrays itself.
    """
    return make_first_state(
        split_for_init(model, carried), optimizer, precision=precision
    )


def split_for_init(model: PyTree, carried: PyTree) -> ModelParts:
    """Split a model, and refuse objects that only contain one."""
    if isinstance(model, TrainState):
        raise TypeError(
            "init takes weights or a module, got a TrainState: continue with it as it "
            "is, or start again with init(state.model)."
        )
    if isinstance(model, Mapping) and {"params", "batch_stats"} <= set(model):
        raise TypeError(
            "these are flax variables, whose batch_stats are running averages and not "
            'trained: write init(variables["params"], '
            'carried=variables["batch_stats"]), and let the loss return the new ones; '
            "see docs/train.md, Models."
        )
    return split_model(model, carried)


def make_first_state(
    parts: ModelParts, optimizer: optax.GradientTransformation, *, precision: Precision
) -> TrainState:
    """Return the first state of a model that was split; it can be traced."""
    check_optimizer(optimizer)
    params, carried, rest = parts
    if not jax.tree.leaves(params):
        raise TypeError(
            "there is nothing to train: the model has no floating-point array. Give "
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
    return jax.tree.map(_copy, state)


def _copy(x: Any) -> jax.Array:
    if jnp.issubdtype(jnp.result_type(x), jax.dtypes.extended):  # a random key
        return jnp.array(x)
    # With an explicit dtype: a weakly typed leaf would change its type at the first
    # step, and so need a second program.
    return jnp.array(x, jnp.result_type(x))


# --- checks ---------------------------------------------------------------------------


def check_optimizer(optimizer: object) -> None:
    """Refuse a learning rate, or an optimiser's factory that was not called."""
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise TypeError(
            "optimizer must be an optax optimiser, such as optax.adam(1e-3), got "
            f"{optimizer!r:.99}."
        )


def check_is_state(state: object) -> None:
    """Refuse an object that is not a state, and say how to get one."""
    if isinstance(state, TrainState):
        return
    if isinstance(state, tuple) and any(isinstance(x, TrainState) for x in state):
        raise TypeError(
            "state must be a TrainState, got a tuple that holds one: step returns two "
            "values, so write `state, metrics = step(state, batch)`."
        )
    if isinstance(getattr(state, "state", None), TrainState):  # a result of fit
        raise TypeError(
            f"state must be a TrainState, got a {type(state).__name__} that holds one: "
            "give its .state."
        )
    what = "None" if state is None else f"a {type(state).__name__}"
    raise TypeError(
        f"state must be a TrainState, got {what}: make the first one from your weights "
        "or module with `state = step.init(model)`."
    )


def check_call(state: object, batch: PyTree) -> None:
    """Refuse arguments that no step accepts; fast enough for each change of shapes."""
    # Swapped arguments would otherwise fail inside the user's loss.
    if isinstance(batch, TrainState) and not isinstance(state, TrainState):
        raise TypeError("state and batch are swapped: write step(state, batch).")
    check_is_state(state)
    if any(isinstance(x, Tracer) for x in jax.tree.leaves((state, batch))):
        raise TypeError(
            "this step was called inside of jax.jit, vmap, grad or scan. It is a "
            "compiled program itself: call it from Python, with arrays. Inside of "
            "others, use jax.value_and_grad of your loss."
        )


def find_nonfinite_weight(state: TrainState) -> str | None:
    """Name the first weight that is infinite or NaN, such as `params['w']`."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state.params):
        is_inexact = jnp.issubdtype(leaf.dtype, jnp.inexact)
        if is_inexact and not jnp.isfinite(leaf).all():
            return f"params{jax.tree_util.keystr(path)}"
    return None


def check_has_rows(batch: PyTree) -> None:
    """Refuse an empty batch, whose mean is NaN."""
    shapes = [
        (f"batch{jax.tree_util.keystr(path)}", np.shape(leaf))
        for path, leaf in jax.tree_util.tree_leaves_with_path(batch)
        if np.ndim(leaf)
    ]
    if shapes and all(shape[0] == 0 for _, shape in shapes):
        place, shape = shapes[0]
        raise ValueError(
            f"the batch has no rows: {place} is of shape {shape}. A slice beyond the "
            "end of the data is empty and not an error: wrap around, as in "
            "data[i % len(data)]."
        )


def check_not_donated(state: TrainState) -> None:
    """Refuse a donated state; XLA's own error names neither it nor the remedy."""
    leaves = [x for x in jax.tree.leaves(state) if isinstance(x, jax.Array)]
    if any(x.is_deleted() for x in leaves):
        raise ValueError(
            "this state was donated to an earlier step: continue with the state that "
            "step returned (after fit, with result.state), or use "
            "make_train_step(donate=False)."
        )


def check_trainable(params: PyTree) -> None:
    """Refuse weights without a gradient; JAX's own error does not name the leaf."""
    found = [
        f"params{jax.tree_util.keystr(path)} is {dtype}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        if not jnp.issubdtype(dtype := jnp.result_type(leaf), jnp.inexact)
    ]
    if found:
        raise TypeError(
            f"{join_first(found)} and cannot be trained: keep it out of "
            "params (frugax.trees.partition), or pass it in the batch."
        )


def check_keeps_type(before: TrainState, after: TrainState) -> None:
    """Refuse a step whose state changes its type: each would be a new program."""
    types = Signature.of_types(state=before)
    changes = types.changes_to(Signature.of_types(state=after))
    if changes:
        raise TypeError(
            f"the step changes the type of its state, {changes[0]}, so the next step "
            "would need another program: cast params or the optimiser's state."
        )


def check_belongs(
    state: TrainState, *, precision: Precision, optimizer: optax.GradientTransformation
) -> None:
    """Refuse a state of another precision or optimiser."""
    if precision == "f16" and state.scale is None:
        raise TypeError(
            'precision="f16" needs a loss scale, and this state has no loss scale: '
            'make it with step.init(model), or init_state(..., precision="f16").'
        )
    if precision != "f16" and state.scale is not None:
        raise TypeError(
            "this state holds the loss scale of float16, but the step computes in "
            f'"{precision}": use the step that it was made for, or continue with '
            "state._replace(scale=None)."
        )
    try:
        # Shapes only: nothing is computed, whatever the size of the model.
        expected = jax.eval_shape(optimizer.init, state.params)
    except TRACE_ERRORS:
        return  # this optimiser starts on real arrays only: nothing to compare
    if difference := _compare_opt_states(expected, state.opt_state):
        raise TypeError(
            f"this state is of another optimiser, or of other params: {difference}. "
            "Use the step that the state was made for, or start another with "
            "step.init(state.model)."
        )


def _compare_opt_states(expected: PyTree, found: PyTree) -> str:
    """Describe the first difference; dtypes may differ, since users may cast."""
    before, after = (
        {
            place: kind.partition("[")[2].partition("]")[0]
            for place, kind in Signature.of_types(opt_state=tree).leaves
        }
        for tree in (expected, found)
    )
    for place in [*before, *after]:
        if place not in before:
            return f"{place} is not expected"
        if place not in after:
            return f"{place} is missing"
        if before[place] != after[place]:
            return f"{place} must be of shape [{before[place]}] and is [{after[place]}]"
    # Equal leaves in other containers, as of adam and adamw: the update would unpack
    # them wrongly.
    types = [_container_types(jax.tree.structure(x)) for x in (expected, found)]
    if types[0] != types[1]:
        return f"it must be {_describe_tree(expected)} and is {_describe_tree(found)}"
    return ""


def _container_types(structure: Any) -> Any:
    """Return the containers of a structure without their own data.

    That data may be a function, which is a new one each time an optimiser starts.
    """
    data = structure.node_data()
    return data and data[0], tuple(map(_container_types, structure.children()))


def _describe_tree(tree: PyTree) -> str:
    """Describe the outermost containers, as in `(ScaleByAdamState, EmptyState)`."""
    if type(tree) is tuple:
        return f"({', '.join(map(_describe_tree, tree))})"
    return type(tree).__name__
