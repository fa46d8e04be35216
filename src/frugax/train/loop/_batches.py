"""Batches by step number, the same in a resumed run, and prefetched in a thread."""

import base64
import contextlib
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

import jax

from frugax.errors import CheckpointError
from frugax.trees import PyTree

BatchFunction: TypeAlias = Callable[[int], PyTree]


class ResumableIterator:
    """An iterator whose position can be saved, as those of grain, by step number.

    Its batches are made in order. The position before each batch that was made ahead
    is kept until that batch is used, because a checkpoint stores the next one to use.

    Attributes:
        iterator: the iterator.
    """

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator
        self._next = 0
        self._positions: OrderedDict[int, Any] = OrderedDict()

    def __call__(self, index: int) -> PyTree:
        if index != self._next:
            raise ValueError(
                f"the iterator is at step {self._next}, but the state has taken "
                f"{index} steps: resume from a checkpoint of this run, which holds "
                "the iterator's position."
            )
        self._positions[index] = self.iterator.get_state()
        while len(self._positions) > 1000:  # far more than are made ahead
            self._positions.popitem(last=False)
        self._next += 1
        try:
            return next(self.iterator)
        except StopIteration:
            raise ValueError(
                f"the iterator ended after {index} batches: repeat its data set."
            ) from None

    def position(self, index: int) -> Any:
        """Return the position before batch `index`, as JSON data."""
        if index in self._positions:
            state = self._positions[index]
        else:
            state = self.iterator.get_state()
        # grain's DataLoader compares the repr of its data source.
        text = state if isinstance(state, bytes) else repr(state).encode()
        if found := re.search(rb"<[^<>]* at 0x[0-9a-f]+>", text):
            raise CheckpointError(
                f"the iterator's position holds {found[0].decode(errors='replace')}, "
                "an address that a resumed run will not have: give that class a "
                "__repr__ that is the same in each process."
            )
        if isinstance(state, bytes):
            return {"base64": base64.b64encode(state).decode()}
        return {"state": state}

    def restore(self, position: Mapping[str, Any], index: int) -> None:
        """Go to a saved position, that of batch `index`."""
        state = position.get("state")
        if "base64" in position:
            state = base64.b64decode(position["base64"])
        try:
            self.iterator.set_state(state)
        except Exception as e:
            said = " ".join(str(e).split())[:300]
            raise CheckpointError(
                f"the iterator does not take its saved position before batch {index} "
                f"({type(e).__name__}: {said}): resume with the same data and options, "
                "or start a new run."
            ) from e
        self._next = index


def index_batches(batches: Any) -> BatchFunction:
    """Return a function from the step number to its batch."""
    if callable(batches):
        return batches
    is_text = isinstance(batches, str | bytes | Mapping)
    if not is_text and hasattr(batches, "__getitem__") and hasattr(batches, "__len__"):
        if not len(batches):
            raise ValueError("batches is empty: give at least one batch.")
        return lambda index: batches[index % len(batches)]
    with contextlib.suppress(TypeError):
        iterator = iter(batches)
        if hasattr(iterator, "get_state") and hasattr(iterator, "set_state"):
            return ResumableIterator(iterator)
    raise TypeError(
        "batches must be a function from the step number to a batch, a list of "
        "batches, or an iterator with get_state and set_state, got a "
        f"{type(batches).__name__}: it cannot give the batch of step 30 again after a "
        "restart. Write `lambda i: ...`, seeded by i, or list(...)."
    )


# In the place of a batch for which no time was left.
_NOT_MADE = object()


@contextlib.contextmanager
def prefetch_batches(
    batch_of: BatchFunction,
    count: int,
    *,
    until: int,
    to_device: bool,
    seconds_left: Callable[[], float | None],
) -> Iterator[BatchFunction]:
    """Make batches in a thread within this block, up to `count` ahead of their use.

    The thread makes one after the other, so `batch_of` need not be thread-safe as long
    as nobody else calls it. It also starts their way to the device, if asked. A batch
    that is not expected in time is not begun until it is asked for.
    """
    if count == 0:
        yield batch_of
        return
    futures: dict[int, Future[PyTree]] = {}

    slowest_s = 0.0

    def make(index: int) -> PyTree:
        nonlocal slowest_s
        before_s = seconds_left()
        batch = batch_of(index)
        after_s = seconds_left()
        if before_s is not None and after_s is not None:
            slowest_s = max(slowest_s, before_s - after_s)
        return jax.device_put(batch) if to_device else batch

    def make_ahead(index: int) -> PyTree:
        left_s = seconds_left()
        is_late = left_s is not None and left_s < slowest_s
        return _NOT_MADE if is_late else make(index)

    # One thread: batches are made in order, and `batch_of` is never called
    # concurrently.
    with ThreadPoolExecutor(1, thread_name_prefix="frugax batches") as thread:

        def prefetched(index: int) -> PyTree:
            for i in range(index, min(index + count + 1, until)):
                if i not in futures:
                    futures[i] = thread.submit(make_ahead if i > index else make, i)
            # Beyond the last batch none is made ahead, but one may be asked for.
            future = futures.pop(index, None) or thread.submit(make, index)
            batch = future.result()
            if batch is _NOT_MADE:
                return thread.submit(make, index).result()
            return batch

        try:
            yield prefetched
        finally:
            thread.shutdown(wait=True, cancel_futures=True)
