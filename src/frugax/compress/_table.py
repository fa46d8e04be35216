"""Why a file is much shorter than the size that was allowed."""

import math
from collections.abc import Sequence

from frugax.budget import SizeBudget

# Below this share of the size it is said.
_UNUSED = 0.97


def format_unused(
    budget: SizeBudget,
    tensors: Sequence[tuple[tuple[int, ...], str, float]],
    *,
    original_bytes: int,
    file_bytes: int,
) -> str:
    """What is said of a size that was not used up; nothing if it was.

    Nothing either if all is exact, or if the file is short because of an error allowed.

    Args:
        budget: what was asked for.
        tensors: shape, codec and relative error of each.
        original_bytes: bytes of the arrays as they were.
        file_bytes: length of the file.

    >>> one = [((100,), "quantised", 0.1)]
    >>> format_unused(SizeBudget(bytes=100), one, original_bytes=400, file_bytes=99)
    ''
    """
    shapes, codecs, errors = zip(*tensors, strict=True) if tensors else ((), (), ())
    limit = budget.limit_bytes(
        original_bytes=original_bytes, weights=sum(map(math.prod, shapes))
    )
    only_size = budget.rel_error is None and budget.max_abs is None
    if limit is None or not (only_size and any(errors)) or file_bytes > _UNUSED * limit:
        return ""
    return (
        f"\n{100 * file_bytes / limit:.0f}% of the size is used: no finer file was "
        "found within it, and the exact one is longer"
        + ("; without progressive=True there may be one" if "planes" in codecs else "")
    )


def format_gap(gap: float | None) -> str:
    """What is said of an allocation's gap; nothing if there is none."""
    if gap is None:
        return ""
    by = f"more than {100 * gap:.2g}% better" if gap else "better"
    return f"\nby estimate no other choice of these options is {by}"
