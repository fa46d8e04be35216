"""A small tree with something of every kind, and a budget for it."""

from pathlib import Path

import numpy as np

from frugax import SizeBudget

RNG = np.random.default_rng(0)
TREE = {
    "a": [RNG.normal(size=(64, 48)).astype(np.float32), (None,)],
    "b": RNG.integers(0, 256, (32, 8)).astype(np.uint8),
    "c": {"d": np.float32(1.5), "e": np.zeros((0, 2), np.float16)},
}
SIX = SizeBudget(ratio=4)

# Written once, by `GOLDEN_PLANES.write_bytes(compress.compress(
# golden_planes_weights(), SizeBudget(max_abs=0), progressive=True))`; see
# docs/container.md, "Versions".
GOLDEN_PLANES = Path(__file__).parent / "compress" / "golden_planes.fxz"


def golden_planes_weights():
    n = np.arange(600)
    bits = (n[:, None] * 2654435761 + np.arange(12) * 40503) % 4294967296 >> 16
    bell = ((bits % 4096).sum(axis=1) - 24570).astype(np.float32) / 8192
    return {
        "w": bell.reshape(20, 30),
        "half": bell[:300].astype(np.float16),
        "double": bell[300:].astype(np.float64) / 3,
        "zero": np.zeros((4, 4), np.float32),
        "special": np.array([np.nan, -0.0, 1.0], np.float32),
        "n": n[:9],
    }
