"""Compiled programs, kept for the next tensor of the same shape."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import jax


class JaxCompilationOptimizer:
    """Keeps the programs that were used last, and counts how often one was there.

    Programs are compiled ahead of their first call, so that a hit is a hit: JAX's own
    cache of `jit` has no size and counts nothing.

    Attributes:
        hits: programs that were there.
        misses: programs that had to be made.

    Args:
        size: how many programs to keep.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: OrderedDict[Hashable, Callable[..., Any]] = OrderedDict()
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: object) -> bool:
        return key in self._kept

    def program(
        self, key: Hashable, fn: Callable[..., Any], *args: jax.Array
    ) -> Callable[..., Any]:
        """The compiled form of a function for arguments like these.

        Args:
            key: what tells this program from others: a name, shapes, the device.
            fn: the function to compile.
            *args: examples, on the device where it will run.
        """
        if key in self._kept:
            self.hits += 1
            self._kept.move_to_end(key)
            return self._kept[key]
        self.misses += 1
        compiled = jax.jit(fn).lower(*args).compile()
        self._kept[key] = compiled
        if len(self._kept) > self._size:
            self._kept.popitem(last=False)
        return compiled
