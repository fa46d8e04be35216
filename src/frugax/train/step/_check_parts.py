"""Find out on the first batch whether its rows may be divided into micro-batches.

The mean over micro-batches is the mean over the batch only where every part weighs as
much. A mean over valid tokens is the usual exception.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import numpy as np

from frugax import measure
from frugax.trees import PyTree

from ..compiles import warn_at_call_site
from ..options import join_first
from ._build import Builder, StepOptions
from ._gradients import Inputs, average_parts, deal_rows, evaluate_parts
from ._state import TrainState

# Relative to the largest part: rounding by another order of additions in float32.
_TOLERANCE = 1e-4


class AccumulationWarning(UserWarning):
    """A loss or metric is not a mean over rows, as `accum` takes it to be."""


def check_parts(
    options: StepOptions,
    program: measure.ProgramCosts,
    state: TrainState,
    batch: PyTree,
) -> None:
    """Compare the means over the parts of a batch with those of the whole batch.

    Only the loss is computed. Where that of the whole batch needs more memory than the
    step, the same number of parts with other rows takes its place. Nothing is compared
    where parts differ on purpose: where the loss changes arrays itself, or draws random
    numbers by a key in the batch.

    Args:
        options: of the step.
        program: the compiled step.
        state: weights to compute the loss of.
        batch: the batch.

    Raises:
        ValueError: a part has a loss that is not finite, and the whole batch has not.
    """
    is_random = any(
        jax.numpy.issubdtype(jax.numpy.result_type(x), jax.dtypes.prng_key)
        for x in jax.tree.leaves(batch)
    )
    if options.accum == 1 or is_random or state.carried is not None:
        return
    parts = options.accum
    # In float32: the rounding of lower precisions hides differences of a percent.
    objective = dataclasses.replace(Builder(options).objective, precision="f32")
    # The optimiser has no part in it.
    state = state._replace(opt_state=())
    places = {}
    if options.layout is not None:
        batch = options.layout.place_batch(batch)
        places["out_shardings"] = options.layout.replicated

    def compute(state: TrainState, batch: PyTree, *, parts: int) -> PyTree:
        inputs = Inputs(batch, rest=state.rest)
        each = evaluate_parts(objective, state.params, inputs, parts=parts)
        return each.metrics, average_parts(each)

    def trace(function: Callable[..., PyTree]) -> jax.stages.Traced:
        return jax.jit(function, **places).trace(state, batch)

    divided = trace(functools.partial(compute, parts=parts))
    # A loss that prints or records would do so for rows that no step sees.
    if divided.jaxpr.effects:
        return
    other = trace(functools.partial(compute, parts=1)).lower().compile()
    what = "accum=1"
    if measure.program(other).total_bytes > program.total_bytes:
        other = trace(lambda s, b: compute(s, deal_rows(b, parts), parts=parts))
        other, what = other.lower().compile(), "other rows in each part"
    each, averages = jax.device_get(divided.lower().compile()(state, batch))
    _, expected = jax.device_get(other(state, batch))
    losses = each["loss"]
    if not math.isfinite(averages["loss"]) and math.isfinite(expected["loss"]):
        part = int(np.argmin(np.isfinite(losses)))
        raise ValueError(
            f"accum={parts} divides this batch so that the loss of part {part} "
            f"(counted from 0) is {losses[part]}, although that of the whole batch is "
            "finite. A part may have no valid row: return train.Weighted(total, "
            "weight) from the loss, such as the sum over the valid rows and their "
            "number."
        )
    differing: list[str] = []
    for name, value in expected.items():
        scale = np.abs([*each[name], value]).max()
        tolerance = _TOLERANCE * scale
        is_float = np.issubdtype(np.asarray(value).dtype, np.floating)
        if is_float and abs(averages[name] - value) > tolerance:
            differing.append(f"{name} is {averages[name]:.4g} and not {value:.4g}")
    if differing:
        warn_at_call_site(
            f"accum={parts} changes the step: on this batch {join_first(differing)} as "
            f"with {what}. It averages the parts of a batch, so a loss must be a mean "
            "over rows; where they count unequally, as in a mean over valid tokens, "
            "return train.Weighted(total, weight).",
            AccumulationWarning,
        )
