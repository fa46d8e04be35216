"""Make the next batches while the device is busy with this one."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from frugax.trees import PyTree


@contextlib.contextmanager
def ahead(
    batch_of: Callable[[int], PyTree], count: int, *, until: int
) -> Iterator[Callable[[int], PyTree]]:
    """In this block batches are made in a thread, up to `count` before they are asked.

    The thread asks for one after the other, so the function need not be thread-safe
    as long as nobody else calls it meanwhile.

    Args:
        batch_of: from a step's number to its batch.
        count: how many ahead; 0: none, and no thread.
        until: the number after the last one that will be asked for.

    Yields:
        The same function; what `batch_of` raises is raised where its batch is asked.
    """
    if count == 0:
        yield batch_of
        return
    made: dict[int, Future[PyTree]] = {}
    with ThreadPoolExecutor(1, thread_name_prefix="frugax batches") as thread:

        def batch(index: int) -> PyTree:
            for i in range(index, min(index + count + 1, until)):
                if i not in made:
                    made[i] = thread.submit(batch_of, i)
            wanted = made.pop(index, None) or thread.submit(batch_of, index)
            return wanted.result()

        try:
            yield batch
        finally:
            thread.shutdown(wait=True, cancel_futures=True)
