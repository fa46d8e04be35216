"""Find out on the first batch whether its rows may be divided into micro-batches.

The mean over micro-batches is the mean over the batch only where every part weighs as
much. A mean over valid tokens is the usual exception.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from frugax import measure
from frugax.jaxprs import Jaxpr, jaxprs_in_params
from frugax.options import join_first
from frugax.trees import PyTree, is_random_key

from ..compiles import warn_at_call_site
from ._build import Builder, StepOptions
from ._gradients import Inputs
from ._micro_batches import PartResult, average_parts, regroup_rows, scan_parts
from ._state import TrainState

# Relative to the largest part: rounding by another order of additions in float32.
_TOLERANCE = 1e-4
# JAX's operations that draw random numbers.
_DRAWS = {
    "random_bits",
    "random_gamma",
    "rng_bit_generator",
    "rng_uniform",
    "threefry2x32",
}


class AccumulationWarning(UserWarning):
    """A loss or metric is not a mean over rows, as `accum` takes it to be."""


def _check_mean(
    evaluate: Callable[[PyTree, PyTree], PartResult],
    state: PyTree,
    batch: PyTree,
    *,
    parts: int,
    most_bytes: int,
    **shardings: Any,
) -> None:
    """Compare the means over the parts of a batch with those of the whole batch.

    Only the loss is computed. Where that of the whole batch needs too much memory, the
    same number of parts with other rows takes its place. Nothing is compared where the
    batch has a random key: parts differ on purpose.

    Args:
        evaluate: the loss and metrics of a part, from the state and its rows.
        state: weights, and whatever else all rows share.
        batch: the batch.
        parts: the number of parts.
        most_bytes: memory that the comparison may take.
        shardings: as for `jax.jit`.

    Raises:
        ValueError: a part has a loss that is not finite, and the whole batch has not.
    """
    if any(map(is_random_key, jax.tree.leaves(batch))):
        return

    def compute(state: PyTree, batch: PyTree, *, parts: int) -> PyTree:
        of_state = lambda part, _: evaluate(state, part)
        *_, each = scan_parts(of_state, batch, parts=parts)
        return each.metrics, average_parts(each)

    def trace(function: Callable[..., PyTree]) -> jax.stages.Traced:
        return jax.jit(function, **shardings).trace(state, batch)

    divided = trace(functools.partial(compute, parts=parts))
    # A loss that prints or records would do so for rows that no step sees.
    if divided.jaxpr.effects:
        return
    other = trace(functools.partial(compute, parts=1)).lower().compile()
    what = "one part"
    if measure.program(other).total_bytes > most_bytes:
        other = trace(lambda s, b: compute(s, regroup_rows(b, parts), parts=parts))
        other, what = other.lower().compile(), "other rows in each part"
    each, averages = jax.device_get(divided.lower().compile()(state, batch))
    _, expected = jax.device_get(other(state, batch))
    losses = each["loss"]
    if not math.isfinite(averages["loss"]) and math.isfinite(expected["loss"]):
        part = int(np.argmin(np.isfinite(losses)))
        raise ValueError(
            f"{parts} micro-batches divide this batch so that the loss of part {part} "
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
    if not differing:
        return
    if _draws_numbers(divided.jaxpr.jaxpr):
        remedy = (
            "The loss draws random numbers from a key that is not part of the batch, "
            "so each part draws the same ones: put a jax.random.key into the batch."
        )
    else:
        remedy = (
            "It averages the parts of a batch, so a loss must be a mean over rows; "
            "where they count unequally, as in a mean over valid tokens, return "
            "train.Weighted(total, weight) from the loss."
        )
    warn_at_call_site(
        f"dividing the batch into {parts} micro-batches changes the step: on this "
        f"batch {join_first(differing)} as with {what}. {remedy}",
        AccumulationWarning,
    )


def _draws_numbers(jaxpr: Jaxpr) -> bool:
    return any(
        eqn.primitive.name in _DRAWS
        or any(map(_draws_numbers, jaxprs_in_params(eqn.params)))
        for eqn in jaxpr.eqns
    )


def check_parts(
    options: StepOptions,
    program: measure.ProgramCosts,
    state: TrainState,
    batch: PyTree,
) -> None:
    """Check that the first batch of a step can be divided into its micro-batches.

    A loss that changes arrays itself is not checked: its parts differ on purpose.

    Args:
        options: of the step.
        program: the compiled step; the check may take as much memory.
        state: weights to compute the loss of.
        batch: the batch.

    Raises:
        ValueError: a part has a loss that is not finite, and the whole batch has not.
    """
    if options.accum == 1 or state.carried is not None:
        return
    # In float32: the rounding of lower precisions hides differences of a percent.
    objective = dataclasses.replace(Builder(options).objective, precision="f32")
    # The optimiser has no part in it.
    state = state._replace(opt_state=())
    shardings = {}
    if options.layout is not None:
        batch = options.layout.place_batch(batch)
        shardings["out_shardings"] = options.layout.replicated

    def evaluate(state: TrainState, batch: PyTree) -> PartResult:
        _, aux = objective(state.params, Inputs(batch, rest=state.rest))
        return PartResult(aux.metrics, aux.weights)

    _check_mean(
        evaluate,
        state,
        batch,
        parts=options.accum,
        most_bytes=program.total_bytes,
        **shardings,
    )
