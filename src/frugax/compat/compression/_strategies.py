"""Make files within budgets, and choose who decodes their tensors: JAX or NumPy."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from frugax.budget import SizeBudget
from frugax.compress import CompressedBytes, CompressedFile, Record, compress
from frugax.errors import InfeasibleBudgetError
from frugax.trees import PyTree

from ._settings import CompressionProfile

# "auto" sends tensors of this size and more to JAX: for smaller ones, on a CPU,
# compiling takes longer than decoding.
_MIN_DEVICE_SIZE = 1 << 16


class StrategySelector:
    """Chooses who decodes a tensor, for a profile and the libraries that are here.

    Args:
        profile: whose strategy is followed; by default `CompressionProfile()`.
        jax_strategy: a coordinator's component of that name; None without JAX.
    """

    def __init__(
        self, profile: CompressionProfile | None = None, jax_strategy: Any = None
    ) -> None:
        self._strategy = (profile or CompressionProfile()).strategy
        self._jax_strategy = jax_strategy

    def select_strategy(self, record: Record) -> str:
        """Return "jax", "numpy", or "lossless" for an exact tensor."""
        if record.step is None:
            return "lossless"
        is_large = record.size >= _MIN_DEVICE_SIZE
        asks_jax = self._strategy == "jax" or (self._strategy == "auto" and is_large)
        return "jax" if asks_jax and self._jax_strategy else "numpy"

    def decode(self, data: bytes) -> dict[str, np.ndarray]:
        """Return the tensors of a file by name.

        Raises:
            CorruptFileError: the file is damaged, or JAX computed other bits.
        """
        with CompressedFile(data, place="the compressed data") as file:
            file.check()
            weights: dict[str, np.ndarray] = {}
            for name in file:
                by_jax = self.select_strategy(file.record(name)) == "jax"
                decode = (
                    self._jax_strategy.decode if by_jax else CompressedFile.__getitem__
                )
                weights[name] = decode(file, name)
            return weights


def compress_within(weights: PyTree, budgets: Sequence[SizeBudget]) -> CompressedBytes:
    """Make a file within the first of several budgets that can be met."""
    *preferred, last = budgets
    for budget in preferred:
        try:
            return compress(weights, budget)
        except InfeasibleBudgetError:
            continue
    return compress(weights, last)
