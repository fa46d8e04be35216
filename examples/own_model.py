"""A model of your own under frugax: four functions, here in plain JAX.

Run it with `frugax run examples/own_model.yaml`. Copy both files and change them.
"""

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_breast_cancer

from frugax.run import Task


def task(width: int = 64, batch: int = 64) -> Task:
    """Tell benign from malignant by 30 measurements (scikit-learn, no network)."""
    x, y = load_breast_cancer(return_X_y=True)
    x = ((x - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32)
    y = y.astype(np.float32)
    order = np.random.default_rng(0).permutation(len(x))
    test, train = order[:100], order[100:]

    def init(key: jax.Array) -> dict[str, jax.Array]:
        first, second, third = jax.random.split(key, 3)
        return {
            "in": jax.random.normal(first, (30, width)) / 30**0.5,
            "mid": jax.random.normal(second, (width, width)) / width**0.5,
            "out": jax.random.normal(third, (width,)) / width**0.5,
        }

    def logits(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        hidden = jax.nn.gelu(x @ params["in"])
        return jax.nn.gelu(hidden @ params["mid"]) @ params["out"]

    def loss(
        params: dict[str, jax.Array], batch: dict[str, jax.Array]
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        z = logits(params, batch["x"])
        right = ((z > 0) == (batch["y"] > 0.5)).mean()
        value = jnp.mean(jnp.logaddexp(0.0, z) - batch["y"] * z)
        return value, {"accuracy": right}

    def batches(step: int) -> dict[str, np.ndarray]:
        # A function of the step alone: a run that was stopped resumes exactly.
        chosen = np.random.default_rng(step).choice(train, batch, replace=False)
        return {"x": x[chosen], "y": y[chosen]}

    @jax.jit
    def evaluate(params: dict[str, jax.Array]) -> dict[str, jax.Array]:
        # One value for each example: the receipt then knows how sure a change is.
        return {"accuracy": (logits(params, x[test]) > 0) == (y[test] > 0.5)}

    return Task(init, loss, batches, evaluate, apply=logits)
