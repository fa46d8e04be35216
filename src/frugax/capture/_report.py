"""Report a jitted function: calls, compilations, the time of a step, its memory."""

import dataclasses
import statistics
import time
from collections import deque
from typing import Literal

from frugax.budget import (
    Receipt,
    Spend,
    Verdict,
    amount,
    format_bytes,
    format_seconds,
)
from frugax.measure import ProgramCosts, StepTime

from ._plan import JitPlan

# As many of the last calls are remembered for the time of a step.
_MAX_TIMES = 1000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Compile:
    """One compilation of a function.

    Attributes:
        cause: what differs from the nearest earlier signature.
        place: file and line of the call.
        seconds: seconds of that call: tracing, planning, compiling and the first run.
    """

    cause: str
    place: str
    seconds: float

    def __str__(self) -> str:
        took = format_seconds(self.seconds)
        return f"was compiled at {self.place} in {took}: {self.cause}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRecord:
    """Facts about one compiled program of a function; it holds no arrays.

    Attributes:
        memory: bytes of the program, by its compiler; None if they are not known.
        plan: its plan; None if there is none.
        unplanned: why it has no plan, although there is a limit.
        step_time: the predicted time of one run; None without a plan.
        problem: why its memory is not known; "" if it is.
        is_small: whether it has no plan since it needs so little.
    """

    memory: ProgramCosts | None = None
    plan: JitPlan | None = None
    unplanned: tuple[str, ...] = ()
    step_time: StepTime | None = None
    problem: str = ""
    is_small: bool = False

    @property
    def kind(self) -> Literal["temp", "total"]:
        """The kind of bytes that count: those of the limit, or temporaries."""
        return "temp" if self.plan is None else self.plan.budget.kind

    @property
    def bytes(self) -> int | None:
        """The program's bytes of that kind; None if they are not known."""
        return None if self.memory is None else self.memory.bytes_of(self.kind)

    @property
    def demand(self) -> tuple[bool, float]:
        """Rises with the share of its limit that a program needs, or with its bytes."""
        if self.bytes is None:
            return False, -1.0
        if self.is_small:
            return False, 0.0
        if self.plan is None:
            return bool(self.unplanned), self.bytes
        return False, self.bytes / max(self.plan.budget.limit_bytes, 1)

    @property
    def problems(self) -> list[str]:
        """Why it has no plan, exceeds its limit, or has no known memory."""
        if self.plan is None:
            found = [f"has no plan: {cause}" for cause in self.unplanned]
        else:
            found = [*self.plan.problems]
        if self.problem:
            found.append(f"its memory is not known: {self.problem}")
        return found


