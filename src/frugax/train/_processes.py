"""What the processes of one run do together; for a run of one process nothing."""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np


def agreed_least(value: int) -> int:
    """The least value that any process gives; all must ask.

    Args:
        value: this process's; whole, and small enough for int32.
    """
    if jax.process_count() == 1:
        return value
    from jax.experimental import multihost_utils

    least = np.iinfo(np.int32).max
    given = np.asarray(min(value, least), np.int32)
    return int(np.min(multihost_utils.process_allgather(given)))


# Every process asks equally often, so the numbers agree.
_asked = itertools.count()


def is_preempted() -> bool:
    """Whether some process was told to end by SIGTERM; all must ask.

    JAX catches that signal in runs of several processes, and all of them hear of it at
    the same time here.
    """
    if jax.process_count() == 1:
        return False
    from jax.experimental import multihost_utils

    try:
        return bool(multihost_utils.reached_preemption_sync_point(next(_asked)))
    except RuntimeError:  # JAX's option jax_enable_preemption_service is off
        return False


def on_host(x: Any) -> np.ndarray:
    """A whole array on the host, also where other processes hold parts of it."""
    if not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated:
        return np.asarray(x)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(x, tiled=True))


def put(x: Any, sharding: jax.sharding.Sharding) -> jax.Array:
    """An array, the same in every process, laid out; each puts its own part only."""
    if isinstance(x, jax.Array) and x.sharding == sharding:
        return x
    if sharding.is_fully_addressable:
        return jax.device_put(x, sharding)
    whole = np.asarray(x)
    return jax.make_array_from_callback(whole.shape, sharding, lambda i: whole[i])


@contextlib.contextmanager
def one_for_all(what: str) -> Iterator[bool]:
    """True in the first process; the others wait at the end until it is done.

    Where the first one fails the others are not left waiting for it.

    Args:
        what: a name for what is done.

    Raises:
        RuntimeError: in the others, where the first one failed.
    """
    if jax.process_count() == 1:
        yield True
        return
    failed = True
    try:
        yield jax.process_index() == 0
        failed = False
    finally:
        all_well = agreed_least(0 if failed else 1)
    if not all_well:
        raise RuntimeError(f"the first process could not do the {what}; see there.")
