"""Are these a state and a batch for this step? Asked before anything is compiled.

A state of another optimiser or precision fails deep in somebody else's code, or does
not fail at all and is trained in a way that nobody asked for.
"""

from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from frugax.trees import PyTree

from ._build import Recipe
from ._ladder import is_trace_failure
from ._signature import Signature
from ._state import TrainState


def refuse_no_state(state: object) -> None:
    """Refuse what is no state, and say how to get one.

    Raises:
        TypeError: it is none.
    """
    if isinstance(state, TrainState):
        return
    if isinstance(state, tuple) and any(isinstance(x, TrainState) for x in state):
        raise TypeError(
            "state must be a TrainState, got a tuple that holds one: step gives back "
            "two things, so write `state, metrics = step(state, batch)`."
        )
    if isinstance(getattr(state, "state", None), TrainState):  # a result of fit
        raise TypeError(
            f"state must be a TrainState, got a {type(state).__name__} that holds one: "
            "give its .state."
        )
    what = "None" if state is None else f"a {type(state).__name__}"
    raise TypeError(
        f"state must be a TrainState, got {what}: make the first one of your weights "
        "or module with `state = step.init(model)`."
    )


def refuse_misuse(state: object, batch: PyTree) -> None:
    """Refuse what no step can be called with; quick enough for a change of shapes.

    Raises:
        TypeError: the arguments are swapped, `state` is none, or they come from inside
            of `jit`, `vmap` or `grad`.
    """
    if isinstance(batch, TrainState) and not isinstance(state, TrainState):
        raise TypeError("state and batch are swapped: write step(state, batch).")
    refuse_no_state(state)
    if any(isinstance(x, Tracer) for x in jax.tree.leaves((state, batch))):
        raise TypeError(
            "this step was called inside of jax.jit, vmap, grad or scan. It is a "
            "compiled program itself: call it from Python, with arrays. Inside of "
            "others, use jax.value_and_grad of your loss."
        )


def refuse_no_rows(batch: PyTree) -> None:
    """Refuse a batch of nothing, of which the mean is NaN.

    Raises:
        ValueError: no array of it has a row.
    """
    found = [
        (f"batch{jax.tree_util.keystr(path)}", np.shape(leaf))
        for path, leaf in jax.tree_util.tree_leaves_with_path(batch)
        if np.ndim(leaf)
    ]
    if found and all(shape[0] == 0 for _, shape in found):
        place, shape = found[0]
        raise ValueError(
            f"the batch has no rows: {place} is of shape {shape}. A slice beyond the "
            "end of the data is empty, no error: go round, as in data[i % len(data)]."
        )


def refuse_another_state(state: TrainState, recipe: Recipe) -> None:
    """Refuse a state that this step's recipe would not have made.

    Raises:
        TypeError: it is of another precision or optimiser.
    """
    if recipe.precision == "f16" and state.scale is None:
        raise TypeError(
            'precision="f16" needs a loss scale in the state, and this one has none: '
            'make it with step.init(model), or init_state(..., precision="f16").'
        )
    if recipe.precision != "f16" and state.scale is not None:
        raise TypeError(
            "this state holds the loss scale of float16, but the step computes in "
            f'"{recipe.precision}": use the step that it was made for, or go on with '
            "state._replace(scale=None)."
        )
    try:
        made = jax.eval_shape(recipe.optimizer.init, state.params)
    except Exception as e:
        if is_trace_failure(e):
            return  # an optimiser that only starts on real arrays: nothing to compare
        raise
    if difference := _difference(made, state.opt_state):
        raise TypeError(
            f"this state is of another optimiser, or of other params: {difference}. "
            "Use the step that the state was made for, or start another with "
            "step.init(state.model)."
        )


def _difference(wanted: PyTree, given: PyTree) -> str:
    """How two optimisers' states differ, but for types that a user may cast."""
    shapes = [
        {place: kind.partition("[")[2].partition("]")[0] for place, kind in one.leaves}
        for one in (Signature.of_types(opt_state=x) for x in (wanted, given))
    ]
    for place in [*shapes[0], *shapes[1]]:
        here, there = (of.get(place) for of in shapes)
        if here == there:
            continue
        if here is None:
            return f"{place} is not wanted"
        if there is None:
            return f"{place} is missing"
        return f"{place} must be of shape [{here}] and is [{there}]"
    kinds = [_kinds(jax.tree.structure(x)) for x in (wanted, given)]
    if kinds[0] != kinds[1]:
        return f"it must be {_named(wanted)} and is {_named(given)}"
    return ""


def _kinds(structure: Any) -> Any:
    """The containers of a structure, without what they say of themselves.

    That may be a function, which is another one each time an optimiser starts.
    """
    data = structure.node_data()
    return data and data[0], tuple(map(_kinds, structure.children()))


def _named(tree: PyTree) -> str:
    """Such as `(ScaleByAdamState, EmptyState)`: the outermost containers."""
    if type(tree) is tuple:
        return f"({', '.join(map(_named, tree))})"
    return type(tree).__name__
