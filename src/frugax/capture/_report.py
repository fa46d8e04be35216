"""What a jitted function did: calls, compilations, the time of a step, its memory."""

import dataclasses
import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from frugax.budget import (
    Receipt,
    Spend,
    Verdict,
    amount,
    format_bytes,
    format_seconds,
    format_share,
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
        is_first: whether it is the first one of this function.
    """

    cause: str
    place: str
    seconds: float
    is_first: bool = False

    def __str__(self) -> str:
        took = format_seconds(self.seconds)
        return f"was compiled at {self.place} in {took}: {self.cause}"


@dataclasses.dataclass(eq=False)
class CallRecord:
    """What is known of the calls of one jitted function; it holds no arrays.

    Attributes:
        name: of the function.
        place: `file.py:line` of the function.
        calls: the number of calls.
        compiles: its compilations.
        gaps: seconds from one call to the next, without those that compiled.
        on_plan: called before programs are compiled to find a plan.
        on_compile: called after each compilation.
    """

    name: str
    place: str
    calls: int = 0
    compiles: list[Compile] = dataclasses.field(default_factory=list)
    gaps: deque[float] = dataclasses.field(
        default_factory=lambda: deque(maxlen=_MAX_TIMES)
    )
    on_plan: Callable[["CallRecord"], None] | None = None
    on_compile: Callable[["CallRecord"], None] | None = None
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
        if self.on_compile is not None:
            self.on_compile(self)

    def report(self, **of_program: Any) -> "JitReport":
        """The report of these calls, with what is known of one of its programs."""
        return JitReport(
            name=self.name,
            place=self.place,
            calls=self.calls,
            step_seconds=statistics.median(self.gaps) if self.gaps else None,
            compiles=tuple(self.compiles),
            **of_program,
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
        memory: bytes of its program, by its compiler; of several, of the one that needs
            most of its limit; None if they are not known.
        plan: the plan of that program; None if there is none.
        unplanned: why that program has no plan, although there is a limit.
        programs: the number of programs that ran, each for other shapes.
        step_time: the predicted time of one run of the program with that plan; None
            without a plan.
    """

    name: str
    place: str
    calls: int
    step_seconds: float | None
    compiles: tuple[Compile, ...]
    memory: ProgramCosts | None = None
    plan: JitPlan | None = None
    unplanned: tuple[str, ...] = ()
    programs: int = 1
    step_time: StepTime | None = None

    @property
    def step_time_verdict(self) -> Verdict:
        """Whether calls are as far apart as one run is predicted to take.

        It is not broken otherwise: between two calls lies what the script does there,
        and JAX returns from a call before the program has run.
        """
        if self.step_time is None or self.step_seconds is None:
            return Verdict.CANNOT_TELL
        verdict = Verdict(self.step_time.judge(self.step_seconds))
        return Verdict.KEPT if verdict is Verdict.KEPT else Verdict.CANNOT_TELL

    @property
    def step_time_text(self) -> str:
        """The predicted time with its verdict; `-` without a prediction."""
        if self.step_time is None:
            return "-"
        if self.step_time.problem:
            return str(self.step_time)
        return f"{self.step_time}: {self.step_time_verdict}"

    @property
    def receipt(self) -> Receipt | None:
        """The budget beside the predicted and the measured bytes; None without one."""
        if self.plan is None or self.memory is None:
            return None
        budget = self.plan.budget
        spend = Spend(
            name=f"{budget.kind} memory of {self.name}",
            unit="bytes",
            limit=budget.limit_bytes,
            predicted=self.plan.predicted,
            measured=self.memory.bytes_of(budget.kind),
            source="memory_analysis() of the compiled program that ran",
        )
        return Receipt((spend,))

    def __str__(self) -> str:
        line = f"{self.name} ({self.place}): "
        if self.memory is not None:
            kind = "temp" if self.plan is None else self.plan.budget.kind
            line += f"{format_bytes(self.memory.bytes_of(kind))} of {kind} memory"
            if self.programs > 1:
                line += f" in the largest of {self.programs} programs"
        if self.plan is not None:
            line += f", {format_bytes(self.plan.unplanned_bytes)} without a plan"
            if self.plan.gradients:
                line += f", +{format_share(self.plan.extra_share)} flops"
            if self.plan.cut_after_s is not None:
                line += f", planned in {format_seconds(self.plan.cut_after_s)} at most"
        counted = amount(self.calls, "calls")
        line += counted if line.endswith(": ") else f"; {counted}"
        if self.step_seconds is not None:
            line += f", {format_seconds(self.step_seconds)} each"
        if self.step_time is not None:
            line += f", predicted {self.step_time_text}"
        causes = [f"  has no plan: {cause}" for cause in self.unplanned]
        return "\n".join([line, *causes, *(f"  {c}" for c in self.compiles)])
