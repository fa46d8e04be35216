"""Choose how much of a progressive `.fxz` file to read, by a size or error budget.

A prefix has every tensor: those without planes whole, the others up to some layer. The
error of each layer was measured when the file was written, and stands in the header
rounded up; the digests prove that the values are the ones that were measured.
"""

import dataclasses
import math
from collections.abc import Sequence

from frugax.budget import Receipt, SizeBudget
from frugax.errors import InfeasibleBudgetError

from .._limits import Limit, make_receipt
from ..arrays import round_up
from ._metadata import Header, Record


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """Part of a file that is read in place of the whole.

    Attributes:
        bytes: how much is read: this much data, and the header.
        rel_error: upper bound on ||decoded - original|| / ||original|| over all finite
            float tensors.
        max_abs: upper bound on |decoded - original| of any number.
        tensors: the record of each tensor in this prefix.
    """

    bytes: int
    rel_error: float
    max_abs: float
    tensors: tuple[Record, ...] = dataclasses.field(repr=False)


def list_prefixes(header: Header, file_bytes: int) -> tuple[Prefix, ...]:
    """Return every prefix of a file, the shortest first; the last is the whole file."""
    overhead = file_bytes - header.data_bytes
    ends = {record.name: _layer_ends(record) for record in header.tensors}
    # The first layer of every tensor is needed: a tree cannot lack a leaf.
    shortest = max((of_tensor[0] for of_tensor in ends.values()), default=0)
    later = {end for of_tensor in ends.values() for end in of_tensor if end > shortest}
    prefixes: list[Prefix] = []
    for cut in [shortest, *sorted(later)]:
        tensors = tuple(
            record.truncate(sum(end <= cut for end in ends[record.name]))
            if record.planes
            else record
            for record in header.tensors
        )
        prefixes.append(
            Prefix(
                bytes=overhead + cut,
                rel_error=_bound_rel_error(tensors),
                max_abs=max((r.max_abs for r in tensors), default=0.0),
                tensors=tensors,
            )
        )
    # Behind the last chunk there may be padding: the whole file is read with it.
    prefixes[-1] = dataclasses.replace(prefixes[-1], bytes=file_bytes)
    return tuple(prefixes)


def choose_prefix(
    header: Header, file_bytes: int, budget: SizeBudget, *, place: str
) -> tuple[Prefix, Receipt]:
    """Return the most exact prefix within a size, or the shortest within an error."""
    if budget.output_error is not None:
        raise ValueError(
            f"{place} states errors of weights, not of outputs: give a size, rel_error "
            "or max_abs."
        )
    prefixes = list_prefixes(header, file_bytes)
    limit = budget.limit_bytes(
        original_bytes=sum(record.nbytes for record in header.tensors),
        weights=sum(record.size for record in header.tensors),
    )
    first = _shortest_within_error(prefixes, budget, place)
    chosen = prefixes[first]
    if limit is not None:
        shorter = [p for p in prefixes if p.bytes <= limit]
        if chosen.bytes > limit:
            reachable: dict[str, float] = {"bytes": chosen.bytes}
            if shorter:
                reachable["rel_error"] = shorter[-1].rel_error
                reachable["max_abs"] = shorter[-1].max_abs
            raise InfeasibleBudgetError(
                f"{place}: the shortest prefix" + (" within the error" * bool(first)),
                needed=chosen.bytes,
                limit=limit,
                unit="bytes",
                hint=_suggest(prefixes),
                best=chosen,
                reachable=reachable,
            )
        if budget.rel_error is None and budget.max_abs is None:
            # A later layer may be less exact in one tensor: not always the longest.
            chosen = min(shorter, key=lambda p: (p.rel_error, -p.bytes))
    counted, stated = (
        "counted in the file",
        "stated in the file, measured when it was written",
    )
    error, largest = chosen.rel_error, chosen.max_abs
    # The header states measured errors, so prediction and measurement are one.
    return chosen, make_receipt(
        Limit("read", "bytes", limit, chosen.bytes, chosen.bytes, counted),
        Limit("relative error", "", budget.rel_error, error, error, stated),
        Limit("largest error", "", budget.max_abs, largest, largest, stated),
    )


def _shortest_within_error(
    prefixes: Sequence[Prefix], budget: SizeBudget, place: str
) -> int:
    first = 0
    for name, limit, unit in (
        ("rel_error", budget.rel_error, "of relative error"),
        ("max_abs", budget.max_abs, "of largest error"),
    ):
        if limit is None:
            continue
        errors = [getattr(prefix, name) for prefix in prefixes]
        # Searched in order and not by bisection: a later layer may be less exact.
        within = [i for i, error in enumerate(errors) if error <= limit]
        if not within:
            raise InfeasibleBudgetError(
                f"{place}: the whole file",
                needed=errors[-1],
                limit=limit,
                unit=unit,
                hint="make a file with a smaller error from the original weights.",
                best=prefixes[-1],
                reachable={name: errors[-1]},
            )
        first = within[0]
    return first


def _layer_ends(record: Record) -> list[int]:
    """Return where the data of each layer ends; one end for a tensor without layers."""
    ends = [chunk.offset + chunk.length for chunk in record.chunks]
    if not record.planes:
        return [max(ends, default=0)]
    each = len(record.chunks) // len(record.layers)
    of_layers = [max(ends[i : i + each]) for i in range(0, len(ends), each)]
    # A layer is of no use without those before it.
    return [max(of_layers[: i + 1]) for i in range(len(of_layers))]


def _bound_rel_error(tensors: Sequence[Record]) -> float:
    """Bound the relative error of all tensors together from their stated errors."""
    if any(record.norm is None and record.max_abs for record in tensors):
        # Without norms: all together are no worse than the worst.
        return max(record.rel_error for record in tensors)
    norms = [record.norm or 0.0 for record in tensors]
    gaps = [r.rel_error * norm for r, norm in zip(tensors, norms, strict=True)]
    if not any(gaps):
        return 0.0
    # Errors of different tensors add up in squares, and `hypot` scales these against
    # overflow.
    return round_up(math.hypot(*gaps) / math.hypot(*norms))


def _suggest(prefixes: Sequence[Prefix]) -> str:
    if len(prefixes) > 1:
        return "make a smaller file from the original weights."
    return (
        "make a file that can be read in part, from the original weights: "
        "compress.save(..., progressive=True)."
    )