@dataclasses.dataclass(eq=False)
class CallRecord:
    """Facts about the calls of one jitted function; it holds no arrays.

    Attributes:
        name: of the function.
        place: `file.py:line` of the function.
        calls: the number of calls.
        compiles: its compilations.
        programs: the programs that have run.
        lowered: the program that was lowered last, ahead of its calls; or None.
        gaps: seconds from one call to the next, without those that compiled.
    """

    name: str
    place: str
    calls: int = 0
    compiles: list[Compile] = dataclasses.field(default_factory=list)
    programs: list[ProgramRecord] = dataclasses.field(default_factory=list)
    lowered: ProgramRecord | None = None
    gaps: deque[float] = dataclasses.field(
        default_factory=lambda: deque(maxlen=_MAX_TIMES)
    )
    _last_start: float | None = None

    def start_call(self) -> float:
        """Note a call; return the time."""
        now = time.perf_counter()
        if self._last_start is not None:
            self.gaps.append(now - self._last_start)
        self._last_start = now
        self.calls += 1
        return now

    def add(self, compile: Compile) -> None:
        """Note a compilation in the last call."""
        # A call that compiles says nothing of the time of the others.
        self._last_start = None
        self.compiles.append(compile)

    @property
    def most_demanding(self) -> ProgramRecord:
        """The program that needs most of its limit; the lowered one if none has run."""
        lowered = self.lowered or ProgramRecord()
        return max(self.programs, key=lambda p: p.demand, default=lowered)

    def report(self) -> "JitReport":
        """The report of these calls, with the program that needs most of its limit."""
        return JitReport(
            name=self.name,
            place=self.place,
            calls=self.calls,
            step_seconds=statistics.median(self.gaps) if self.gaps else None,
            compiles=tuple(self.compiles),
            programs=len(self.programs),
            program=self.most_demanding,
            is_lowered=self.lowered is not None,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JitReport:
    """The expense of a jitted function so far.

    Attributes:
        name: of the function.
        place: `file.py:line` of the function.
        calls: the number of calls.
        step_seconds: median seconds from one call to the next; None for a single call.
        compiles: its compilations, with their causes.
        programs: the number of programs that ran, each for other shapes.
        program: of these, the one that needs most of its limit.
        is_lowered: whether a program was lowered ahead of its calls, as by
            `step.lower(...).compile()`: calls of its result are not seen here.
    """

    name: str
    place: str
    calls: int
    step_seconds: float | None
    compiles: tuple[Compile, ...]
    programs: int
    program: ProgramRecord
    is_lowered: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether a call has ended, or a program was lowered ahead of calls."""
        return self.programs > 0 or self.is_lowered

    @property
    def problems(self) -> list[str]:
        """Why this report is incomplete, or its program exceeds its limit."""
        found = self.program.problems
        if not self.has_ended:
            found.append(
                "no program is known: no call has ended, or jax.disable_jit is on"
            )
        if self.is_lowered:
            found.append("was compiled ahead of its calls, which are not seen")
        return found

    @property
    def step_time_verdict(self) -> Verdict:
        """Whether calls are as far apart as one run is predicted to take.

        It is not broken otherwise: between two calls lies other work of the script,
        and JAX returns from a call before the program has run.
        """
        predicted = self.program.step_time
        if predicted is None or self.step_seconds is None:
            return Verdict.CANNOT_TELL
        verdict = Verdict(predicted.judge(self.step_seconds))
        return Verdict.KEPT if verdict is Verdict.KEPT else Verdict.CANNOT_TELL

    @property
    def step_time_text(self) -> str:
        """The predicted time with its verdict; `-` without a prediction."""
        predicted = self.program.step_time
        if predicted is None:
            return "-"
        if predicted.problem:
            return str(predicted)
        return f"{predicted}: {self.step_time_verdict}"

    @property
    def receipt(self) -> Receipt | None:
        """The budget beside the predicted and the measured bytes; None without one."""
        plan = self.program.plan
        if plan is None or self.program.bytes is None:
            return None
        spend = Spend(
            name=f"{plan.budget.kind} memory of {self.name}",
            unit="bytes",
            limit=plan.budget.limit_bytes,
            predicted=plan.predicted,
            measured=self.program.bytes,
            source="memory_analysis() of the compiled program that ran",
        )
        return Receipt((spend,))

    def __str__(self) -> str:
        program, plan, facts = self.program, self.program.plan, []
        if program.bytes is not None:
            need = f"{format_bytes(program.bytes)} of {program.kind} memory"
            if self.programs > 1:
                need += f" in the largest of {self.programs} programs"
            if plan is not None and self.receipt is not None:
                limit = format_bytes(plan.budget.usable_bytes)
                need += f", at most {limit}: {self.receipt.verdict}"
                need += f"; {format_bytes(plan.unplanned_bytes)} without a plan"
                if plan.gradients:
                    need += f", {plan.extra_text}"
                if plan.cut_after_s is not None:
                    need += f", planned in {format_seconds(plan.cut_after_s)} at most"
            facts.append(need)
        calls = amount(self.calls, "calls")
        if self.step_seconds is not None:
            calls += f", {format_seconds(self.step_seconds)} each"
        if program.step_time is not None:
            calls += f", predicted {self.step_time_text}"
        facts.append(calls)
        line = f"{self.name} ({self.place}): {'; '.join(facts)}"
        notes = [*self.problems, *map(str, self.compiles)]
        return "\n  ".join([line, *notes])
