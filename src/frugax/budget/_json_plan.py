"""JSON both ways, for plans that are dataclasses of plain data."""

import json
from typing import TypeVar

from ._plain import from_plain, to_plain

P = TypeVar("P")


class JsonPlan:
    """What a room's plan is derived from to be written and read."""

    __slots__ = ()

    def to_json(self) -> str:
        """The plan as JSON text."""
        return json.dumps(to_plain(self), indent=1)

    @classmethod
    def from_json(cls: type[P], text: str) -> P:
        """The plan that `to_json` wrote.

        Args:
            text: JSON.

        Raises:
            ValueError: the text is no such plan; the message names the place.
        """
        try:
            data = json.loads(text)
        except json.JSONDecodeError as e:
            raise ValueError(f"this is no plan, since it is no JSON: {e}") from e
        return from_plain(cls, data)
