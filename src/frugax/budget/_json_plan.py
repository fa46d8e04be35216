"""`JsonPlan`: base class of plans, which writes them as JSON and reads them back."""

import json
from typing import TypeVar

from ._plain import from_plain, to_json, to_plain

P = TypeVar("P")


class JsonPlan:
    """Base class that gives a plan its `to_json` and `from_json`."""

    # Plans have slots, which a base class without them would undo: each plan would get
    # a `__dict__` again.
    __slots__ = ()

    def to_json(self) -> str:
        """The plan as strict JSON text; a number that is not finite is null."""
        return to_json(to_plain(self), indent=1)

    @classmethod
    def from_json(cls: type[P], text: str) -> P:
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
