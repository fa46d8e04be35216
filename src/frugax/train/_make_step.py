"""`make_train_step`: what a step shall do, and the budgets it keeps within."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, get_args

import optax

from frugax.budget import MemoryBudget, TimeBudget, check_budget, format_seconds

from ._build import Recipe
from ._layout import Layout
from ._precision import COMPUTE, Precision
from ._state import check_optimizer
from ._static import Frozen
from ._step import OnExcess, TrainStep
from .options import (
    check_choice,
    check_flag,
    check_function,
    check_instance,
    check_integer,
    check_number,
)

Budgets: TypeAlias = (
    MemoryBudget | TimeBudget | Sequence["MemoryBudget | TimeBudget"] | None
)


def make_train_step(
    loss: Callable[..., Any],
    optimizer: optax.GradientTransformation,
    *,
    budget: Budgets = None,
    static: Any = None,
    accum: int = 1,
    clip: float | None = None,
    precision: Precision = "f32",
    compile_budget: int | None = None,
    on_excess: OnExcess = "raise",
    fallback: bool = True,
    donate: bool = True,
    layout: Layout | None = None,
) -> TrainStep:
    """Make one compiled training step that keeps within its budgets.

    With a memory budget the backward pass recomputes what does not fit. The whole
    compiled step is what is planned and measured: gradient, optimiser and donation.

    Args:
        loss: `loss(model, batch)` gives a real scalar, or that and a dict of scalars
            to report beside it. `model` is what `step.init` was given, with the
            weights of now. With `carried` arrays in the state it is called as
            `loss(model, batch, carried)` and gives scalar, dict and new ones; with
            `static`, that comes last.
        optimizer: from optax, or anything with its `init` and `update`. Those that
            want the loss are given it, as `value=`.
        budget: the most memory the compiled step may need, on each device; a
            `TimeBudget` of `compiles` alone, for it is `fit` that keeps seconds; or
            one of each.
        static: Python values that the program is compiled for: see `Frozen`.
        accum: micro-batches that each batch is cut into along its first axis, one
            after the other in a compiled loop; gradients and metrics are their means.
            Numbers without axes are the same for all, a random key is another for each.
        clip: scale gradients down to this global norm, and report the norm before as
            `"gradient_norm"`.
        precision: what the loss and its gradient are computed in. Weights and
            optimiser stay float32. `"f16"` scales the loss, reports `"loss_scale"`,
            and skips steps whose gradients are not finite; its state is made by
            `step.init`.
        compile_budget: how many programs may be compiled, one for each structure,
            shape and dtype of state and batch; >= 1, or None for any number.
        on_excess: what to do about a program beyond that: raise, warn and compile it,
            or run these shapes eagerly.
        fallback: where JAX cannot trace or compile the step, run it in the next best
            way that keeps the budgets, and warn once.
        donate: whether the state's memory may be used again for the next state.
        layout: where state and batch lie on a mesh of devices, in one process or in
            several; the state is made by `step.init`. See `frugax.train.distributed`.

    Raises:
        TypeError: an option is of the wrong kind, such as a number as text.
        ValueError: a number is out of its range, a name unknown, or the budget limits
            seconds, or with a layout more than temporaries.

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
    memory, compiles = _sorted_out(budget)
    check_integer("accum", accum)
    check_choice("precision", precision, COMPUTE)
    check_choice("on_excess", on_excess, get_args(OnExcess))
    check_flag("fallback", fallback)
    check_flag("donate", donate)
    if clip is not None:
        # Infinite clips nothing, but has the norm reported.
        check_number("clip", clip, above=0, allow_infinite=True)
    if compile_budget is not None:
        check_integer("compile_budget", compile_budget)
    if layout is not None:
        check_instance(
            "layout", layout, Layout, example="train.distributed.Layout.over((8,))"
        )
        if memory is not None and memory.kind != "temp":
            raise ValueError(
                "with a layout the memory of a step is planned for temporaries: say "
                f'MemoryBudget(..., kind="temp") instead of {memory.kind!r}, and '
                "choose the layout with distributed.plan."
            )
    limits = [n for n in (compile_budget, compiles) if n is not None]
    recipe = Recipe(
        loss=loss,
        optimizer=optax.with_extra_args_support(optimizer),
        static=None if static is None else Frozen(static),
        accum=accum,
        clip=clip,
        precision=precision,
        donate=donate,
        layout=layout,
    )
    return TrainStep(
        recipe,
        memory=memory,
        compile_budget=min(limits, default=None),
        on_excess=on_excess,
        fallback=fallback,
    )


def _sorted_out(budget: Budgets) -> tuple[MemoryBudget | None, int | None]:
    """The memory budget and the number of compiles among some budgets.

    Raises:
        TypeError: something is no budget, or there are two of a kind.
        ValueError: one limits seconds, which a single step cannot keep.
    """
    memory: MemoryBudget | None = None
    time: TimeBudget | None = None
    several = budget if isinstance(budget, (tuple, list)) else [budget]
    for one in several:
        if one is None:
            continue
        if isinstance(one, TimeBudget):
            if one.seconds is not None:
                raise ValueError(
                    f"a step cannot keep the {format_seconds(one.seconds)} of {one!r}: "
                    "give the seconds to fit(budget=...), and here "
                    "TimeBudget(compiles=...) or nothing."
                )
            if time is not None:
                raise TypeError(f"two time budgets were given: {time} and {one}.")
            time = one
            continue
        check_budget(one, MemoryBudget)
        assert isinstance(one, MemoryBudget)  # for the type checker: just checked
        if memory is not None:
            raise TypeError(f"two memory budgets were given: {memory} and {one}.")
        memory = one
    return memory, None if time is None else time.compiles
