"""A gradient that recomputes in blocks, as large as you say or as a budget wants.

What cannot be planned is left to `jax.grad`, and said so.
"""

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax

from frugax.budget import MemoryBudget, check_budget
from frugax.errors import FrugaxError
from frugax.remat import BodyPlan, Segment, apply, plan
from frugax.remat.rewrite import build_value_and_grad, rewrite_loops, trace_loss
from frugax.remat.solver import (
    build_segments,
    check_block_size,
    list_candidates,
    model_peak,
)

# Why a loss cannot be planned; anything else is a mistake and is raised.
_CANNOT = (
    TypeError,
    NotImplementedError,
    FrugaxError,
    jax.errors.NonConcreteBooleanIndexError,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlan:
    """What is kept and what is done again.

    Attributes:
        segments: the parts of the loss, in order.
        insides: what is done again inside its scans and conds.
        meta: the plan in numbers, which are the model's unless they say measured.
            `block_size`: most operations that a recomputed block may hold; if no
            limit was given, those of the largest. `blocks`: how many are recomputed.
            `scans`: in how many scans and conds rounds or branches are done again.
            `peak_frontier`: most bytes held during the backward pass.
            `unplanned_peak_frontier`: the same with nothing recomputed.
            `recomputed_flops`: done a second time. With a budget also
            `measured_bytes`: what XLA accounted for, of the budget's kind.
    """

    segments: tuple[Segment, ...]
    insides: tuple[BodyPlan, ...]
    meta: Mapping[str, int]


@dataclasses.dataclass(frozen=True, eq=False)
class Executor:
    """Runs a plan.

    Attributes:
        checkpoint_plan: the plan.
        value_and_grad: the function that carries it out.
    """

    checkpoint_plan: CheckpointPlan
    value_and_grad: Callable[..., tuple[Any, Any]]


class HeightCompressedGrad:
    """`jax.grad(loss)` by a plan, which is made at the first call for each shape.

    Made by `height_compressed_grad`.

    Attributes:
        last_executor: what ran the last call; None if that was `jax.grad`.
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        block_size: int | None,
        budget: MemoryBudget | None,
    ) -> None:
        if budget is not None:
            check_budget(budget, MemoryBudget)
        check_block_size(block_size)
        self.last_executor: Executor | None = None
        self._loss, self._block_size, self._budget = loss, block_size, budget
        self._executors: dict[Any, Executor | None] = {}

    def __call__(self, *args: Any) -> Any:
        """The gradient with respect to the first argument.

        Warns:
            UserWarning: once for each set of shapes that cannot be planned; says why.
        """
        shapes = jax.eval_shape(lambda *given: given, *args)
        key = jax.tree.structure(shapes), tuple(jax.tree.leaves(shapes))
        if key not in self._executors:
            self._executors[key] = self._prepare(shapes)
        self.last_executor = self._executors[key]
        if self.last_executor is None:
            return jax.grad(self._loss)(*args)
        return self.last_executor.value_and_grad(*args)[1]

    def _prepare(self, shapes: tuple[Any, ...]) -> Executor | None:
        try:
            return _executor(self._loss, shapes, self._block_size, self._budget)
        except _CANNOT as e:
            warnings.warn(
                "no plan for this gradient, so it is left to jax.grad and its memory "
                f"is not limited: {str(e).splitlines()[0]}",
                UserWarning,
                stacklevel=3,
            )
            return None


def height_compressed_grad(
    loss: Callable[..., Any],
    block_size: int | None = None,
    budget: MemoryBudget | None = None,
) -> HeightCompressedGrad:
    """`jax.grad(loss)` that recomputes blocks of operations to save memory.

    With a budget this is `plan`: programs are compiled and measured until one fits.
    Without, the plan with the least peak is taken, by the planner's model; nothing is
    measured. If no plan can be made, a warning says why and `jax.grad` is used.

    Args:
        loss: a function of positional arguments that returns one real number.
        block_size: most operations that a recomputed block may hold; None: any
            number. Blocks end at the planner's cuts only, after a matrix product or
            where few bytes cross: a small `block_size` may leave nothing to recompute.
        budget: the most memory the gradient program may need, in bytes.

    Raises:
        TypeError: the budget is none.
        ValueError: `block_size` is less than 1.

    Example:
        >>> import jax.numpy as jnp
        >>> def loss(w):
        ...     for _ in range(8):
        ...         w = jnp.tanh(w @ w)
        ...     return jnp.sum(w)
        >>> gradient = height_compressed_grad(loss, block_size=4)
        >>> gradient(jnp.eye(16)).shape
        (16, 16)
        >>> meta = gradient.last_executor.checkpoint_plan.meta
        >>> meta["block_size"], meta["peak_frontier"] < meta["unplanned_peak_frontier"]
        (4, True)
    """
    return HeightCompressedGrad(loss, block_size, budget)


def _executor(
    loss: Callable[..., Any],
    shapes: tuple[Any, ...],
    block_size: int | None,
    budget: MemoryBudget | None,
) -> Executor:
    body = trace_loss(loss, shapes, 0, has_aux=False)
    measured: dict[str, int] = {}
    if budget is None:
        least = list_candidates(body, block_size)[-1]
        segments, insides = build_segments(least, jax.default_backend()), least.insides
        again = least.flops
        mark = body.graph.fingerprint
        step: Callable[..., Any] = jax.jit(
            build_value_and_grad(
                loss, segments, insides, mark, argnums=0, has_aux=False
            )
        )
    else:
        made = plan(loss, shapes, budget, block_size=block_size)
        segments, insides, step = made.segments, made.insides, apply(loss, made)
        again = made.extra_flops
        measured["measured_bytes"] = made.predicted
    blocks = [s.stop - s.start for s in segments if s.gate]
    meta = {
        "block_size": block_size or max(blocks, default=0),
        "blocks": len(blocks),
        "scans": len(insides),
        "peak_frontier": model_peak(rewrite_loops(body, insides), segments),
        "unplanned_peak_frontier": model_peak(body, ()),
        "recomputed_flops": again,
        **measured,
    }
    return Executor(CheckpointPlan(segments=segments, insides=insides, meta=meta), step)
