"""Batches as a function of the step number, the same in a resumed run."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

from frugax.trees import PyTree

BatchFunction: TypeAlias = Callable[[int], PyTree]


# Return a function from the step number to its batch.
def index_batches(batches: object) -> BatchFunction:
    if isinstance(batches, Sequence) and not isinstance(batches, str | bytes):
        if not batches:
            raise ValueError("batches is empty: give at least one batch.")
        return lambda index: batches[index % len(batches)]
    if callable(batches):
        return batches
    raise TypeError(
        "batches must be a function from the step number to a batch, or a list of "
        f"batches, got a {type(batches).__name__}: it cannot give the batch of step 30 "
        "again after a restart. Write `lambda i: ...`, seeded by i, or list(...)."
    )


@contextlib.contextmanager
def prefetch_batches(
    batch_of: BatchFunction, count: int, *, until: int
) -> Iterator[BatchFunction]:
    """Make batches in a thread within this block, up to `count` ahead of their use.

    The thread makes one after the other, so `batch_of` need not be thread-safe as long
    as nobody else calls it.
    """
    if count == 0:
        yield batch_of
        return
    futures: dict[int, Future[PyTree]] = {}
    # One thread: batches are made in order, and `batch_of` is never called
    # concurrently.
    with ThreadPoolExecutor(1, thread_name_prefix="frugax batches") as thread:

        def prefetched(index: int) -> PyTree:
            for i in range(index, min(index + count + 1, until)):
                if i not in futures:
                    futures[i] = thread.submit(batch_of, i)
            # Beyond the last batch none is made ahead, but one may be asked for.
            future = futures.pop(index, None) or thread.submit(batch_of, index)
            return future.result()

        try:
            yield prefetched
        finally:
            thread.shutdown(wait=True, cancel_futures=True)
