"""Batches as a function of the step number: a resumed run sees the same ones."""

from collections.abc import Callable, Sequence

from frugax.trees import PyTree


def batches_by_index(batches: object) -> Callable[[int], PyTree]:
    """A function from the step number to its batch.

    Args:
        batches: such a function, or a sequence, which is then cycled.

    Raises:
        TypeError: an iterator or a loader: it cannot say what batch 30 was.
        ValueError: an empty sequence.
    """
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
