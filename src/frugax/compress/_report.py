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
from frugax.errors import CorruptFileError

from ._table import format_gap, format_unused
from .arrays._error import Distortion, relative_error
from .arrays._mapped import release
from .container._metadata import Record
from .search._draft import Draft, limit_bytes
from .search._plan import CompressPlan, make_plan


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
        return average_gap_db(self.tensors)

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
        head = [
            "tensor",
            "weights",
            "codec",
            "bytes",
            "relative error",
            "from bound",
        ]
        gap = self.bound_gap_db
        return "\n".join(
            [
                table(head, rows),
                f"file: {format_bytes(self.file_bytes)}, {self.ratio:.4g}x smaller, "
                f"relative error {self.rel_error:.3g}, largest {self.max_abs:.3g}"
                + ("" if gap is None else f", {gap:.2f} dB from the bound")
                + format_unused(
                    self.budget,
                    [(t.shape, t.codec, t.rel_error) for t in self.tensors],
                    original_bytes=self.original_bytes,
                    file_bytes=self.file_bytes,
                )
                + format_below_bound(self.tensors)
                + format_gap(self.allocation_gap),
                str(self.receipt),
            ]
        )


def average_gap_db(tensors: Sequence[TensorReport]) -> float | None:
    """The gaps averaged over the weights they are of; None if all are exact."""
    pairs = [
        (t.bound_gap_db, math.prod(t.shape))
        for t in tensors
        if t.bound_gap_db is not None
    ]
    weights = sum(n for _, n in pairs)
    return sum(gap * n for gap, n in pairs) / weights if weights else None


def format_below_bound(tensors: Sequence[TensorReport]) -> str:
    """Why some tensors are better than the bound; nothing if none is."""
    if all((t.bound_gap_db or 0) >= 0 for t in tensors):
        return ""
    return "\nbelow 0 dB: the bound is that of Gaussian weights, and these are easier"


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


def measured(draft: Draft) -> tuple[TensorReport, ...]:
    """Decode the file and measure it against the originals.

    Raises:
        CorruptFileError: the file does not hold what was meant: a bug, never seen.
    """
    found: list[TensorReport] = []
    with draft.opened() as file:
        file.check()
        sources = {source.name: source for source in draft.sources}
        meant = dict(zip(sources, draft.errors, strict=True))
        errors = dict.fromkeys(sources, Distortion())
        for name, at, part in file.pieces():
            # Digests are compared while decoding: exact tensors need no second look.
            original = sources[name].array.reshape(-1)[at : at + part.size]
            if meant[name].max_abs:
                errors[name] += Distortion.between(part, original)
            release(original)
        for name, error in errors.items():
            same = math.isclose(error.energy, meant[name].energy, rel_tol=1e-9)
            if not same or error.max_abs != meant[name].max_abs:
                raise CorruptFileError(f"tensor {name!r} does not come back.")
            rel_error = relative_error(error.energy, sources[name].energy)
            record = file.record(name)
            found.append(
                TensorReport.of(record, rel_error=rel_error, max_abs=error.max_abs)
            )
    return tuple(found)


def report_of(
    draft: Draft,
    tensors: tuple[TensorReport, ...],
    budget: SizeBudget,
    plan: CompressPlan | None,
    *,
    file_bytes: int,
) -> CompressReport:
    """The report of a file that was written.

    Args:
        draft: what was written.
        tensors: what `measured` has found.
        budget: what was asked for.
        plan: that was carried out; None if it was searched for on these weights.
        file_bytes: the length of the file.
    """
    before = "by coding these very weights" if plan is None else "by the plan"
    plan = plan or make_plan(draft, budget)
    rows = [
        (
            "file",
            "bytes",
            limit_bytes(draft.sources, budget),
            plan.file_bytes,
            file_bytes,
        ),
        ("relative error", "", budget.rel_error, plan.rel_error, draft.rel_error),
        ("largest error", "", budget.max_abs, plan.max_abs, draft.max_abs),
    ]
    spends = tuple(
        Spend(
            name=name,
            unit=unit,
            limit=limit,
            predicted=predicted,
            measured=measured,
            source=("length of the file" if unit else "decoded from the file")
            + f"; predicted {before}",
        )
        for name, unit, limit, predicted, measured in rows
        if limit is not None
    )
    return CompressReport(
        budget=budget,
        receipt=Receipt(spends),
        tensors=tensors,
        file_bytes=file_bytes,
        original_bytes=sum(source.array.nbytes for source in draft.sources),
        rel_error=draft.rel_error,
        max_abs=draft.max_abs,
        allocation_gap=plan.allocation_gap,
    )
