"""Measure a model's output error with weights in shorter dtypes, for a `DtypePlan`."""

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
    """Compute the outputs for each batch."""
    results = [compiled.evaluate(params, b) for b in batches]
    for i, outputs in enumerate(results):
        for name, value in floats(outputs).items():
            if not bool(jnp.isfinite(value).all()):
                raise ValueError(
                    f"the output {name!r} for batch {i} is not finite, so no error can "
                    "be measured."
                )
    return results


def errors_of(
    compiled: JaxModel, params: Arrays, short: Arrays, batches: Sequence[Arrays]
) -> list[float]:
    """Compute the error of each batch."""
    exact = exact_outputs(compiled, params, batches)
    pairs = zip(batches, exact, strict=True)
    return [error_of(compiled.evaluate(short, b), e) for b, e in pairs]


def error_of(outputs: Arrays, exact: Arrays) -> float:
    """||outputs - exact|| / ||exact|| of the worst output; infinite if not finite."""
    worst = 0.0
    for name, value in floats(exact).items():
        # In float64 on the host: the square of a float16 overflows above 256, and the
        # norm of a difference near the rounding error needs the digits.
        wide = np.asarray(value).astype(np.float64)
        off = np.asarray(outputs[name]).astype(np.float64) - wide
        size, far = np.linalg.norm(wide.ravel()), np.linalg.norm(off.ravel())
        if far == 0:
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            error = float(far / size)
        # An exact output of zeros makes any difference infinitely large. NaN must not
        # pass either, since max(0.0, nan) is 0.0.
        if not np.isfinite(error):
            return np.inf
        worst = max(worst, error)
    return worst


def floats(outputs: Arrays) -> dict[str, Any]:
    """Select the floating-point outputs."""
    return {k: v for k, v in outputs.items() if jnp.issubdtype(v.dtype, jnp.floating)}


def digest(parts: Sequence[Arrays]) -> str:
    """Hash arrays with their names, shapes and dtypes by SHA-256."""
    found = hashlib.sha256()
    for part in parts:
        for key, value in sorted(part.items()):
            if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
                # NumPy cannot read typed keys.
                value = jax.random.key_data(value)
            array = np.ascontiguousarray(value)
            # Names, dtypes and shapes are hashed as well, so that equal bytes of
            # different arrays have different digests.
            found.update(f"{key} {array.dtype.name} {array.shape} ".encode())
            found.update(array.tobytes())
    return found.hexdigest()
