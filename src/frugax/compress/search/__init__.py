"""The search for every tensor's codec and step within a `SizeBudget`."""

from ._choose import describe_best_size
from ._source import Source

__all__ = ["Source", "describe_best_size"]
