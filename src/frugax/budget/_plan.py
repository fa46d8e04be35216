"""`Plan`, the protocol of all plans: a budget, the predicted expense, and JSON."""

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Plan(Protocol):
    """A way to meet a budget, decided before anything is spent.

    A plan is a frozen, hashable dataclass. `str(plan)` is a table to read; JSON goes
    both ways without loss. Planning raises `InfeasibleBudgetError` when nothing fits;
    with the limit raised to `error.needed` it succeeds. `tests/contracts` holds every
    package to this.
    """

    @property
    def budget(self) -> Any:
        """The budget that the plan meets."""
        ...

    @property
    def predicted(self) -> float:
        """The expected expense in the budget's unit; <= the limit."""
        ...

    def to_json(self) -> str:
        """The plan as JSON text."""
        ...

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Read a plan that `to_json` wrote."""
        ...

    def __hash__(self) -> int: ...
