"""`Flatten`: merge axes, by default all but the batch."""

import dataclasses
from typing import Any

from frugax.models.graph import Primitive


@dataclasses.dataclass(frozen=True)
class Flatten(Primitive):
    """Merge axes, by default all but the batch: (batch, 4, 4, 8) to (batch, 128).

    Attributes:
        start: the first of the axes.
        end: the last of the axes, which is merged as well.
    """

    start: int = 1
    end: int = -1

    op = "flatten"
    weight_names = frozenset()

    def attrs(self) -> dict[str, Any]:
        # The op takes Python's bounds, whose end is not included.
        return {"start": self.start, "stop": self.end + 1 if self.end != -1 else None}
