"""Measure the rates of this machine's processor by three small programs, once."""

import contextlib
import dataclasses
import functools
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax.errors import OutputError
from frugax.fileio import cache_folder, write_whole

from ._rates import CpuRates

_SIDE, _ELEMENTS, _STARTS = 512, 2**20, 100
_SECONDS = 0.3  # of each program: a processor that was idle is slow at first
_BUSY = 0.75  # of the cores


@functools.cache
def measured_rates() -> CpuRates:
    """The rates of this machine; kept on disk for its next process.

    Measuring takes a second. Other programs make the rates too low, so those of a
    busy machine are not kept.
    """
    key = "-".join(
        (platform.node(), platform.machine(), str(os.cpu_count()), jax.__version__)
    )
    file = cache_folder("rates") / f"{key}.json"
    with contextlib.suppress(OSError, ValueError, TypeError):
        return CpuRates(**json.loads(file.read_text()))
    found = _measure()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > _BUSY * (os.cpu_count() or 1):
        return found
    with contextlib.suppress(OutputError):  # measured again by the next process
        write_whole(file, json.dumps(dataclasses.asdict(found)))
    return found


def _measure() -> CpuRates:
    # On one device, whatever mesh the caller has set.
    with jax.set_mesh(jax.sharding.Mesh(np.array(jax.devices("cpu")[:1]), ("one",))):
        return CpuRates(
            products=2 * _SIDE**3 / _fastest(*_product()),
            memory=8 * _ELEMENTS / _fastest(*_pass()),
            start_seconds=_fastest(*_starts()) / _STARTS,
        )


def _product() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    x = jnp.ones((_SIDE, _SIDE), jnp.float32)
    return jnp.dot, (x, x)


def _pass() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return lambda x: x + 1, (jnp.ones(_ELEMENTS, jnp.float32),)


def _starts() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def chain(x: Any, w: Any) -> Any:
        for _ in range(_STARTS):
            x = x @ w
        return x

    x = jnp.ones((8, 8), jnp.float32)
    return chain, (x, x)


def _fastest(fn: Callable[..., Any], args: tuple[Any, ...]) -> float:
    cpu = jax.devices("cpu")[0]
    placed = jax.device_put(args, cpu)
    compiled = jax.jit(fn).lower(*placed).compile()
    jax.block_until_ready(compiled(*placed))
    times = []
    until = time.perf_counter() + _SECONDS
    while time.perf_counter() < until or len(times) < 5:
        started = time.perf_counter()
        jax.block_until_ready(compiled(*placed))
        times.append(time.perf_counter() - started)
    # What other programs take only ever adds; the very fastest run is an exception.
    return statistics.quantiles(times, n=4)[0]
