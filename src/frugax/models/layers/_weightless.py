"""The base of layers that are one op and its settings."""

import dataclasses
from typing import Any

from frugax.models.graph import Primitive


@dataclasses.dataclass(frozen=True)
class Weightless(Primitive):
    """One op without weights, whose attributes are the layer's fields."""

    weight_names = frozenset()

    def attrs(self) -> dict[str, Any]:
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "name"
        }
