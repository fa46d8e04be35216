"""Deep stacks of encoder blocks, each figure from its own process.

    python -m benchmarks.models.blocks build 64 WAY
    python -m benchmarks.models.blocks first-step 48 WAY FILE

`build`: CPU seconds from nothing to a program laid flat with all shapes known, the
first time in the process and later. `first-step`: seconds on the clock, and of CPU, to
loss and gradients, which go to the file. JAX keeps no compiled programs on disk here.
"""

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax import models

from . import by_hand_encoder, frugax_nets
from .contestant import Arrays
from .nets import Encoder
from .variant import contestant
from .worker import keep

WAYS = (
    "frugax, scanned",
    "frugax, written out",
    "by hand, scanned",
    "by hand, written out",
)
STEPS = 5


def net_of(blocks: int) -> Encoder:
    return Encoder(batch=8, layers=blocks)


def built(net: Encoder, *, scan_from: int | None) -> dict[str, float]:
    """CPU seconds to describe and to lay flat; then, beyond both, for JAX to trace."""
    begun = time.process_time()
    model = frugax_nets.model_of(net)
    described = time.process_time()
    compiled = models.compile(
        model,
        models.JaxBackend(),
        shapes={"input": net.input_shape},
        scan_from=scan_from,
    )
    flat = time.process_time()
    shapes = {k: w.shape for k, w in compiled.weights.items()}
    params = {k: jax.ShapeDtypeStruct(s, jnp.float32) for k, s in shapes.items()}
    data = {"input": jax.ShapeDtypeStruct(net.input_shape, jnp.float32)}
    jax.jit(compiled.pure).trace(params, data)
    traced = time.process_time()
    return {
        "describe": described - begun,
        "lay flat": flat - described,
        "both": flat - begun,
        "then trace": traced - flat,
    }


def build(blocks: int, way: str) -> dict[str, Any]:
    """See the module."""
    net = net_of(blocks)
    jnp.zeros(()).block_until_ready()  # JAX starts: not ours to count
    scan_from = 8 if way.endswith("scanned") else None
    times = [built(net, scan_from=scan_from) for _ in range(3)]
    return {"first": times[0], "later": times[-1]}


def first_step(blocks: int, way: str, file: Path) -> dict[str, float]:
    """See the module."""
    net = net_of(blocks)
    jnp.zeros(()).block_until_ready()
    scanned = way.endswith("scanned")
    begun = time.perf_counter()
    if way.startswith("frugax"):
        one = frugax_nets.contestant(net, scan_from=8 if scanned else None)
    else:
        variant = by_hand_encoder.encoder(net, flat=True, scanned=scanned)
        one = contestant(net, variant)
    ready, cpu = time.perf_counter(), time.process_time()
    one.wait(one.step())
    first, cpu = time.perf_counter(), time.process_time() - cpu
    seconds = [clocked(lambda: one.wait(one.step())) for _ in range(STEPS)]
    loss, grads = one.result()
    arrays: Arrays = grads | {"loss": np.float32(loss).reshape(1)}
    keep(arrays, file)
    return {
        "describe": ready - begun,
        "first step": first - ready,
        "first step, CPU": cpu,
        "step": statistics.median(seconds),
    }


def clocked(call: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def main() -> None:
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("what", choices=("build", "first-step"))
    ask.add_argument("blocks", type=int)
    ask.add_argument("way", choices=WAYS)
    ask.add_argument("file", nargs="?", type=Path)
    given = ask.parse_args()
    if given.what == "build":
        run = functools.partial(build, given.blocks, given.way)
    else:
        run = functools.partial(first_step, given.blocks, given.way, given.file)
    print(json.dumps(run()))


if __name__ == "__main__":
    main()
