"""Format the table of tensors that plans, reports and inspections print."""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from frugax.budget import Receipt, SizeBudget, Spend, amount, format_bytes, table

from .arrays import dtype_from_name
from .container import Record


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TensorReport:
    """One tensor of a table, measured by decoding it or as a file states it.

    Its bytes are without its part of the header.

    Attributes:
        name: the leaf's name in the tree.
        dtype: its dtype.
        shape: its shape.
        codec: how it is stored: in files `"lossless"`, `"stored"` (as it is), or
            `"uniform"` or `"trellis"` for integers times a step, with the words
            `"columns"` (coded column by column) and `"scaled"` (a step for each row or
            column); `"tied"` where another tensor has its bytes.
        tied: the name of that tensor; empty if its bytes are its own.
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
    tied: str = ""

    @classmethod
    def of(cls, record: Record, **others: Any) -> Self:
        """Describe a tensor as a file states it, but for some fields."""
        stated: dict[str, Any] = {
            "name": record.name,
            "dtype": record.dtype,
            "shape": record.shape,
            "codec": "tied" if record.tied else record.codec,
            "tied": record.tied,
            "bytes": record.stored_bytes,
            "rel_error": record.rel_error,
            "max_abs": record.max_abs,
        }
        return cls(**stated | others)

    @property
    def original_bytes(self) -> int:
        """Its bytes in memory."""
        return math.prod(self.shape) * dtype_from_name(self.dtype).itemsize

    @property
    def bits_per_weight(self) -> float:
        """Bits in the file for each number."""
        return 8 * self.bytes / max(1, math.prod(self.shape))

    @property
    def bound_gap_db(self) -> float | None:
        """How far the error is above the least that is possible in as many bits.

        In dB, for a Gaussian of that size; None if the tensor is exact, or tied.
        """
        if not self.rel_error or self.tied:
            return None
        size = math.prod(self.shape)
        known = {"rel_error": self.rel_error, "stored_bytes": self.bytes, "size": size}
        return gap_to_bound_db(**known)

    @property
    def own_size(self) -> int:
        """How many numbers it stores: none if it is tied."""
        return 0 if self.tied else math.prod(self.shape)

    @property
    def codec_text(self) -> str:
        """The codec, with the tensor that it is tied to."""
        return f"tied to {self.tied}" if self.tied else self.codec


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FileTable:
    """A file of weights beside its budget, as it is planned or measured.

    Attributes:
        budget: the limits that were stated.
        tensors: one entry for each leaf, in the tree's order.
        original_bytes: bytes of the arrays as they are.
        file_bytes: length of the whole file.
        rel_error: ||decoded - original|| / ||original|| over all finite float tensors.
        max_abs: largest |decoded - original| of any number.
        allocation_gap: upper bound on the share by which the tensors' weighted error is
            above the least that any choice of the same options has in as many bytes,
            by the estimates that steps are chosen by; None without a choice.
    """

    budget: SizeBudget
    tensors: tuple[TensorReport, ...]
    original_bytes: int
    file_bytes: int
    rel_error: float
    max_abs: float
    allocation_gap: float | None = None

    @property
    def bound_gap_db(self) -> float | None:
        """The tensors' gaps averaged over quantised weights; None if all are exact."""
        return average_gap_db(self.tensors)

    @property
    def ratio(self) -> float:
        """Original bytes over bytes of the whole file."""
        return self.original_bytes / self.file_bytes

    def _limit_bytes(self) -> int | None:
        """Return the most bytes that the budget allows; None without such a limit."""
        return self.budget.limit_bytes(
            original_bytes=self.original_bytes,
            weights=sum(t.own_size for t in self.tensors),
        )

    def _used_share(self) -> float:
        """Return the share of the size that the file uses.

        1 where the budget states no size alone, or all tensors are exact.
        """
        limit, inexact = self._limit_bytes(), any(t.rel_error for t in self.tensors)
        if limit is None or not (self.budget.is_only_size and inexact):
            return 1.0
        return self.file_bytes / limit

    def _show_file(self) -> str:
        return (
            f"file: {format_bytes(self.file_bytes)}, {self.ratio:.4g}x smaller, "
            f"relative error {self.rel_error:.3g}, largest {self.max_abs:.3g}"
        )

    def _show_gap(self) -> str:
        """Return the line about the allocation's gap to its bound, if there is one."""
        if self.allocation_gap is None:
            return ""
        by = "better"
        if self.allocation_gap:
            by = f"more than {100 * self.allocation_gap:.2g}% better"
        return f"\nby estimate no other choice of these options is {by}"


