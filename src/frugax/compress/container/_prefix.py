"""How much of a progressive file to read: the prefixes there are, and the best one.

A prefix has every tensor: those that are no planes whole, the others up to some layer.
What its error is was measured when the file was written, and stands in the header
rounded up; the digests tell that the values are the ones that were measured.
"""

import dataclasses
import math
from collections.abc import Sequence

from frugax.budget import Receipt, SizeBudget, Spend
from frugax.errors import InfeasibleBudgetError

from ..arrays._error import round_up
from ._metadata import Header, Record


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """Part of a file that is read in place of all of it.

    Attributes:
        bytes: how much is read: this much data, and the header.
        rel_error: ||decoded - original|| / ||original|| over all finite float tensors,
            at most.
        max_abs: largest |decoded - original| of any number, at most.
        tensors: each tensor as this prefix has it.
    """

    bytes: int
    rel_error: float
    max_abs: float
    tensors: tuple[Record, ...] = dataclasses.field(repr=False)


def list_prefixes(header: Header, file_bytes: int) -> tuple[Prefix, ...]:
    """Every prefix of a file, the shortest first; the last one is the whole file.

    Args:
        header: what the file says of itself.
        file_bytes: its length.
    """
    around = file_bytes - header.data_bytes
    ends = {record.name: _ends(record) for record in header.tensors}
    least = max((found[0] for found in ends.values()), default=0)
    cuts = sorted({end for found in ends.values() for end in found if end > least})
    found: list[Prefix] = []
    for cut in [least, *cuts]:
        tensors = tuple(
            record.truncate(sum(end <= cut for end in ends[record.name]))
            if record.planes
            else record
            for record in header.tensors
        )
        found.append(
            Prefix(
                bytes=around + cut,
                rel_error=_rel_error(tensors),
                max_abs=max((r.max_abs for r in tensors), default=0.0),
                tensors=tensors,
            )
        )
    # Behind the last chunk there may be padding: the whole file is read with it.
    found[-1] = dataclasses.replace(found[-1], bytes=file_bytes)
    return tuple(found)


def choose_prefix(
    header: Header, file_bytes: int, budget: SizeBudget, *, place: str
) -> tuple[Prefix, Receipt]:
    """The most exact prefix in so many bytes, or the shortest within an error.

    Args:
        header: what the file says of itself.
        file_bytes: its length.
        budget: what may be read, or how large the error may be, or both.
        place: the file, for errors.

    Returns:
        The prefix, and each limit beside what it uses.

    Raises:
        InfeasibleBudgetError: none is as short as asked, or none as exact.
    """
    prefixes = list_prefixes(header, file_bytes)
    limit = budget.limit_bytes(
        original_bytes=sum(record.nbytes for record in header.tensors),
        weights=sum(record.size for record in header.tensors),
    )
    errors = [
        ("rel_error", budget.rel_error, [p.rel_error for p in prefixes]),
        ("max_abs", budget.max_abs, [p.max_abs for p in prefixes]),
    ]
    first = 0
    for name, most, of_prefix in errors:
        if most is None:
            continue
        within = [i for i, error in enumerate(of_prefix) if error <= most]
        if not within:
            raise InfeasibleBudgetError(
                f"{place}: the whole file",
                needed=of_prefix[-1],
                limit=most,
                unit=_SAID[name],
                hint="make a file with a smaller error from the original weights.",
                best=prefixes[-1],
                reachable={name: of_prefix[-1]},
            )
        first = within[0]
    chosen = prefixes[first]
    if limit is not None:
        if chosen.bytes > limit:
            shorter = [p for p in prefixes if p.bytes <= limit]
            in_size = (
                {"rel_error": shorter[-1].rel_error, "max_abs": shorter[-1].max_abs}
                if shorter
                else {}
            )
            raise InfeasibleBudgetError(
                f"{place}: the shortest prefix" + (" within the error" * bool(first)),
                needed=chosen.bytes,
                limit=limit,
                unit="bytes",
                hint=_hint(prefixes),
                best=chosen,
                reachable={"bytes": chosen.bytes} | in_size,
            )
        if budget.rel_error is None and budget.max_abs is None:
            within_limit = [p for p in prefixes if p.bytes <= limit]
            chosen = min(within_limit, key=lambda p: (p.rel_error, -p.bytes))
    rows = [
        ("read", "bytes", limit, chosen.bytes),
        ("relative error", "", budget.rel_error, chosen.rel_error),
        ("largest error", "", budget.max_abs, chosen.max_abs),
    ]
    return chosen, Receipt(
        tuple(
            Spend(
                name=name,
                unit=unit,
                limit=most,
                predicted=value,
                measured=value,
                source="counted in the file"
                if unit
                else "stated in the file, measured when it was written",
            )
            for name, unit, most, value in rows
            if most is not None
        )
    )


_SAID = {"rel_error": "of relative error", "max_abs": "of largest error"}


def _ends(record: Record) -> list[int]:
    """Where the data of each layer ends; of a tensor without layers, where it does."""
    each = len(record.chunks) // max(1, len(record.layers))
    ends = [chunk.offset + chunk.length for chunk in record.chunks]
    if not record.planes:
        return [max(ends, default=0)]
    found = [max(ends[i : i + each]) for i in range(0, len(ends), each)]
    # A layer is of no use without those before it.
    return [max(found[: i + 1]) for i in range(len(found))]


def _rel_error(tensors: Sequence[Record]) -> float:
    """At most how far all tensors together are off."""
    if any(record.norm is None and record.max_abs for record in tensors):
        # Without norms it is known that all are no worse than the worst.
        return max(record.rel_error for record in tensors)
    norms = [record.norm or 0.0 for record in tensors]
    gaps = [r.rel_error * norm for r, norm in zip(tensors, norms, strict=True)]
    return round_up(math.hypot(*gaps) / math.hypot(*norms)) if any(gaps) else 0.0


def _hint(prefixes: Sequence[Prefix]) -> str:
    if len(prefixes) > 1:
        return "make a smaller file from the original weights."
    return (
        "make a file that can be read in part, from the original weights: "
        "compress.save(..., progressive=True)."
    )
