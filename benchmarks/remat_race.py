"""Programs against each other on the clock, fairly on a machine that others use too.

One round runs each once, in a new random order; the result is the ratio to the plain
program of the same round. So other load on the machine affects all alike, and so does
the state in which a program leaves the caches.
"""

import random
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

WARM_UP = 2


def race(
    programs: dict[str, Callable[..., Any]],
    arrays: tuple[Any, ...],
    rounds: int,
    *,
    base: str = "plain",
) -> dict[str, dict[str, float]]:
    """Each program's time as a ratio to that of `base`: median and 95 % interval."""
    seconds: dict[str, list[float]] = {k: [] for k in programs}
    order = random.Random(0)
    for _ in range(WARM_UP + rounds):
        for k in order.sample(list(programs), len(programs)):
            seconds[k].append(once(programs[k], arrays))
    kept = {k: np.array(s[WARM_UP:]) for k, s in seconds.items()}
    return {k: _summary(s, s / kept[base]) for k, s in kept.items()}


def once(run: Callable[..., Any], arrays: tuple[Any, ...]) -> float:
    begun = time.perf_counter()
    jax.block_until_ready(run(*arrays))
    return time.perf_counter() - begun


def _summary(seconds: np.ndarray, ratios: np.ndarray) -> dict[str, float]:
    """The interval is a bootstrap of the median over rounds."""
    drawn = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return {
        "ms": 1e3 * float(np.median(seconds)),
        "ratio": float(np.median(ratios)),
        "low": float(low),
        "high": float(high),
    }
