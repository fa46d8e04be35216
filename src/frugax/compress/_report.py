"""`CompressReport`: the measured bytes and errors of a file beside its size budget."""

import dataclasses
import math

from frugax.budget import (
    Receipt,
    SizeBudget,
    Spend,
    SpendName,
    Verdict,
)
from frugax.errors import CorruptFileError

from ._tensor_table import (
    FileTable,
    TensorReport,
    format_below_bound,
    limited,
    show_error,
    show_gap,
    show_spends,
    summary_table,
    tensor_table,
)
from ._verify import measure_errors
from .arrays import relative_error
from .search import Calibration, CompressPlan, Draft, make_plan

# Below this share of the size a receipt warns, unless all weights are exact.
_MOSTLY_USED = 0.8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompressReport(FileTable):
    """A compressed file beside its budget; every number is measured by decoding it.

    Attributes:
        tensors: one entry for each leaf, in the tree's order.
        receipt: each limit beside the predicted and the measured value.
    """

    tensors: tuple[TensorReport, ...]
    receipt: Receipt

    @property
    def spends(self) -> tuple[Spend, ...]:
        """One entry for each limit that was stated."""
        return self.receipt.spends

    @property
    def verdict(self) -> Verdict:
        """Whether the budget was kept."""
        return self.receipt.verdict

    def hold_against(self, plan: CompressPlan, *, predicted: str) -> Receipt:
        """Return size and errors of the file beside the budget and a plan's figures.

        Args:
            plan: for the same tensors, perhaps with other values.
            predicted: how the plan did, as in `"by the plan"`; for the source of each
                row.
        """
        problems = ""
        if (share := self._used_share()) < _MOSTLY_USED:
            problems = (
                f"{100 * share:.0f}% of the size is used, and the weights have errors: "
                "some tensors are exact or coarse and nothing between; see the table."
            )
        counted = f"length of the file; predicted {predicted}"
        decoded = f"decoded from the file; predicted {predicted}"
        spends = limited(
            self._limit_bytes(),
            name=SpendName.FILE,
            unit="bytes",
            predicted=plan.file_bytes,
            measured=self.file_bytes,
            source=counted,
            problems=problems,
        )
        for name, figure in (
            (SpendName.REL_ERROR, "rel_error"),
            (SpendName.MAX_ABS, "max_abs"),
        ):
            spends += limited(
                getattr(self.budget, figure),
                name=name,
                unit="",
                predicted=getattr(plan, figure),
                measured=getattr(self, figure),
                source=decoded,
            )
        return Receipt(spends)

    def summary(self) -> str:
        """Return one table with a row for each kind of tensor, and the verdicts."""
        whole = {"file_bytes": self.file_bytes, "rel_error": self.rel_error}
        return summary_table(self.tensors, **whole) + show_spends(self.receipt)

    @property
    def tensor_summary(self) -> str:
        """The table of tensors, and the line about the file."""
        columns = {
            "relative error": lambda t: show_error(t.rel_error, 2),
            "from bound": show_gap,
        }
        gap = self.bound_gap_db
        return f"{tensor_table(self.tensors, columns)}\n{self._show_file()}" + (
            "" if gap is None else f", {gap:.2f} dB from the bound"
        )

    def __str__(self) -> str:
        return (
            self.tensor_summary
            + format_below_bound(self.tensors)
            + self._show_gap()
            + f"\n{self.receipt}"
        )


class CompressedBytes(bytes):
    """The bytes of an `.fxz` file, and the report of their measured size and errors.

    Attributes:
        report: the file beside its budget.
    """

    report: CompressReport

    def __new__(cls, data: bytes, report: CompressReport) -> "CompressedBytes":
        """Attach a report to bytes."""
        compressed = super().__new__(cls, data)
        compressed.report = report
        return compressed

    @property
    def receipt(self) -> Receipt:
        """Each limit beside the predicted and the measured value."""
        return self.report.receipt

    # Copying and pickling `bytes` calls `__new__` again, which needs the report.
    def __getnewargs__(self) -> tuple[bytes, CompressReport]:  # type: ignore[override]
        return bytes(self), self.report

    def __repr__(self) -> str:
        return f"CompressedBytes({len(self):,} bytes, {self.report.verdict})"


def measure_tensors(draft: Draft) -> tuple[TensorReport, ...]:
    """Decode a file and measure every tensor against its original."""
    sources = {source.name: source for source in draft.sources}
    expected = dict(zip(sources, draft.errors, strict=True))
    with draft.open() as file:
        file.check()
        errors = measure_errors(file, sources, lambda *_: None)
        records = file.header.tensors
    for name, error in errors.items():
        # Sums depend on the order of addition in their last digits, maxima do not.
        same = math.isclose(error.energy, expected[name].energy, rel_tol=1e-9)
        if not same or error.max_abs != expected[name].max_abs:
            raise CorruptFileError(f"tensor {name!r} does not come back.")
    reports: list[TensorReport] = []
    for record in records:
        own = record.tied or record.name
        rel_error = relative_error(errors[own].energy, sources[own].energy)
        of_it = {"rel_error": rel_error, "max_abs": errors[own].max_abs}
        reports.append(TensorReport.of(record, **of_it))
    return tuple(reports)


def make_report(
    draft: Draft,
    tensors: tuple[TensorReport, ...],
    budget: SizeBudget,
    plan: CompressPlan | None,
    calibration: Calibration | None,
    *,
    file_bytes: int,
) -> CompressReport:
    """Report a file that was written."""
    before = "by coding these very weights" if plan is None else "by the plan"
    plan = plan or make_plan(draft, budget, calibration)
    report = CompressReport(
        budget=budget,
        receipt=Receipt(()),
        tensors=tensors,
        file_bytes=file_bytes,
        original_bytes=sum(source.array.nbytes for source in draft.sources),
        rel_error=draft.rel_error,
        max_abs=draft.max_abs,
        allocation_gap=plan.allocation_gap,
    )
    spends = report.hold_against(plan, predicted=before).spends
    outputs = "no batches were held out: calibrate(..., held_out=)"
    output_error = None
    measure = None if calibration is None else calibration.output_error
    if budget.output_error is not None and measure is not None:
        output_error = measure(draft.arrays())
        outputs = "outputs on the batches that were held out"
    spends += limited(
        budget.output_error,
        name="output error",
        unit="",
        predicted=plan.output_error,
        measured=output_error,
        source=f"{outputs}; predicted {before}",
    )
    return dataclasses.replace(report, receipt=Receipt(spends))
