"""Take neighbours together up to a size: chunks, tensors, files of a folder."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def batches(
    items: Iterable[T], size: Callable[[T], int], most: int
) -> Iterator[list[T]]:
    """Yield neighbours whose sizes are at most so much in all; a larger one alone."""
    batch: list[T] = []
    total = 0
    for item in items:
        if batch and total + size(item) > most:
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size(item)
    if batch:
        yield batch
