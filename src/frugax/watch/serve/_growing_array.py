"""An array that grows at its end in amortised constant time."""

from typing import Any

import numpy as np
from jaxtyping import Shaped


class GrowingArray:
    """Values of one dtype, which may have fields."""

    def __init__(self, dtype: Any) -> None:
        """Hold nothing yet."""
        self._buffer = np.empty(64, dtype)
        self._n = 0

    def __len__(self) -> int:
        return self._n

    @property
    def array(self) -> Shaped[np.ndarray, " n"]:
        """The content as a view, which is valid until the next change."""
        return self._buffer[: self._n]

    def append(self, value: Any) -> None:
        """Append a value."""
        if self._n == len(self._buffer):
            # Growing by half keeps the copies linear in the final size.
            buffer = np.empty(len(self._buffer) * 3 // 2, self._buffer.dtype)
            buffer[: self._n] = self._buffer
            self._buffer = buffer
        self._buffer[self._n] = value
        self._n += 1

    def truncate(self, count: int) -> None:
        """Keep the first `count` values."""
        self._n = min(self._n, count)
