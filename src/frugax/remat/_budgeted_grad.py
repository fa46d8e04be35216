"""`value_and_grad` and `grad` of JAX in a memory budget, planned at the first call."""

from collections.abc import Callable
from typing import Any

import jax

from frugax.budget import MemoryBudget, MemoryShare, check_budget
from frugax.jaxprs import take_arrays

from ._apply import PlannedGrad, apply
from ._planner import check_arrays, plan
from ._shardings import example_shapes


class BudgetedGrad:
    """A loss's value and gradients; each new set of shapes is planned separately.

    Made by `value_and_grad`. The first call with new shapes compiles three to
    eleven programs; later calls run the plan.
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        budget: MemoryBudget | MemoryShare,
        argnums: int | tuple[int, ...],
        *,
        has_aux: bool,
    ) -> None:
        if not isinstance(budget, MemoryShare):
            check_budget(budget, MemoryBudget)
        self._loss, self._budget = loss, budget
        self._argnums, self._has_aux = argnums, has_aux
        self._planned: dict[Any, PlannedGrad] = {}

    def planned_for(self, *args: Any) -> PlannedGrad:
        """The planned function for arguments or shapes like these.

        Raises:
            InfeasibleBudgetError: none of the measured plans fits.
            RematUndoneError: the compiler merged away all recomputation.
            TypeError: the loss cannot be traced, or does not return a number.
        """
        how: dict[str, Any] = {"argnums": self._argnums, "has_aux": self._has_aux}
        taken = take_arrays(self._loss, args, **how)
        check_arrays(taken.args, name="args")
        # Shapes and not values: besides their places on devices, the memory of a
        # program depends on nothing else.
        shapes = example_shapes(taken.args)
        leaves = tuple(jax.tree.leaves(shapes))
        key = taken.key, jax.tree.structure(shapes), leaves
        if key not in self._planned:
            new = plan(self._loss, self._budget, example_args=args, **how)
            self._planned[key] = apply(self._loss, new)
        return self._planned[key]

    def __call__(self, *args: Any) -> tuple[Any, Any]:
        """The loss, with its auxiliary output if it has one, and its gradients.

        Raises:
            InfeasibleBudgetError: none of the measured plans fits.
            RematUndoneError: the compiler merged away all recomputation.
            TypeError: the loss cannot be traced, or does not return a number.
        """
        return self.planned_for(*args)(*args)


def value_and_grad(
    loss: Callable[..., Any],
    budget: MemoryBudget | MemoryShare,
    *,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
) -> BudgetedGrad:
    """`jax.value_and_grad(loss)` within a memory budget, planned at the first call.

    This is `plan` and `apply` in one, for the gradient alone. Use those two to fit a
    whole training step, or to save the plan.

    Args:
        loss: as for `plan`.
        budget: the most memory the gradient program may need, in bytes.
        argnums: which arguments to differentiate.
        has_aux: whether `loss` returns (number, anything).

    Raises:
        TypeError: `budget` is not a MemoryBudget.
    """
    return BudgetedGrad(loss, budget, argnums, has_aux=has_aux)


def grad(
    loss: Callable[..., Any],
    budget: MemoryBudget | MemoryShare,
    *,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
) -> Callable[..., Any]:
    """`jax.grad(loss)` within a memory budget, planned at the first call.

    Args:
        loss: as for `plan`.
        budget: the most memory the program with value and gradients may need, in
            bytes.
        argnums: which arguments to differentiate.
        has_aux: whether `loss` returns (number, anything).

    Raises:
        TypeError: `budget` is not a MemoryBudget.

    Example:
        >>> import jax.numpy as jnp
        >>> square = grad(lambda x: jnp.sum(x**2), MemoryBudget("1MiB"))
        >>> print(square(jnp.arange(3.0)))
        [0. 2. 4.]
    """
    both = value_and_grad(loss, budget, argnums=argnums, has_aux=has_aux)

    def gradients(*args: Any) -> Any:
        value, grads = both(*args)
        return (grads, value[1]) if has_aux else grads

    return gradients
