"""`jax.grad` with recomputed blocks of a given size, and the least memory."""

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax

from frugax.budget import MemoryBudget
from frugax.errors import FrugaxError, InfeasibleBudgetError
from frugax.remat import PlannedGrad, RematPlan, apply, example_shapes, plan
from frugax.remat.solver import check_block_size

# No program fits in one byte of temporaries, so the search goes on to the smallest one.
# A limit on all bytes would be refused before the search: below the arguments and
# results it is hopeless.
_LEAST = MemoryBudget(limit_bytes=1)
# The errors of a loss that cannot be planned. Any other error is a bug and is raised.
_CANNOT = (
    TypeError,
    NotImplementedError,
    FrugaxError,
    jax.errors.NonConcreteBooleanIndexError,
)


@dataclasses.dataclass(frozen=True)
class CheckpointPlan:
    """The plan of an executor, and its figures by name.

    Attributes:
        plan: the parts of the loss that are kept and recomputed.
        meta: `block_size`, as asked for, or the operations in the largest recomputed
            block if there was no limit; and `peak_frontier`, bytes of the compiled
            program as XLA measures them, without its arguments and results.
    """

    plan: RematPlan
    meta: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class HeightCompressedExecutor:
    """A plan, and the function that carries it out.

    Attributes:
        checkpoint_plan: the plan.
        value_and_grad: called as `jax.value_and_grad(loss)`.
    """

    checkpoint_plan: CheckpointPlan
    value_and_grad: PlannedGrad


class HeightCompressedGrad:
    """`jax.grad(loss)` by a plan; made by `height_compressed_grad`.

    Each new set of shapes is planned at its first call.

    Attributes:
        last_executor: the executor of the last call; None if `jax.grad` ran it.
    """

    def __init__(self, loss: Callable[..., Any], block_size: int | None) -> None:
        self.last_executor: HeightCompressedExecutor | None = None
        self._loss, self._block_size = loss, block_size
        # None remembers that planning failed, so the warning comes once.
        self._executors: dict[Any, HeightCompressedExecutor | None] = {}

    def __call__(self, *args: Any) -> Any:
        """The gradient with respect to the first argument.

        Warns:
            UserWarning: once for each set of shapes that cannot be planned, with
                the reason.
        """
        # Of arrays, numbers and tracers alike; with their places on devices.
        shapes = example_shapes(args)
        key = jax.tree.structure(shapes), tuple(jax.tree.leaves(shapes))
        if key not in self._executors:
            self._executors[key] = self._prepare(shapes)
        self.last_executor = self._executors[key]
        if self.last_executor is None:
            # The gradient is right either way; only the memory is not limited.
            return jax.grad(self._loss)(*args)
        return self.last_executor.value_and_grad(*args)[1]

    def _prepare(self, shapes: tuple[Any, ...]) -> HeightCompressedExecutor | None:
        try:
            least = _plan_least(self._loss, shapes, self._block_size)
        except _CANNOT as e:
            warnings.warn(
                "no plan was found, so this gradient is left to jax.grad and its "
                f"memory is not limited: {str(e).splitlines()[0]}",
                UserWarning,
                stacklevel=3,
            )
            return None
        # The gate marks a segment that is recomputed; the others are kept.
        blocks = [s.stop - s.start for s in least.segments if s.gate]
        meta = {
            "block_size": self._block_size or max(blocks, default=0),
            "peak_frontier": least.predicted,
        }
        return HeightCompressedExecutor(
            CheckpointPlan(least, meta), apply(self._loss, least)
        )


def _plan_least(
    loss: Callable[..., Any], shapes: tuple[Any, ...], block_size: int | None
) -> RematPlan:
    """The plan of the smallest program among those that `remat.plan` compiles."""
    try:
        # Recomputed blocks alone: chunks of the batch would round differently.
        return plan(
            loss,
            _LEAST,
            shapes,
            block_size=block_size,
            divide_batch=False,
            offload=False,
        )
    except InfeasibleBudgetError as e:
        if not isinstance(e.best, RematPlan):
            raise
        return e.best


def height_compressed_grad(
    loss: Callable[..., Any], block_size: int | None = None
) -> HeightCompressedGrad:
    """`jax.grad(loss)` that recomputes blocks of operations to save memory.

    Of the programs that `remat.plan` compiles and measures, the smallest is used; for a
    program within a limit call `remat.grad`. If a loss cannot be planned, a warning
    states the reason and `jax.grad` is used.

    Args:
        loss: a function of positional arguments that returns one real number.
        block_size: the most operations in a recomputed block; None for any number.
            Blocks end only at the planner's cuts, after a matrix product or where few
            bytes cross: a small `block_size` may leave nothing to recompute.

    Raises:
        ValueError: `block_size` is less than 1.

    Example:
        >>> import jax.numpy as jnp
        >>> def loss(w):
        ...     for _ in range(8):
        ...         w = jnp.tanh(w @ w)
        ...     return jnp.sum(w)
        >>> gradient = height_compressed_grad(loss, block_size=4)
        >>> gradient(jnp.eye(64)).shape
        (64, 64)
        >>> plan = gradient.last_executor.checkpoint_plan
        >>> plan.meta["peak_frontier"] < plan.plan.unplanned_bytes
        True
    """
    # Checked here and not at the first call, where the traceback would point at a
    # training loop.
    check_block_size(block_size)
    return HeightCompressedGrad(loss, block_size)
