"""Collectives across processes: minimum, broadcast, all-gather, sharding, barrier."""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from frugax.trees import PyTree

_MAX_TEXT_BYTES = 4096


def agree_on_min(value: int) -> int:
    """Return the least value of any process; all processes must call this."""
    if jax.process_count() == 1:
        return value
    from jax.experimental import multihost_utils

    # int32, because JAX's 64-bit numbers are usually off.
    largest = np.iinfo(np.int32).max
    array = np.asarray(min(value, largest), np.int32)
    return int(np.min(multihost_utils.process_allgather(array)))


# Every process asks equally often, so the numbers of the sync points agree.
_sync_points = itertools.count()


def is_preempted() -> bool:
    """Return whether some process received SIGTERM; all processes must call this.

    JAX catches that signal in runs of several processes, and here all of them learn of
    it at the same step.
    """
    if jax.process_count() == 1:
        return False
    from jax.experimental import multihost_utils

    try:
        number = next(_sync_points)
        return bool(multihost_utils.reached_preemption_sync_point(number))
    except RuntimeError:  # JAX's option jax_enable_preemption_service is off
        return False


def broadcast_text(text: str) -> str:
    """Return the first process's text in all of them; all processes must call this.

    Raises:
        ValueError: the text has more than 4,096 bytes.
    """
    if jax.process_count() == 1:
        return text
    from jax.experimental import multihost_utils

    data = text.encode()
    if len(data) > _MAX_TEXT_BYTES:
        raise ValueError(f"a text to send has {len(data)} of 4,096 bytes.")
    # Every process has to send an array of the same shape.
    buffer = np.zeros(_MAX_TEXT_BYTES, np.uint8)
    buffer[: len(data)] = np.frombuffer(data, np.uint8)
    sent = np.asarray(multihost_utils.broadcast_one_to_all(buffer), np.uint8)
    return sent.tobytes().rstrip(b"\0").decode()


def gather(tree: PyTree) -> PyTree:
    """Return the whole of each array in every process; all processes must call this.

    Arrays copied on every device are not sent, and those of this process alone stay as
    they are.
    """
    if jax.process_count() == 1:
        return tree
    from jax.experimental import multihost_utils

    def whole(x: Any) -> Any:
        if not isinstance(x, jax.Array) or x.is_fully_addressable:
            return x
        if x.is_fully_replicated:
            return x.addressable_data(0)
        return jax.numpy.asarray(multihost_utils.process_allgather(x, tiled=True))

    return jax.tree.map(whole, tree)


def shard_global(x: Any, sharding: jax.sharding.Sharding) -> jax.Array:
    """Shard an array that every process holds; each puts its own part only."""
    # Batches of `from_local` are in place; moving them would gather them first.
    if isinstance(x, jax.Array) and x.sharding == sharding:
        return x
    if sharding.is_fully_addressable:
        return jax.device_put(x, sharding)
    whole = np.asarray(x)
    return jax.make_array_from_callback(whole.shape, sharding, lambda i: whole[i])


@contextlib.contextmanager
def run_on_first(what: str) -> Iterator[bool]:
    """Yield True in the first process; the others wait until its block has ended.

    Raises:
        RuntimeError: the first process failed, so the others do not wait in vain.
    """
    if jax.process_count() == 1:
        yield True
        return
    has_failed = True
    try:
        yield jax.process_index() == 0
        has_failed = False
    finally:
        # Also on the way out of an error: without this collective the others hang.
        have_all_succeeded = agree_on_min(int(not has_failed))
    if not have_all_succeeded:
        raise RuntimeError(f"the first process failed at the {what}: see its output.")