# Extra columns by their heading; each shows one tensor.
Columns = Mapping[str, Callable[[Any], str]]


def show_error(error: float, digits: int) -> str:
    """Show an error, or the word for none."""
    return f"{error:.{digits}g}" if error else "exact"


def show_gap(tensor: TensorReport) -> str:
    """Show the distance of a tensor from the bound."""
    return "-" if tensor.bound_gap_db is None else f"{tensor.bound_gap_db:.2f} dB"


def average_gap_db(tensors: Sequence[TensorReport]) -> float | None:
    """Average the gaps over the weights they are of; None if all are exact."""
    pairs = [
        (t.bound_gap_db, t.own_size) for t in tensors if t.bound_gap_db is not None
    ]
    # By numbers and not by tensors: a bias far from the bound costs hardly any bytes.
    weights = sum(n for _, n in pairs)
    if not weights:
        return None
    return sum(gap * n for gap, n in pairs) / weights


def format_below_bound(tensors: Sequence[TensorReport]) -> str:
    """Explain tensors that are better than the bound; empty without one."""
    if all((t.bound_gap_db or 0) >= 0 for t in tensors):
        return ""
    return "\nbelow 0 dB: the bound is that of Gaussian weights, and these are easier"


def tensor_table(tensors: Sequence[TensorReport], columns: Columns) -> str:
    """Show name, kind, codec and bytes of each tensor, then the extra columns."""
    rows = [
        [
            t.name or "(the array)",
            f"{t.dtype}{list(t.shape)}",
            t.codec_text,
            f"{t.bytes:,}",
            *(show(t) for show in columns.values()),
        ]
        for t in tensors
    ]
    return table(["tensor", "weights", "codec", "bytes", *columns], rows)


def summary_table(
    tensors: Sequence[TensorReport], *, file_bytes: int, rel_error: float
) -> str:
    """Show one row for each kind of tensor, whose names differ in numbers, and all."""
    kinds: dict[tuple[str, str, str], list[TensorReport]] = {}
    for t in tensors:
        name = re.sub(r"\d+", "*", t.name) or "(the array)"
        codec = re.sub(r"\d+", "*", t.codec_text) if t.tied else t.codec
        kinds.setdefault((name, f"{t.dtype}{list(t.shape)}", codec), []).append(t)
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


def _amounts(length: int, tensors: Sequence[TensorReport]) -> list[str]:
    numbers = sum(t.own_size for t in tensors)
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


def gap_to_bound_db(*, rel_error: float, stored_bytes: int, size: int) -> float:
    """Return how far an error is above the Gaussian rate-distortion bound, in dB.

    With R bits for each number no code has, for an independent Gaussian source, a
    mean squared error below variance * 2^(-2R). Weights are not quite Gaussian: a gap
    below 0 is possible.

    Args:
        rel_error: ||decoded - original|| / ||original||; > 0.
        stored_bytes: bytes spent on the tensor.
        size: how many numbers it has; > 0.

    Raises:
        ValueError: the error or the size is not above 0: such tensors have no bound.

    References:
        Shannon 1959, IRE National Convention Record 4, 142-163.

    >>> round(gap_to_bound_db(rel_error=2**-4, stored_bytes=500, size=1000), 2)
    0.0
    """
    if not (rel_error > 0 and size > 0):
        raise ValueError(
            "gap_to_bound_db needs rel_error and size above 0, got "
            f"{rel_error} and {size}: an exact or empty tensor has no bound."
        )
    # D(R) = variance * 2^(-2R), so that each bit is worth 20 log10(2) = 6.02 dB.
    bits = 8 * stored_bytes / size
    return 20 * math.log10(rel_error) + 20 * math.log10(2) * bits
