"""Processor time of planning beside compiling the plain program, by depth.

    python -m benchmarks.remat_depth [LAYERS ...]

Unrolled residual blocks of two products, planned for half of their memory.
"""

import sys
import time
from typing import Any

import jax
import jax.numpy as jnp

from frugax import MemoryBudget, remat

DEPTHS = (12, 24, 48, 96)
WIDTH, ROWS = 64, 512


def loss(ws: Any, x: Any) -> Any:
    """Residual blocks and a mean of squares."""
    for w in ws:
        x = x + jax.nn.gelu(x @ w[0]) @ w[1]
    return jnp.mean(x**2)


def main() -> None:
    depths = list(map(int, sys.argv[1:])) or DEPTHS
    print("| layers | compiling plain, s | planning, s | ratio | compilations |")
    print("| --: | --: | --: | --: | --: |")
    f32 = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    for depth in depths:
        args = [f32(2, WIDTH, WIDTH)] * depth, f32(ROWS, WIDTH)
        begun = time.process_time()
        jax.jit(jax.value_and_grad(loss)).lower(*args).compile()
        compiled = time.process_time()
        half = MemoryBudget.share(0.5)
        plan = remat.plan(loss, half, args, cache=False, divide_batch=False)
        planned = time.process_time()
        a, b = compiled - begun, planned - compiled
        row = [f"{depth}", f"{a:.1f}", f"{b:.1f}", f"{b / a:.0f}", f"{plan.compiles}"]
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
