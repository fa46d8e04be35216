"""The torch implementation of tensor creation and random draws, for bodies of ops."""

from typing import Any

import numpy as np
import torch

from frugax.models.ops import FLOAT_DTYPE, as_dtype, drawing_dtype, largest_below

from ._dtypes import TO_TORCH, Array, Dtypes


class Creation(Dtypes):
    """The methods of the namespace that need no tensor, or only a key."""

    def zeros(self, shape: Any, dtype: Any = None, *, like: Any = None) -> torch.Tensor:
        """A tensor of zeros, on the device of `like`."""
        return torch.zeros(tuple(shape), **self.new(dtype or self.float_dtype, like))

    def ones(self, shape: Any, dtype: Any = None, *, like: Any = None) -> torch.Tensor:
        """A tensor of ones, on the device of `like`."""
        return torch.ones(tuple(shape), **self.new(dtype or self.float_dtype, like))

    def full(
        self, shape: Any, value: Any, dtype: Any = None, *, like: Any = None
    ) -> torch.Tensor:
        """A tensor of one value, on the device of `like`."""
        new = self.new(dtype or self.dtype_of(value), like)
        return torch.full(tuple(shape), value, **new)

    def arange(
        self,
        start: Any,
        stop: Any = None,
        step: Any = 1,
        dtype: Any = None,
        *,
        like: Any = None,
    ) -> torch.Tensor:
        """Evenly spaced numbers; `int_dtype` if all three are ints."""
        if stop is None:
            start, stop = 0, start
        if (stop - start) * step < 0:  # NumPy returns an empty array here, torch raises
            stop = start
        if dtype is None:
            floats = any(isinstance(v, float) for v in (start, stop, step))
            dtype = self.int_dtype
            if floats:
                dtype = self.float_dtype
        return torch.arange(start, stop, step, **self.new(dtype, like))

    def lengths(self, shape: Any) -> torch.Tensor:
        """An integer for each length."""
        return torch.tensor([int(n) for n in shape], **self.new(self.int_dtype, None))

    def eye(
        self, rows: Any, columns: Any = None, k: int = 0, dtype: Any = None
    ) -> torch.Tensor:
        """Ones on the k-th diagonal."""
        columns = rows if columns is None else columns
        # torch.eye knows only the main diagonal.
        i = torch.arange(rows, device=self.device)[:, None]
        j = torch.arange(columns, device=self.device)[None]
        return (j - i == k).to(TO_TORCH[as_dtype(dtype or self.float_dtype)])

    def _draw(self, key: Array, dtype: np.dtype) -> dict[str, Any]:
        """How torch draws from a key, which has no value where only shapes run."""
        new = self.new(dtype, key)
        if key.device.type == "meta":
            return new
        generator = torch.Generator(key.device).manual_seed(int(key))
        return {"generator": generator, **new}

    def random_uniform(
        self, key: Array, shape: Any, low: Any, high: Any, dtype: np.dtype
    ) -> torch.Tensor:
        """Uniform in [low, high)."""
        wide = drawing_dtype(dtype)
        drawn = low + (high - low) * torch.rand(shape, **self._draw(key, wide))
        if wide == dtype:
            return drawn
        most = float(largest_below(np.asarray(high, wide), dtype))
        return drawn.to(TO_TORCH[dtype]).clamp_max(most)

    def random_normal(self, key: Array, shape: Any, dtype: np.dtype) -> torch.Tensor:
        """Standard normal."""
        wide = drawing_dtype(dtype)
        return torch.randn(shape, **self._draw(key, wide)).to(TO_TORCH[dtype])

    def bernoulli(self, key: Array, p: float, shape: Any) -> torch.Tensor:
        """True with probability p."""
        return torch.rand(shape, **self._draw(key, FLOAT_DTYPE)) < p

    def random_integers(
        self, key: Array, shape: Any, low: int, high: int, dtype: np.dtype
    ) -> torch.Tensor:
        """Uniform integers in [low, high)."""
        return torch.randint(low, high, shape, **self._draw(key, dtype))

    def fold_in(self, key: Array, index: Any) -> torch.Tensor:
        """Derive a key for each number by the mixer of SplitMix64.

        Steele, Lea & Flood 2014, OOPSLA, with the constants of Stafford's variant 13.
        """
        if key.device.type == "meta":
            return key
        mask = 2**64 - 1
        z = (int(key) + (int(index) + 1) * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        seed = (z ^ (z >> 31)) >> 1  # 63 bits: a seed is a signed int64
        return torch.scalar_tensor(seed, dtype=torch.int64, device=key.device)

    def split_key(self, key: Array, count: int = 2) -> tuple[torch.Tensor, ...]:
        """New keys for an old one."""
        # Fold numbers that nobody else folds, so a split never meets a `fold_in`.
        return tuple(self.fold_in(key, 2**32 + i) for i in range(count))
