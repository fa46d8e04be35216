"""Inputs for layers, and how they are run."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax.models import JaxBackend, Layer, TransformerBlock, compile


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng([seed, *shape]).normal(size=shape)
    return drawn.astype("float32")


def labels(*shape: int, below: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, below, size=shape).astype("int32")


def run(
    layer: Layer,
    params: dict[str, Any] | None = None,
    *,
    seed: int = 0,
    inference: bool = False,
    scan_from: int | None = 8,
    **inputs: Any,
) -> dict[str, np.ndarray]:
    """Compile for these inputs and evaluate once."""
    shapes = {k: x.shape for k, x in inputs.items()}
    compiled = compile(
        layer, JaxBackend(), shapes=shapes, inference=inference, scan_from=scan_from
    )
    if params is None:
        params = compiled.randomize_params(0)
    data = {**inputs, **compiled.initial_state()}
    if "key" in compiled.data_keys:
        data["key"] = jax.random.key(seed)
    return compiled.evaluate(arrays(params), arrays(data))


def arrays(values: dict[str, Any]) -> dict[str, jax.Array]:
    return {
        k: jnp.asarray(v) if isinstance(v, np.ndarray) else v for k, v in values.items()
    }


def close(got: Any, wanted: Any, tolerance: float = 2e-5) -> None:
    """Equal up to another order of float32 sums."""
    if hasattr(wanted, "detach"):
        wanted = wanted.detach().numpy()
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=tolerance, atol=tolerance)


BLOCK = TransformerBlock(8, heads=2, dropout=0.1)
