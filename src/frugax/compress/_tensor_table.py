"""Format the table of tensors that plans, reports and inspections print."""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from frugax.budget import Receipt, SizeBudget, Spend, amount, table

# Below this share of the size a table says that some of it is unused.
_UNUSED = 0.97


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TensorRow:
    """One tensor of a table, measured by decoding it or as a file states it.

    Attributes:
        name: the leaf's name in the tree.
        dtype: its dtype.
        shape: its shape.
        codec: how it is stored: in files `"lossless"`, `"stored"` (as it is), or
            `"uniform"` or `"trellis"` for integers times a step, with the words
            `"columns"` (coded column by column) and `"scaled"` (a step for each row or
            column); `"tied"` where another tensor has its bytes.
        bytes: its bytes there.
        rel_error: ||decoded - original|| / ||original||; 0 if exact.
        max_abs: largest |decoded - original|; 0 if exact.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    codec: str
    bytes: int
    rel_error: float
    max_abs: float


# Extra columns by their heading; each shows one tensor.
Columns = Mapping[str, Callable[[Any], str]]


def show_error(error: float, digits: int) -> str:
    """Show an error, or the word for none."""
    return f"{error:.{digits}g}" if error else "exact"


def tensor_table(tensors: Sequence[TensorRow], columns: Columns) -> str:
    """Show name, kind, codec and bytes of each tensor, then the extra columns."""
    rows = [
        [
            t.name or "(the array)",
            f"{t.dtype}{list(t.shape)}",
            t.codec,
            f"{t.bytes:,}",
            *(show(t) for show in columns.values()),
        ]
        for t in tensors
    ]
    return table(["tensor", "weights", "codec", "bytes", *columns], rows)


def summary_table(
    tensors: Sequence[TensorRow], *, file_bytes: int, rel_error: float
) -> str:
    """Show one row for each kind of tensor, whose names differ in numbers, and all."""
    kinds: dict[tuple[str, str, str], list[TensorRow]] = {}
    for t in tensors:
        name = re.sub(r"\d+", "*", t.name) or "(the array)"
        kinds.setdefault((name, f"{t.dtype}{list(t.shape)}", t.codec), []).append(t)
    rows = [
        [
            name,
            str(len(same)),
            weights,
            codec,
            *_amounts(sum(t.bytes for t in same), same),
            show_error(max(t.rel_error for t in same), 2),
        ]
        for (name, weights, codec), same in kinds.items()
    ]
    whole = ["all", str(len(tensors)), "", "", *_amounts(file_bytes, tensors)]
    heads = ["tensors", "how many", "weights", "codec", "bytes", "bits each"]
    rows.append([*whole, show_error(rel_error, 2)])
    return table([*heads, "relative error"], rows)


def _amounts(length: int, tensors: Sequence[TensorRow]) -> list[str]:
    numbers = sum(math.prod(t.shape) for t in tensors)
    return [f"{length:,}", f"{8 * length / max(1, numbers):.2f}"]


def show_spends(receipt: Receipt) -> str:
    """Show each limit with its verdict on a line."""
    lines = [
        f"{s.name}: {s.measured_text}, at most {amount(s.limit, s.unit)}: {s.verdict}"
        + (f". {s.problems}" if s.problems else "")
        for s in receipt.spends
        if math.isfinite(s.limit)
    ]
    return "".join(f"\n{line}" for line in lines)


def limited(limit: float | None, **figures: Any) -> tuple[Spend, ...]:
    """Return a quantity beside its limit; nothing where the budget has none for it."""
    return () if limit is None else (Spend(limit=limit, **figures),)


def used_share(of: Any) -> float:
    """Return the share of the size that the file of a plan or report uses.

    1 where the budget states no size alone, or all tensors are exact.
    """
    budget: SizeBudget = of.budget
    tensors: Sequence[TensorRow] = of.tensors
    limit = budget.limit_bytes(
        original_bytes=of.original_bytes,
        weights=sum(math.prod(t.shape) for t in tensors),
    )
    inexact = any(t.rel_error for t in tensors)
    if limit is None or not (budget.is_only_size and inexact):
        return 1.0
    return of.file_bytes / limit


def format_unused(of: Any) -> str:
    """Return the line about a size that a plan leaves unused, if it does."""
    share = used_share(of)
    if share > _UNUSED:
        return ""
    return (
        f"\n{100 * share:.0f}% of the size is used: no finer file was "
        "found within it, and the exact one is longer"
    )


def format_gap(gap: float | None) -> str:
    """Return the line about an allocation's gap to its bound; empty without one."""
    if gap is None:
        return ""
    by = f"more than {100 * gap:.2g}% better" if gap else "better"
    return f"\nby estimate no other choice of these options is {by}"
