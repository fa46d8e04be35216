"""Tensors coded for real, one after the other; small ones are worked on together."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from ._encode import trellis_blocks
from ._quantised import Step
from ._records import Encoded
from ._sources import Source


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A tensor to be coded.

    Attributes:
        source: the tensor.
        step: None for the exact coding.
        codec: only this one; by default what suits.
    """

    source: Source
    step: Step | None
    codec: str | None = None


def encode_all(
    wanted: Sequence[Wanted], told: Callable[[int], object] = lambda _: None
) -> Iterator[Encoded]:
    """The shortest coding of each at its step, in order.

    Args:
        wanted: the tensors.
        told: called with how many numbers of the tensor at hand are done.
    """
    trellis = trellis_blocks(
        part
        for each in wanted
        for part in each.source.trellis_parts(each.step, each.codec)
    )
    for each in wanted:
        yield each.source.encoded(each.step, each.codec, trellis=trellis, told=told)
