"""An example task for `frugax run`: a small network tells two spirals apart.

Run it with `frugax run model.yaml`, then put your own data and layers in.
"""

import jax
import jax.numpy as jnp
import numpy as np

from frugax.run import Task


def task(width: int = 128, batch: int = 256) -> Task:
    """Return the four functions that `frugax run` trains, evaluates and compresses."""
    rng = np.random.default_rng(0)
    y = np.arange(2000) % 2
    radius = rng.uniform(0.5, 3, 2000)
    angle = 2 * radius + np.pi * y + 0.1 * rng.standard_normal(2000)
    x = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
    x = x.astype(np.float32)

    def init(key: jax.Array) -> dict[str, jax.Array]:
        sizes = [2, width, width, 2]
        keys = jax.random.split(key, 3)
        weights = {
            f"w{i}": jax.random.normal(k, (n, m)) / n**0.5
            for i, (k, n, m) in enumerate(zip(keys, sizes[:-1], sizes[1:], strict=True))
        }
        return weights | {f"b{i}": jnp.zeros(m) for i, m in enumerate(sizes[1:])}

    def logits(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        for i in range(2):
            x = jax.nn.gelu(x @ params[f"w{i}"] + params[f"b{i}"])
        return x @ params["w2"] + params["b2"]

    def loss(
        params: dict[str, jax.Array], batch: dict[str, jax.Array]
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        z = logits(params, batch["x"])
        correct = z.argmax(-1) == batch["y"]
        log_probs = jax.nn.log_softmax(z)
        picked = jnp.take_along_axis(log_probs, batch["y"][:, None], 1)
        return -picked.mean(), {"accuracy": correct.mean()}

    def batches(step: int) -> dict[str, np.ndarray]:
        # A function of the step alone: a run that was stopped resumes exactly.
        rows = np.random.default_rng(step).integers(0, 1500, batch)
        return {"x": x[rows], "y": y[rows]}

    @jax.jit
    def evaluate(params: dict[str, jax.Array]) -> dict[str, jax.Array]:
        # One value for each example: the receipt then knows how sure a change is.
        z = logits(params, jnp.asarray(x[1500:]))
        return {"accuracy": z.argmax(-1) == y[1500:]}

    return Task(init, loss, batches, evaluate, apply=logits)
