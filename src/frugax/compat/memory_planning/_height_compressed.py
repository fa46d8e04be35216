"""`jax.grad` with recomputed blocks of a given size, or within a budget."""

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

# The errors of a loss that cannot be planned. Any other error is a bug and is raised.
_CANNOT = (
    TypeError,
    NotImplementedError,
    FrugaxError,
    jax.errors.NonConcreteBooleanIndexError,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlan:
    """The parts of a loss that are kept and recomputed.

    Attributes:
        segments: the parts of the loss, in order.
        body_plans: how its scans and conds recompute.
        meta: figures of the plan, by the model unless their name says measured.
            `block_size`: the most operations in a recomputed block, or the size of the
            largest if no limit was given. `blocks`: the number of recomputed blocks.
            `scans`: the number of scans and conds that recompute. `peak_frontier`: most
            bytes held during the backward pass. `unplanned_peak_frontier`: the same
            with nothing recomputed. `recomputed_flops`: flops computed a second time.
            With a budget also `measured_bytes`: XLA's figure, of the budget's kind.
    """

    segments: tuple[Segment, ...]
    body_plans: tuple[BodyPlan, ...]
    meta: Mapping[str, int]


@dataclasses.dataclass(frozen=True, eq=False)
class Executor:
    """A plan, and the function that carries it out.

    Attributes:
        checkpoint_plan: the plan.
        value_and_grad: called as `jax.value_and_grad(loss)`.
    """

    checkpoint_plan: CheckpointPlan
    value_and_grad: Callable[..., tuple[Any, Any]]


class HeightCompressedGrad:
    """`jax.grad(loss)` by a plan; made by `height_compressed_grad`.

    Each new set of shapes is planned at its first call.

    Attributes:
        last_executor: the executor of the last call; None if `jax.grad` ran it.
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        block_size: int | None,
        budget: MemoryBudget | None,
    ) -> None:
        if budget is not None:
            check_budget(budget, MemoryBudget)
        # Checked here and not at the first call, where the traceback would point at a
        # training loop.
        check_block_size(block_size)
        self.last_executor: Executor | None = None
        self._loss, self._block_size, self._budget = loss, block_size, budget
        # One plan for each structure and set of shapes, as jax.jit has one program;
        # None remembers that planning failed, so the warning comes once.
        self._executors: dict[Any, Executor | None] = {}

    def __call__(self, *args: Any) -> Any:
        """The gradient with respect to the first argument.

        Warns:
            UserWarning: once for each set of shapes that cannot be planned, with
                the reason.
        """
        # eval_shape turns arrays, numbers and tracers alike into shapes with weak
        # types, which can be hashed.
        shapes = jax.eval_shape(lambda *given: given, *args)
        key = jax.tree.structure(shapes), tuple(jax.tree.leaves(shapes))
        if key not in self._executors:
            self._executors[key] = self._prepare(shapes)
        self.last_executor = self._executors[key]
        if self.last_executor is None:
            # The gradient is right either way; only the memory is not limited.
            return jax.grad(self._loss)(*args)
        return self.last_executor.value_and_grad(*args)[1]

    def _prepare(self, shapes: tuple[Any, ...]) -> Executor | None:
        try:
            return _executor(self._loss, shapes, self._block_size, self._budget)
        except _CANNOT as e:
            warnings.warn(
                "no plan was found, so this gradient is left to jax.grad and its "
                f"memory is not limited: {str(e).splitlines()[0]}",
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

    With a budget, programs are compiled and measured until one fits, as by
    `remat.plan`. Without, the plan with the smallest peak by the planner's model is
    used, and nothing is measured. If a loss cannot be planned, a warning states the
    reason and `jax.grad` is used.

    Args:
        loss: a function of positional arguments that returns one real number.
        block_size: the most operations in a recomputed block; None for any number.
            Blocks end only at the planner's cuts, after a matrix product or where few
            bytes cross: a small `block_size` may leave nothing to recompute.
        budget: the most memory the gradient program may need, in bytes.

    Raises:
        TypeError: `budget` is not a MemoryBudget.
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
    step: Callable[..., Any]
    if budget is None:
        # Candidates are sorted by their modelled peak, the lowest last.
        least = list_candidates(body, block_size)[-1]
        segments = build_segments(least, jax.default_backend())
        body_plans, recomputed_flops = least.body_plans, least.flops
        fingerprint = body.graph.fingerprint
        step = jax.jit(
            build_value_and_grad(
                loss, segments, body_plans, fingerprint, argnums=0, has_aux=False
            )
        )
    else:
        found = plan(
            loss,
            budget,
            example_args=shapes,
            block_size=block_size,
            divide_batch=False,  # this report is about recomputed blocks
        )
        segments, body_plans = found.segments, found.body_plans
        step, recomputed_flops = apply(loss, found), found.extra_flops
        # Only a budget has programs compiled while planning, so only then is XLA's
        # figure known.
        measured["measured_bytes"] = found.predicted
    # The gate marks a segment that is recomputed; the others are kept.
    blocks = [s.stop - s.start for s in segments if s.gate]
    meta = {
        "block_size": block_size or max(blocks, default=0),
        "blocks": len(blocks),
        "scans": len(body_plans),
        # The plan's segments index the program after its loops were rewritten.
        "peak_frontier": model_peak(rewrite_loops(body, body_plans), segments),
        "unplanned_peak_frontier": model_peak(body, ()),
        "recomputed_flops": recomputed_flops,
        **measured,
    }
    checkpoint_plan = CheckpointPlan(
        segments=segments, body_plans=body_plans, meta=meta
    )
    return Executor(checkpoint_plan, step)
