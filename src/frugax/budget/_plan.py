"""`Plan`, the base class of all plans: a budget, the predicted expense, and JSON."""

import json
from typing import TYPE_CHECKING, Any, Self

from ._plain import from_plain, to_json, to_plain


class Plan:
    """A way to meet a budget, decided before anything is spent.

    A plan is a frozen, hashable dataclass. `str(plan)` is a table to read; JSON goes
    both ways without loss. Planning raises `InfeasibleBudgetError` when nothing fits;
    with the limit raised to `error.needed` it succeeds. `tests/contracts` holds every
    package to this.

    Attributes:
        budget: the limit that the plan meets.
        predicted: the expected expense in the budget's unit; <= the limit.
    """

    # Plans have slots, which a base class without them would undo: each plan would get
    # a `__dict__` again.
    __slots__ = ()

    # Read-only, as fields of a frozen dataclass are. At run time a property here would
    # be the default of a field of this name.
    if TYPE_CHECKING:

        @property
        def budget(self) -> Any: ...

        @property
        def predicted(self) -> Any: ...

    def to_json(self) -> str:
        """The plan as strict JSON text; a number that is not finite is null."""
        return to_json(to_plain(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a plan that `to_json` wrote.

        Args:
            text: JSON.

        Raises:
            ValueError: `text` is not such a plan; the message names the place.
        """
        try:
            data = json.loads(text)
        except json.JSONDecodeError as e:
            raise ValueError(f"not a valid plan: invalid JSON ({e}).") from e
        return from_plain(cls, data, null_is_nan=True)
