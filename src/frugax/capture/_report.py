"""What a jitted function did: calls, compilations, the time of a step, its memory."""

import dataclasses
import statistics
import time
from collections import deque

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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRecord:
    """What is known of one compiled program of a function; it holds no arrays.

    Attributes:
        memory: bytes of the program, by its compiler; None if they are not known.
        plan: its plan; None if there is none.
        unplanned: why it has no plan, although there is a limit.
        step_time: the predicted time of one run; None without a plan.
        problem: why its memory is not known; "" if it is.
    """

    memory: ProgramCosts | None = None
    plan: JitPlan | None = None
    unplanned: tuple[str, ...] = ()
    step_time: StepTime | None = None
    problem: str = ""

    @property
    def demand(self) -> tuple[bool, float]:
        """Rises with the share of its limit that a program needs, or with its bytes."""
        if self.memory is None:
            return False, -1.0
        if self.plan is None:
            return bool(self.unplanned), self.memory.temp_bytes
        budget = self.plan.budget
        return False, self.memory.bytes_of(budget.kind) / max(budget.limit_bytes, 1)


@dataclasses.dataclass(eq=False)
class CallRecord:
    """What is known of the calls of one jitted function; it holds no arrays.

    Attributes:
        name: of the function.
        place: `file.py:line` of the function.
        calls: the number of calls.
        compiles: its compilations.
        programs: the programs that have run.
        gaps: seconds from one call to the next, without those that compiled.
    """

    name: str
    place: str
    calls: int = 0
    compiles: list[Compile] = dataclasses.field(default_factory=list)
    programs: list[ProgramRecord] = dataclasses.field(default_factory=list)
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

    def add(self, compile: Compile, program: ProgramRecord) -> None:
        """Note a compilation in the last call, and the program that it made."""
        # A call that compiles says nothing of the time of the others.
        self._last_start = None
        self.compiles.append(compile)
        self.programs.append(program)

    @property
    def most_demanding(self) -> ProgramRecord:
        """The program that needs most of its limit; an empty one if none has run."""
        return max(self.programs, key=lambda p: p.demand, default=ProgramRecord())

    def report(self) -> "JitReport":
        """The report of these calls, with the program that needs most of its limit."""
        program = self.most_demanding
        return JitReport(
            name=self.name,
            place=self.place,
            calls=self.calls,
            step_seconds=statistics.median(self.gaps) if self.gaps else None,
            compiles=tuple(self.compiles),
            memory=program.memory,
            plan=program.plan,
            unplanned=program.unplanned,
            programs=len(self.programs),
            step_time=program.step_time,
            problem=program.problem,
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
        problem: why the bytes are not known; "" if they are, or if no program has run.
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
    problem: str = ""

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
        if self.problem:
            causes.append(f"  its memory is not known: {self.problem}")
        return "\n".join([line, *causes, *(f"  {c}" for c in self.compiles)])
