"""Check metrics given to `Watcher.record`, and read them when the device has them."""

from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from .journal import as_number, is_real


def is_fixed(value: Any) -> bool:
    """Whether nobody can change a metric in place, as an array of NumPy or torch."""
    return isinstance(value, int | float | np.generic | jax.Array)


def check_metric(name: str, value: Any) -> Any:
    """Return a metric in a form that can be kept until it is read."""
    if isinstance(value, Tracer):
        raise TypeError(
            f"{name!r} is being traced: return it from the jitted function "
            "and record it outside, or use watch.jit and watch.record."
        )
    if getattr(value, "shape", ()) != ():
        raise ValueError(f"{name!r} must have shape (), got {tuple(value.shape)}.")
    if not hasattr(value, "is_ready"):
        return as_number(name, value)
    if not is_real(value.dtype):
        raise TypeError(f"{name!r} must be a real number, got {value.dtype}.")
    return value  # still on the device: to read it now would wait for the program


def read_metric(name: str, step: int, value: Any) -> np.ndarray:
    """Read a metric as the journal keeps it, waiting for the device."""
    # Not jax.device_get: for a ready CPU array it takes six times as long
    # (benchmarks/test_watch.py at commit e7ced17b).
    try:
        array = np.asarray(value)
    # A program fails with whatever its backend raises.
    except Exception as e:
        if is_deleted(value):
            raise ValueError(
                f"{name!r} of step {step} was donated or deleted before it was read: "
                "copy it, or do not donate it."
            ) from e
        raise ValueError(
            f"{name!r} of step {step} cannot be read: {type(e).__name__}: {e}"
        ) from e
    if array.dtype == np.uint64:
        # Here and not with its column, so that a value beyond int64 costs its own step.
        as_number(name, array)
    return array


def is_leaf_ready(value: Any) -> bool:
    """Whether a value can be read without waiting."""
    ready = getattr(value, "is_ready", None)  # plain numbers have no such method
    # That of a deleted array raises; reading it reports the error by name.
    return ready is None or is_deleted(value) or ready()


def is_deleted(value: Any) -> bool:
    """Whether a value was donated or deleted on its device."""
    deleted = getattr(value, "is_deleted", None)
    return deleted is not None and deleted()
