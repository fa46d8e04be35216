"""From a profile to a file: which budget is asked for, and what was noted."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Mapping

import numpy as np

from frugax.budget import SizeBudget
from frugax.compress import compress
from frugax.compress.container import CompressedFile, Record
from frugax.compress.search import Source, describe_best_size
from frugax.errors import InfeasibleBudgetError

from ._profile import CompressionProfile


@dataclasses.dataclass(frozen=True)
class Fitted:
    """A file within a profile.

    Attributes:
        data: the bytes of the file.
        records: what its header says of each tensor.
        rel_error: ||decoded - original|| / ||original|| over all finite float
            tensors, from the tensors' stated errors, which are rounded up.
        notes: what was decided against the target, in sentences.
    """

    data: bytes
    records: tuple[Record, ...]
    rel_error: float
    notes: tuple[str, ...]


def fit(
    arrays: Mapping[str, np.ndarray],
    profile: CompressionProfile,
    *,
    original_bytes: int,
    exact: bool = False,
    progressive: bool = False,
) -> Fitted:
    """Find the file that the profile asks for; see `CompressionProfile`.

    Args:
        arrays: what goes into the file.
        profile: the target and which of size and error gives way.
        original_bytes: bytes that the target ratio is counted from.
        exact: nothing may be lost; the ratio is then what it comes to.
        progressive: code in layers, which can be read one by one.

    Raises:
        InfeasibleBudgetError: no file is as small as the target.
    """
    target = math.floor(original_bytes / profile.target_compression_ratio)
    by_size = SizeBudget(bytes=max(1, target))
    fitted = functools.partial(_fitted, arrays, progressive=progressive)

    def at_target() -> Fitted:
        try:
            return fitted(by_size)
        except InfeasibleBudgetError as e:  # in bytes, which nobody named
            asked, best = describe_best_size(
                SizeBudget(ratio=profile.target_compression_ratio),
                int(e.needed),
                original_bytes=original_bytes,
                weights=0,
            )
            e.what, e.reachable = f"{asked}{e.what}", e.reachable | best
            raise

    if exact:
        found = fitted(SizeBudget(max_abs=0))
        return _noting(found, target, "lossless: what it comes to is what it is")
    if profile.mode == "balanced" or profile.rel_error is None:
        return at_target()
    if profile.mode == "aggressive":
        small = fitted(SizeBudget(rel_error=profile.rel_error))
        if len(small.data) <= target:
            return small
        return at_target()
    with contextlib.suppress(InfeasibleBudgetError):  # the error goes before the size
        found = fitted(by_size)
        if found.rel_error <= profile.rel_error:
            return found
    found = fitted(SizeBudget(rel_error=profile.rel_error))
    return _noting(
        found,
        target,
        f"conservative: the error stays within {profile.rel_error:g}",
    )


def _fitted(
    arrays: Mapping[str, np.ndarray], budget: SizeBudget, *, progressive: bool
) -> Fitted:
    data = compress(dict(arrays), budget, progressive=progressive)
    with CompressedFile(data, place="the file just made") as file:
        records = file.header.tensors
    error, total = 0.0, 0.0
    for record in records:
        energy = Source(record.name, arrays[record.name]).energy
        total += energy
        error += record.rel_error**2 * energy
    rel_error = math.sqrt(error / total) if total else 0.0
    return Fitted(data, records, rel_error, ())


def _noting(found: Fitted, target: int, why: str) -> Fitted:
    if len(found.data) <= target:
        return found
    said = f"{why}, so the file has {len(found.data):,} bytes, over {target:,}."
    return dataclasses.replace(found, notes=(*found.notes, said))
