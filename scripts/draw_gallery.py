"""Draw the pictures of docs/gallery.md from programs, files and notebooks.

    python scripts/draw_gallery.py
    python scripts/draw_gallery.py --notebooks   # only those that notebooks hold

Bytes are those of the JAX and the machine that this runs on, or that ran the notebooks.
"""

import json
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import frugax as fx

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "pictures"
# Pictures that a notebook drew: its name, and the picture's number in it.
FROM_NOTEBOOKS = {
    "targets": ("1_first_plan", 1),
    "patterns": ("3_watch", 1),
    "sizes": ("4_compress", 1),
    "taste": ("5_campaign", 1),
    "causes": ("5_campaign", 2),
}


WEIGHTS = [jax.ShapeDtypeStruct((256, 256), jnp.float32) for _ in range(12)]
X = jax.ShapeDtypeStruct((1024, 256), jnp.float32)


def loss(weights, x):
    """Twelve residual layers."""
    for w in weights:
        x = x + jax.nn.gelu(x @ w)
    return jnp.mean(x**2)


def draw_memory() -> str:
    """Live bytes of a gradient, without a plan and within half of the memory."""
    lowered = jax.jit(jax.value_and_grad(loss)).lower(WEIGHTS, X)
    plain = lowered.compile().memory_analysis().temp_size_in_bytes
    budget = fx.MemoryBudget(limit_bytes=plain // 2)
    plan = fx.remat.plan(loss, budget, example_args=(WEIGHTS, X))
    return fx.remat.draw_memory(loss, plan, (WEIGHTS, X)).svg()


def draw_frontier() -> str:
    """The programs that were compiled to find a plan within 0.3 of the memory."""
    plan = fx.remat.plan(loss, fx.MemoryBudget.share(0.3), example_args=(WEIGHTS, X))
    return plan.frontier().svg()


def draw_rate() -> str:
    """Bits and error of each tensor of one model file, beside the Gaussian bound."""
    rng = np.random.default_rng(0)
    # Layers whose weights differ in scale, so that a file spends its bits unevenly.
    tree = {
        f"layer{i}": rng.normal(scale=2.0**-i, size=(256, 256)).astype("float32")
        for i in range(8)
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.fxz"
        fx.compress.save(path, tree, fx.SizeBudget("8x"))
        return fx.compress.inspect(path).svg()


def read_notebook(name: str, number: int) -> str:
    """Return a picture that `make notebooks` kept, counted from 1."""
    cells = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text())["cells"]
    data = [
        output.get("data", {}) for cell in cells for output in cell.get("outputs", [])
    ]
    drawn = ["".join(d["image/svg+xml"]) for d in data if "image/svg+xml" in d]
    return drawn[number - 1]


if __name__ == "__main__":
    if "--notebooks" not in sys.argv:
        for draw in (draw_memory, draw_frontier, draw_rate):
            name = draw.__name__.removeprefix("draw_")
            (PICTURES / f"{name}.svg").write_text(draw())
    for name, place in FROM_NOTEBOOKS.items():
        (PICTURES / f"{name}.svg").write_text(read_notebook(*place))
