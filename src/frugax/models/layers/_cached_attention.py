"""Causal attention with a cache of keys and values (KV cache), for decoding."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from frugax.models.graph import (
    Composite,
    Fill,
    IOKey,
    Primitive,
    Shape,
    Weight,
    require_static,
)
from frugax.models.ops import Count


@dataclasses.dataclass(frozen=True)
class CachedAttention(Primitive):
    """Causal attention to earlier positions, whose keys and values are state.

    The inputs are those of the new positions, (batch, time, heads, features), and
    `position`, int32: how many positions came before. The state `keys` and `values`,
    (batch, length, heads, features), goes in with the data and comes out updated.

    Attributes:
        length: the most positions of a sequence; the results of later ones are NaN.
        window: how many positions a query sees, with its own; None: all before it.
    """

    length: Count
    window: Count | None = None

    op = "cached_attention"
    ports = ("query", "key", "value", "position")
    port_dtypes: ClassVar[Mapping[str, str]] = {"position": "int32"}
    weight_names = frozenset({"keys", "values"})
    output_ports = ("output", "new_keys", "new_values")

    def attrs(self) -> dict[str, Any]:
        return {"window": self.window}

    def weights(
        self, query: Shape, key: Shape, value: Shape, position: Shape
    ) -> dict[str, Weight]:
        if not len(query) == len(key) == len(value) == 4:
            raise ValueError("it needs (batch, time, heads, features)")
        found = {}
        for name, shape in (("keys", key), ("values", value)):
            batch, _, heads, features = shape
            lengths = map(require_static, (batch, heads, features))
            batch, heads, features = lengths
            full = (batch, self.length, heads, features)
            found[name] = Weight(full, Fill(0), kind="state")
        return found


@dataclasses.dataclass(frozen=True)
class Decoding(Composite):
    """Base of layers that take a `position` if they keep a cache.

    Attributes:
        cache_length: how many positions the caches of its attention hold; None keeps no
            cache. A layer with caches reads the new positions only.
    """

    cache_length: Count | None = dataclasses.field(default=None, kw_only=True)

    @property
    def inputs(self) -> tuple[str, ...]:
        found = super().inputs
        if self.cache_length is None:
            return tuple(port for port in found if port != "position")
        return tuple(port for port in found if port not in _NOT_CACHED)

    @property
    def optional(self) -> frozenset[str]:
        return super().optional & frozenset(self.inputs) - {"position"}

    def input_keys(self) -> dict[str, IOKey]:
        if self.cache_length is None:
            return {}
        return {"position": IOKey("position", shape=(), dtype="int32")}


# The cache decides which positions a query sees, and holds one sequence.
_NOT_CACHED = ("keys", "values", "mask", "memory", "memory_mask")
