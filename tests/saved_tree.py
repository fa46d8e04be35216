"""A small tree with something of every kind, and a budget for it."""

from typing import Any

import numpy as np

from frugax import SizeBudget

RNG = np.random.default_rng(0)
TREE: dict[str, Any] = {
    "a": [RNG.normal(size=(64, 48)).astype(np.float32), (None,)],
    "b": RNG.integers(0, 256, (32, 8)).astype(np.uint8),
    "c": {"d": np.float32(1.5), "e": np.zeros((0, 2), np.float16)},
}
SIX = SizeBudget(ratio=4)
