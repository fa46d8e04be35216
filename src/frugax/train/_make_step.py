"""`make_train_step`: what a step shall do, and the budgets it keeps within."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import optax

from frugax.budget import MemoryBudget, TimeBudget, check_budget

from ._build import Recipe, check_loss
from ._layout import Layout
from ._precision import COMPUTE, Precision
from ._state import check_optimizer
from ._static import Frozen
from ._step import OnExcess, TrainStep

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
        budget: the most memory the compiled step may need; a `TimeBudget` with
            `compiles`; or several of them.
        static: Python values that the program is compiled for: see `Frozen`.
        accum: micro-batches that each batch is cut into along its first axis, one
            after the other in a compiled loop; gradients and metrics are their means.
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
        TypeError: `optimizer` or `budget` is none, but a number or text.
        ValueError: a number is out of its range, or a name unknown.

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
    check_loss(loss)
    memory, compiles = _sorted_out(budget)
    limits = [n for n in (compile_budget, compiles) if n is not None]
    if compile_budget is not None and compile_budget < 1:
        raise ValueError(f"compile_budget must be >= 1, got {compile_budget}.")
    if accum < 1:
        raise ValueError(f"accum must be >= 1, got {accum}.")
    if clip is not None and not clip > 0:
        raise ValueError(f"clip must be > 0, got {clip}.")
    if precision not in COMPUTE:
        raise ValueError(
            f"precision must be one of {', '.join(COMPUTE)}, got {precision!r}."
        )
    if on_excess not in ("raise", "warn", "eager"):
        raise ValueError(
            f'on_excess must be "raise", "warn" or "eager", got {on_excess!r}.'
        )
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
        TypeError: something is no budget, or there are two for memory.
    """
    memory: MemoryBudget | None = None
    compiles: int | None = None
    several = budget if isinstance(budget, (tuple, list)) else [budget]
    for one in several:
        if one is None:
            continue
        if isinstance(one, TimeBudget):
            compiles = one.compiles
            continue
        check_budget(one, MemoryBudget)
        assert isinstance(one, MemoryBudget)  # for the type checker: just checked
        if memory is not None:
            raise TypeError(f"two memory budgets were given: {memory} and {one}.")
        memory = one
    return memory, compiles
