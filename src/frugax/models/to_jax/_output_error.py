"""How far outputs are from exact ones, and which data that was measured on."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._compiled import JaxModel

Arrays = Mapping[str, Any]


def exact_outputs(
    compiled: JaxModel, params: Arrays, batches: Sequence[Arrays]
) -> list[dict[str, Any]]:
    """What the model gives for each batch.

    Raises:
        ValueError: that is not finite, so errors cannot be measured.
    """
    made = [compiled.evaluate(params, b) for b in batches]
    for i, outputs in enumerate(made):
        for name, value in floats(outputs).items():
            if not bool(jnp.isfinite(value).all()):
                raise ValueError(
                    f"the output {name!r} for batch {i} is not finite, so no error can "
                    "be measured."
                )
    return made


def errors_of(
    compiled: JaxModel, params: Arrays, short: Arrays, batches: Sequence[Arrays]
) -> list[float]:
    """The error of each batch."""
    exact = exact_outputs(compiled, params, batches)
    pairs = zip(batches, exact, strict=True)
    return [error_of(compiled.evaluate(short, b), e) for b, e in pairs]


def error_of(made: Arrays, exact: Arrays) -> float:
    """||made - exact|| / ||exact|| of the worst output; infinite if not finite."""
    worst = 0.0
    for name, value in floats(exact).items():
        wide = np.asarray(value).astype(np.float64)
        off = np.asarray(made[name]).astype(np.float64) - wide
        size, far = np.linalg.norm(wide.ravel()), np.linalg.norm(off.ravel())
        error = float(far / size) if size else (0.0 if far == 0 else np.inf)
        worst = max(worst, error if np.isfinite(error) else np.inf)
    return worst


def floats(outputs: Arrays) -> dict[str, Any]:
    """Those outputs that are not made of integers."""
    return {k: v for k, v in outputs.items() if jnp.issubdtype(v.dtype, jnp.floating)}


def digest(parts: Sequence[Arrays]) -> str:
    """SHA-256 of arrays with their names, shapes and dtypes."""
    found = hashlib.sha256()
    for part in parts:
        for key, value in sorted(part.items()):
            if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
                value = jax.random.key_data(value)
            array = np.ascontiguousarray(value)
            found.update(f"{key} {array.dtype.name} {array.shape} ".encode())
            found.update(array.tobytes())
    return found.hexdigest()
