"""Measure the rates of this machine's processor by small programs, once."""

import contextlib
import dataclasses
import functools
import json
import os
import platform
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from frugax.errors import OutputError
from frugax.fileio import cache_folder, write_whole

from ._rates import CpuRates

_SIDE, _SMALL_SIDE, _ELEMENTS, _FRESH = 512, 128, 2**20, 2**24
_PRODUCTS, _TANHS = 100, 8  # one after another in a program
# Of each program, in turns: the speed of a virtual machine changes within seconds.
_ROUNDS, _SECONDS = 4, 0.12
_BUSY = 0.75  # of the cores


@functools.cache
def measured_rates() -> CpuRates:
    """The rates of this machine; kept on disk for its next process.

    Measuring takes five seconds. Other programs make the rates too low, so those of a
    busy machine are measured for a second, and not kept.
    """
    key = "-".join(
        (platform.node(), platform.machine(), str(os.cpu_count()), jax.__version__)
    )
    file = cache_folder("rates") / f"{key}.json"
    with contextlib.suppress(OSError, ValueError, TypeError):
        return CpuRates(**json.loads(file.read_text()))
    if sys.stderr is not None:  # it may be closed
        sys.stderr.write("frugax: measuring the rates of this processor\n")
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > _BUSY * (os.cpu_count() or 1):
        return _measure(rounds=1)
    found = _measure()
    with contextlib.suppress(OutputError):  # measured again by the next process
        write_whole(file, json.dumps(dataclasses.asdict(found)))
    return found


def _measure(rounds: int = _ROUNDS) -> CpuRates:
    # On one device of this process, whatever mesh the caller has set.
    mesh = jax.sharding.Mesh([_device()], ("one",))
    with jax.set_mesh(mesh):
        side, tiny = _ones(_SIDE, _SIDE), _ones(8, 8)
        small = _ones(_SMALL_SIDE, _SMALL_SIDE)
        square = _ones(3 * _SIDE // 2, 3 * _SIDE // 2)
        images, kernel = _ones(16, 32, 32, 32), _ones(3, 3, 32, 32)
        seconds = _fastest(
            rounds,
            product=(jnp.dot, side, side),
            small=(_repeat_product, small, small),
            convolution=(_convolve, images, kernel),
            kernel_gradient=(_kernel_gradient, images, kernel, images),
            tanh=(_repeat_tanh, _ones(2**16)),
            add=(_add_one, _ones(_ELEMENTS)),
            fresh=(_add_one, _ones(_FRESH)),
            transpose=(_transpose, square),
            starts=(_repeat_product, tiny, tiny),
        )
    # On each side, three places of the kernel but at the two ends.
    convolution = 2 * 16 * 32**2 * (3 * 32 - 2) ** 2
    memory = 8 * _ELEMENTS / seconds["add"]
    # The larger pass writes memory that is not there yet.
    writing = seconds["fresh"] - 8 * _FRESH / memory
    return CpuRates(
        products=2 * _SIDE**3 / seconds["product"],
        small_products=_PRODUCTS * 2 * _SMALL_SIDE**3 / seconds["small"],
        convolutions=convolution / seconds["convolution"],
        kernel_gradients=convolution / seconds["kernel_gradient"],
        transcendentals=_TANHS * 2**16 / seconds["tanh"],
        memory=memory,
        transposes=8 * (3 * _SIDE // 2) ** 2 / seconds["transpose"],
        fresh_memory=4 * _FRESH / writing if writing > 0 else memory,
        start_seconds=seconds["starts"] / _PRODUCTS,
    )


def _device() -> jax.Device:
    return jax.local_devices(backend="cpu")[0]


def _ones(*shape: int) -> jax.Array:
    return jnp.ones(shape, jnp.float32)


def _add_one(x: jax.Array) -> jax.Array:
    return x + 1


def _transpose(x: jax.Array) -> jax.Array:
    return x.T + 1


def _repeat_product(x: jax.Array, w: jax.Array) -> jax.Array:
    for _ in range(_PRODUCTS):
        x = x @ w
    return x


def _repeat_tanh(x: jax.Array) -> jax.Array:
    for _ in range(_TANHS):
        x = jnp.tanh(x)
    return x


def _convolve(images: jax.Array, kernel: jax.Array) -> jax.Array:
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        images, kernel, (1, 1), "SAME", dimension_numbers=numbers
    )


def _kernel_gradient(
    images: jax.Array, kernel: jax.Array, cotangent: jax.Array
) -> jax.Array:
    _, pull = jax.vjp(lambda kernel: _convolve(images, kernel), kernel)
    return pull(cotangent)[0]


def _fastest(rounds: int, **programs: tuple[Any, ...]) -> dict[str, float]:
    """Seconds of programs, each a function and its arguments, by name."""
    ready: dict[str, tuple[Any, Any]] = {}
    for name, (fn, *args) in programs.items():
        placed = jax.device_put(args, _device())
        compiled = jax.jit(fn).lower(*placed).compile()
        jax.block_until_ready(compiled(*placed))
        ready[name] = compiled, placed
    times: dict[str, list[float]] = {name: [] for name in ready}
    for _ in range(rounds):
        for name, (compiled, placed) in ready.items():
            until = time.perf_counter() + _SECONDS
            ended = 0.0
            while ended < until:
                started = time.perf_counter()
                jax.block_until_ready(compiled(*placed))
                ended = time.perf_counter()
                times[name].append(ended - started)
    # What other programs take only ever adds; the very fastest run is an exception.
    return {name: float(np.quantile(each, 0.25)) for name, each in times.items()}
