"""A whole file in the making: what steps make of the tensors, and how far off it is."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from frugax.budget import SizeBudget

from ._container import Encoded
from ._error import relative
from ._quantised import Step
from ._sources import Source
from ._writer import write

# Which step to quantise a tensor with; None to keep it exact.
Steps = Callable[[Source], Step | None]
# Called with the share that is done, in [0, 1], and what is being done.
Progress = Callable[[float, str], None]


@dataclasses.dataclass(frozen=True)
class Draft:
    """A whole file, and what it was made from.

    Attributes:
        data: the bytes of the file.
        tensors: each tensor as it stands in it.
        sources: each tensor as it was.
        gap: by how much of it the weighted error is, by estimate, at most above the
            least that any choice of the same options has; None where steps were not
            chosen one by one.
    """

    data: bytes
    tensors: tuple[Encoded, ...]
    sources: tuple[Source, ...]
    gap: float | None = None

    @property
    def rel_error(self) -> float:
        """||decoded - original|| / ||original|| over all finite float tensors."""
        error = math.fsum(tensor.error.energy for tensor in self.tensors)
        return relative(error, math.fsum(s.energy for s in self.sources))

    @property
    def max_abs(self) -> float:
        """Largest |decoded - original| of any number."""
        return max((tensor.error.largest for tensor in self.tensors), default=0.0)


def limit_of(sources: Sequence[Source], budget: SizeBudget) -> int | None:
    """The longest file that the budget allows for these tensors; None if any."""
    return budget.limit_bytes(
        original_bytes=sum(s.array.nbytes for s in sources),
        weights=sum(s.array.size for s in sources),
    )


def draft_of(
    sources: tuple[Source, ...],
    structure: Any,
    steps: Steps,
    *,
    codec: Callable[[Source], str] | None = None,
    gap: float | None = None,
    progress: Progress | None = None,
) -> Draft:
    """The file that these steps make, with the codecs that suit if none are named."""
    total = max(1, sum(source.array.nbytes for source in sources))
    tensors: list[Encoded] = []
    done = 0
    for source in sources:
        if progress is not None:
            progress(done / total, f"coding {source.name or 'the array'}")
        named = None if codec is None else codec(source)
        tensors.append(source.encoded(steps(source), named))
        done += source.array.nbytes
    return Draft(write(structure, tensors), tuple(tensors), sources, gap)
