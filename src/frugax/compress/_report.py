"""What compressing really cost: the file's length and its errors."""

import dataclasses
import json
import math
from collections.abc import Sequence

from frugax.budget import (
    Receipt,
    SizeBudget,
    Spend,
    Verdict,
    format_bytes,
    table,
    to_plain,
)

from ._records import Record
from ._unused import unused_line


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TensorReport:
    """What became of one tensor: measured on its decoded values, or as a file says.

    Attributes:
        name: the leaf's name in the tree.
        dtype: its dtype.
        shape: its shape.
        codec: `"lossless"`, `"stored"` (as it is), `"quantised"`, `"trellis"` or
            `"planes"` (progressive).
        bytes: its bytes in the file, without its part of the header.
        original_bytes: its bytes in memory.
        rel_error: ||decoded - original|| / ||original||; 0 if exact.
        max_abs: largest |decoded - original|; 0 if exact.
        bits_per_weight: bits in the file for each number.
        bound_gap_db: how far the error is above the least possible for a Gaussian
            of that size in as many bits, in dB; None if the tensor is exact.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    codec: str
    bytes: int
    original_bytes: int
    rel_error: float
    max_abs: float
    bits_per_weight: float
    bound_gap_db: float | None

    @classmethod
    def of(cls, record: Record, *, rel_error: float, max_abs: float) -> "TensorReport":
        """A tensor as a file has it, with the errors that were measured or stated."""
        gap = None
        if rel_error:
            gap = gap_to_bound_db(
                rel_error=rel_error, stored_bytes=record.stored_bytes, size=record.size
            )
        return cls(
            name=record.name,
            dtype=record.dtype,
            shape=record.shape,
            codec=record.codec,
            bytes=record.stored_bytes,
            original_bytes=record.nbytes,
            rel_error=rel_error,
            max_abs=max_abs,
            bits_per_weight=8 * record.stored_bytes / max(1, record.size),
            bound_gap_db=gap,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompressReport:
    """A compressed file beside its budget; every number is measured by decoding it.

    Attributes:
        budget: what was asked for.
        receipt: each limit beside what was predicted and measured.
        tensors: one entry for each leaf, in the tree's order.
        file_bytes: length of the whole file.
        original_bytes: bytes of the arrays as they were.
        rel_error: ||decoded - original|| / ||original|| over all finite float tensors.
        max_abs: largest |decoded - original| of any number.
        allocation_gap: the plan's `allocation_gap`.
    """

    budget: SizeBudget
    receipt: Receipt
    tensors: tuple[TensorReport, ...]
    file_bytes: int
    original_bytes: int
    rel_error: float
    max_abs: float
    allocation_gap: float | None = None

    @property
    def ratio(self) -> float:
        """Original bytes over bytes of the whole file."""
        return self.original_bytes / self.file_bytes

    @property
    def bound_gap_db(self) -> float | None:
        """The tensors' gaps averaged over quantised weights; None if all are exact."""
        return mean_gap_db(self.tensors)

    @property
    def spends(self) -> tuple[Spend, ...]:
        """One entry for each limit that was stated."""
        return self.receipt.spends

    @property
    def verdict(self) -> Verdict:
        """Whether the budget was kept."""
        return self.receipt.verdict

    def to_json(self) -> str:
        """The report as JSON text."""
        plain = to_plain(self) | {
            "ratio": self.ratio,
            "bound_gap_db": self.bound_gap_db,
            "verdict": str(self.verdict),
        }
        return json.dumps(plain, indent=1)

    def __str__(self) -> str:
        rows = [
            [
                t.name or "(the array)",
                f"{t.dtype}{list(t.shape)}",
                t.codec,
                f"{t.bytes:,}",
                f"{t.rel_error:.2g}" if t.rel_error else "exact",
                "-" if t.bound_gap_db is None else f"{t.bound_gap_db:.2f} dB",
            ]
            for t in self.tensors
        ]
        head = ["tensor", "weights", "codec", "bytes", "relative error", "from bound"]
        gap = self.bound_gap_db
        return "\n".join(
            [
                table(head, rows),
                f"file: {format_bytes(self.file_bytes)}, {self.ratio:.4g}x smaller, "
                f"relative error {self.rel_error:.3g}, largest {self.max_abs:.3g}"
                + ("" if gap is None else f", {gap:.2f} dB from the bound")
                + unused_line(
                    self.budget,
                    [(t.shape, t.codec, t.rel_error) for t in self.tensors],
                    original_bytes=self.original_bytes,
                    file_bytes=self.file_bytes,
                )
                + below_bound_line(self.tensors)
                + gap_line(self.allocation_gap),
                str(self.receipt),
            ]
        )


def mean_gap_db(tensors: Sequence[TensorReport]) -> float | None:
    """The gaps averaged over the weights they are of; None if all are exact."""
    pairs = [
        (t.bound_gap_db, math.prod(t.shape))
        for t in tensors
        if t.bound_gap_db is not None
    ]
    weights = sum(n for _, n in pairs)
    return sum(gap * n for gap, n in pairs) / weights if weights else None


def below_bound_line(tensors: Sequence[TensorReport]) -> str:
    """Why some tensors are better than the bound; nothing if none is."""
    if all((t.bound_gap_db or 0) >= 0 for t in tensors):
        return ""
    return "\nbelow 0 dB: the bound is that of Gaussian weights, and these are easier"


def gap_line(gap: float | None) -> str:
    """What is said of an allocation's gap; nothing if there is none."""
    if gap is None:
        return ""
    by = f"more than {100 * gap:.2g}% better" if gap else "better"
    return f"\nby estimate no other choice of these options is {by}"


def gap_to_bound_db(*, rel_error: float, stored_bytes: int, size: int) -> float:
    """How far an error is above the Gaussian rate-distortion bound, in dB.

    With R bits for each number no code has, for an independent Gaussian source, a
    mean squared error below variance * 2^(-2R). Weights are not quite Gaussian: a gap
    below 0 is possible.

    Args:
        rel_error: ||decoded - original|| / ||original||; > 0.
        stored_bytes: bytes spent on the tensor.
        size: how many numbers it has; > 0.

    Raises:
        ValueError: the error or the size is not above 0: the bound knows no such.

    References:
        Shannon 1959, IRE National Convention Record 4, 142-163.

    >>> round(gap_to_bound_db(rel_error=2**-4, stored_bytes=500, size=1000), 2)
    0.0
    """
    if not (rel_error > 0 and size > 0):
        raise ValueError(
            "gap_to_bound_db needs rel_error and size above 0, got "
            f"{rel_error} and {size}: what is exact, or empty, is not on the bound."
        )
    bits = 8 * stored_bytes / size
    return 20 * math.log10(rel_error) + 20 * math.log10(2) * bits
