"""`FitPlan`: the answers of the targets that a program was planned for, as a table."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from frugax import measure
from frugax.budget import MemoryBudget, Plan, format_bytes, format_share, table
from frugax.errors import (
    CompilerRefusedError,
    ConfigError,
    FrugaxError,
    InfeasibleBudgetError,
)
from frugax.remat import RematPlan
from frugax.train.distributed import LayoutKind


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FitRow:
    """The answer for one target.

    Attributes:
        target: its name.
        budget: the limit on one device; None where it is a share of a program that
            cannot be compiled.
        fits: whether the program, planned if that was needed, keeps to it.
        predicted: bytes of one device, by the target's compiler; where nothing fits,
            the least that was found.
        unplanned_bytes: bytes without a plan.
        extra_share: recomputed flops as a share of those without a plan.
        device_flops: flops of one device, counted on the traced program.
        moved_bytes: bytes of the collectives of one device.
        layout: where arrays lie; "" if the program says so itself.
        micro_batches: parts of the batch of a `TrainStep`.
        seconds: time to find the answer.
        step_time: the predicted time of one run; None where nothing fits.
        price: cost of an hour on all devices; None if unknown.
        caveat: how a real device may differ, and the parts that were not planned.
        remat: the plan of the backward pass; None if there is nothing to plan.
        problem: why there is no answer; "" if there is one.
        is_step: whether `remat` is the plan of the first gradient of a step, which is
            carried out by `fx.jit`.
        donate_argnums: donated arguments of the step.
        is_refused: whether the problem is a refusal of the target's compiler.
        lower_bound: bytes of arguments and results, where they alone exceed the budget.
    """

    target: str
    budget: MemoryBudget | None
    fits: bool
    predicted: int
    unplanned_bytes: int
    extra_share: float = 0.0
    device_flops: float = 0.0
    moved_bytes: int = 0
    layout: LayoutKind | Literal[""] = ""
    micro_batches: int = 1
    # Another search for the same answer takes another time.
    seconds: float = dataclasses.field(default=0.0, compare=False)
    # On a processor it depends on rates that are measured.
    step_time: measure.StepTime | None = dataclasses.field(default=None, compare=False)
    price: float | None = None
    caveat: str = ""
    remat: RematPlan | None = None
    problem: str = ""
    is_step: bool = False
    donate_argnums: tuple[int, ...] = ()
    is_refused: bool = False
    lower_bound: int | None = None

    @classmethod
    def without_answer(
        cls, target: str, problem: str, *, is_refused: bool = False
    ) -> "FitRow":
        """The row of a target for which nothing is known but why."""
        return cls(
            target=target,
            budget=None,
            fits=False,
            predicted=0,
            unplanned_bytes=0,
            problem=problem,
            is_refused=is_refused,
        )

    def to_error(self, subject: str) -> FrugaxError:
        """The problem as an error about this subject."""
        kind = CompilerRefusedError if self.is_refused else ConfigError
        return kind(f"{subject}: {self.problem}")

    def to_refusal(
        self, subject: str, reasons: Sequence[str], hint: str
    ) -> InfeasibleBudgetError:
        """That this program does not fit, as an error about this subject."""
        assert self.budget is not None  # there is an answer
        if self.lower_bound is not None:
            fixed = format_bytes(self.lower_bound)
            reasons = [
                f"arguments and results alone are {fixed}, so nothing smaller than the "
                "program as it is was looked for"
            ]
        if self.budget.kind == "temp":
            share = format_share(self.predicted / max(self.unplanned_bytes, 1))
            subject += " in temporaries"
            reasons = [*reasons, f"{share} of those without a plan is the least found"]
        return InfeasibleBudgetError(
            f"{subject} ({'; '.join(reasons)})" if reasons else subject,
            needed=self.budget.with_usable(self.predicted).limit_bytes,
            limit=self.budget.limit_bytes,
            unit="bytes",
            hint=hint,
            best=self.remat,
            proven=False,  # the least of those that were tried
            lower_bound=self.lower_bound,
        )

    @property
    def job_price(self) -> tuple[float, float] | None:
        """The least and the most that a thousand steps cost; None if unknown."""
        time = self.step_time
        if self.price is None or time is None or time.problem:
            return None
        hours = 1000 / 3600
        return self.price * hours * time.low, self.price * hours * time.high

    @property
    def answer(self) -> str:
        """The answer in a few words."""
        if self.problem:
            return f"cannot tell: {self.problem}"
        if self.lower_bound is not None:
            fixed = format_bytes(self.lower_bound)
            return f"does not fit, arguments and results alone are {fixed}"
        if not self.fits:
            return f"does not fit, needs {format_bytes(self.predicted)}"
        chunks = ""
        if self.remat is not None and self.remat.batch is not None:
            chunks = f" in {self.remat.batch.count} chunks"
        if self.extra_share > 0:
            return f"fits at +{format_share(self.extra_share)} flops{chunks}"
        return f"fits{chunks}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FitPlan(Plan):
    """The answers for all targets; `chosen` is the first that fits.

    Attributes:
        rows: one for each target, or for each layout that was tried.
    """

    rows: tuple[FitRow, ...]

    @property
    def chosen(self) -> FitRow | None:
        """The row that fits with the cheapest job, else the cheapest hour or first.

        Jobs are compared by the middle of their prices, where all of them are known.
        """
        fitting = [r for r in self.rows if r.fits]
        jobs = [sum(job) for r in fitting if (job := r.job_price) is not None]
        if jobs and len(jobs) == len(fitting):
            return fitting[jobs.index(min(jobs))]
        # A price that is not known is not the lowest.
        priced = [r for r in fitting if r.price is not None]
        return min(priced or fitting, key=lambda r: r.price or 0.0, default=None)

    @property
    def budget(self) -> MemoryBudget | None:
        """The limit of the chosen row."""
        return (self.chosen or self.rows[0]).budget

    @property
    def predicted(self) -> int:
        """Bytes of one device of the chosen row."""
        return (self.chosen or self.rows[0]).predicted

    @property
    def remat(self) -> RematPlan | None:
        """The plan of the backward pass in the chosen row."""
        return (self.chosen or self.rows[0]).remat

    def __str__(self) -> str:
        is_total = any(r.budget.kind == "total" for r in self.rows if r.budget)
        kind = "total" if is_total else "temp"
        head = ["target", "budget", f"plain {kind}", f"planned {kind}", "answer"]
        head += ["flops", "moved"]
        wide = any(r.layout or r.micro_batches > 1 for r in self.rows)
        priced = any(r.price is not None for r in self.rows)
        timed = any(r.step_time is not None for r in self.rows)
        head += ["step"] * timed + ["layout"] * wide
        head += ["price/h", "1000 steps"] * priced
        rows = []
        for r in self.rows:
            row = [r.target, format_bytes(r.budget.usable_bytes) if r.budget else "-"]
            known = not r.problem
            row += [format_bytes(r.unplanned_bytes) if known else "-"]
            answer = r.answer
            if priced and r is self.chosen:
                answer += ", chosen"
            # Where arguments and results alone are too large, nothing was planned.
            is_planned = known and r.lower_bound is None
            row += [format_bytes(r.predicted) if is_planned else "-", answer]
            counted = r.device_flops > 0
            row += [f"{r.device_flops:.3g}" if counted else "-"]
            row += [format_bytes(r.moved_bytes) if counted else "-"]
            if timed:
                row.append("-" if r.step_time is None else str(r.step_time))
            if wide:
                count = r.micro_batches
                many = "es" * (count > 1)
                row.append(f"{r.layout or '-'}, {count} micro-batch{many}")
            if priced:
                row.append("-" if r.price is None else f"{r.price:.2f}")
                job = r.job_price
                row.append("-" if job is None else f"{job[0]:.3g} to {job[1]:.3g}")
            rows.append(row)
        notes = {f"{r.target}: {r.caveat}" for r in self.rows if r.caveat}
        notes |= {
            f"{r.target}: the time of a step cannot be told: {r.step_time.problem}"
            for r in self.rows
            if r.step_time is not None and r.step_time.problem
        }
        parts = "arguments, results and temporaries" if is_total else "temporaries"
        words = (
            f"bytes of one device, and its flops; {kind}: {parts}; plain: as written, "
            "planned: with this plan, moved: between devices"
        )
        if timed:
            words += "; step: its time, predicted"
        if priced:
            words += "; chosen: the cheapest job that fits"
        return "\n".join([table(head, rows), words, *sorted(notes)])
