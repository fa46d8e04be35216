"""Bytes of packed weights in a compiled step, on a CPU and on an absent H100.

Six layers of a decoder's feed-forward block, 1,024 and 4,096 wide, bfloat16: dense, as
`compress.pack` holds them in 4.3 bits a weight, and as `open(path).packed()` holds
those of a file of 2.4 bits a weight. The outputs of the CPU are compared bit by bit
with those of the decoded weights.

    python -m benchmarks.compress_packed
"""

import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax import SizeBudget, compress
from frugax.targets import Target


def apply_layers(params: Any, x: jax.Array) -> jax.Array:
    """Six residual blocks."""
    for block in params:
        x = x + jax.nn.gelu(x @ block["up"]) @ block["down"]
    return x


def main() -> None:
    """Print a row for each device and each way to hold the weights."""
    rng = np.random.default_rng(0)
    shapes = {"up": (1024, 4096), "down": (4096, 1024)}
    draw = lambda shape: jnp.asarray(rng.normal(size=shape) / 48, jnp.bfloat16)
    dense = [{name: draw(shape) for name, shape in shapes.items()} for _ in range(6)]
    packed = compress.pack(dense, SizeBudget("4.3bpw"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "w.fxz"
        report = compress.save(path, dense, SizeBudget("2.4bpw"), sensitivity="equal")
        with compress.open(path) as file:
            from_file = file.packed()
    trees = {
        "dense": (dense, 0.0),
        "pack, 4.3 bits": (packed.tree, packed.rel_error),
        "file, 2.4 bits": (from_file, report.rel_error),
    }
    x = jnp.asarray(rng.normal(size=(8, 1024)), jnp.bfloat16)
    step = jax.jit(apply_layers)
    for target in (Target("cpu"), Target("h100")):
        whole = 0
        for name, (tree, error) in trees.items():
            analysis: Any = target.compile(
                step, jax.eval_shape(lambda tree=tree: tree), x
            ).memory_analysis()
            held = analysis.argument_size_in_bytes - x.nbytes
            whole = whole or held
            print(
                f"{target} {name}: {held:,} bytes of weights, {held / whole:.3f}; "
                f"temporaries {analysis.temp_size_in_bytes:,}; error {error:.3f}"
            )
    for name, (tree, _) in trees.items():
        same = jnp.array_equal(step(tree, x), step(jax.jit(compress.unpack)(tree), x))
        print(f"{name}: outputs equal those of the decoded weights: {bool(same)}")


if __name__ == "__main__":
    main()
