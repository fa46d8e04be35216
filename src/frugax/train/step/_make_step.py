"""`make_train_step`: check the options and budgets of a training step, and make it."""

from collections.abc import Callable
from typing import Any

import optax

from frugax.budget import (
    MemoryBudget,
    MemoryShare,
    check_budget,
)
from frugax.options import (
    check_choice,
    check_flag,
    check_function,
    check_instance,
    check_integer,
    check_number,
)

from .._frozen import Frozen
from ..processes import Layout
from ._build import StepOptions
from ._gradients import DTYPES, Precision
from ._state import check_optimizer
from ._step import TrainStep


def make_train_step(
    loss: Callable[..., Any],
    optimizer: optax.GradientTransformation,
    *,
    budget: MemoryBudget | MemoryShare | None = None,
    static: Any = None,
    accum: int = 1,
    clip: float | None = None,
    precision: Precision = "f32",
    compile_budget: int | None = None,
    donate: bool = True,
    layout: Layout | None = None,
) -> TrainStep:
    """Make one compiled training step that keeps within its budgets.

    With a memory budget the backward pass recomputes activations that do not fit. The
    plan and its measurement cover the whole compiled step: gradient, optimiser and
    donation.

    Args:
        loss: `loss(model, batch)` returns a real scalar, or that and a dict of scalars
            to report beside it. Each scalar may be `Weighted(total, weight)`, a mean
            over rows that count unequally. `model` is the object given to `step.init`,
            with the current weights. With `carried` arrays in the state, the loss is
            called `loss(model, batch, carried)` and returns scalar, dict and the new
            arrays; `static`, if given, comes last.
        optimizer: an optax optimiser, or any object with its `init` and `update`. One
            that accepts extra arguments receives the loss as `value=`, the gradient as
            `grad=`, and the loss function of the weights as `value_fn=`, which
            `optax.lbfgs` and other line searches need.
        budget: a limit on the memory of the compiled step, on each device, in bytes or
            as a share of what it needs without a plan. Only `fit` can keep seconds.
        static: Python values that the program is compiled for: see `Frozen`.
        accum: number of micro-batches that each batch is divided into along its first
            axis, computed in turn in a compiled loop; gradients and metrics are their
            means, by the weights of a `Weighted` loss or metric. A first batch whose
            mean depends on the division warns (`AccumulationWarning`). Arrays without
            axes are shared, and each part folds its number into a random key.
        clip: scale gradients down to this global norm, and report the norm before that
            as `"gradient_norm"`.
        precision: precision of the loss and its gradient. Weights and optimiser stay
            float32. `"f16"` scales the loss, reports `"loss_scale"`, and skips steps
            whose gradients are not finite; `step.init` makes its state.
        compile_budget: maximum number of programs, one for each structure, shape and
            dtype of state and batch; >= 1, or None for no limit.
        donate: let the next state reuse the state's memory.
        layout: placement of state and batch on a mesh of devices, in one process or
            several; `step.init` makes the state. See `frugax.train.distributed`.

    Raises:
        TypeError: an option is of the wrong kind, such as a number as text.
        ValueError: a number is out of its range, or a name is unknown.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from frugax import train
        >>> loss = lambda w, x: ((w - x) ** 2).sum()
        >>> optimizer = optax.sgd(0.25)
        >>> step = train.make_train_step(loss, optimizer, compile_budget=1)
        >>> state = step.init(jnp.zeros(2))
        >>> state, metrics = step(state, jnp.ones(2))
        >>> print(state.params, metrics["loss"])
        [0.5 0.5] 2.0
    """
    check_optimizer(optimizer)
    check_function("loss", loss, example="loss(model, batch)")
    if budget is not None and not isinstance(budget, MemoryShare):
        check_budget(budget, MemoryBudget)
    check_integer("accum", accum)
    check_choice("precision", precision, DTYPES)
    check_flag("donate", donate)
    if clip is not None:
        # An infinite norm clips nothing, but has the gradient's norm reported.
        check_number("clip", clip, above=0, allow_infinite=True)
    if compile_budget is not None:
        check_integer("compile_budget", compile_budget)
    if layout is not None:
        check_instance(
            "layout", layout, Layout, example="train.distributed.Layout.over((8,))"
        )
    return TrainStep(
        StepOptions(
            loss=loss,
            optimizer=optax.with_extra_args_support(optimizer),
            static=None if static is None else Frozen(static),
            accum=accum,
            clip=clip,
            precision=precision,
            donate=donate,
            layout=layout,
            memory=budget,
            compile_budget=compile_budget,
        )
    )
