"""`fit.plan`, `compare`, `apply`: plan a training step to fit one or more targets."""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import jax

from frugax import measure, remat
from frugax.budget import (
    MemoryBudget,
    MemoryShare,
    Plan,
    format_bytes,
    format_share,
    read_memory_budget,
    table,
)
from frugax.errors import (
    CompilerRefusedError,
    ConfigError,
    FrugaxError,
    InfeasibleBudgetError,
)
from frugax.jaxprs import flops
from frugax.remat import RematPlan
from frugax.targets import CompiledAnswer, Target, find_caveat
from frugax.train.distributed import LayoutKind

from ._donation import advise_donation
from ._workload import Workload

# The most bytes on one device, as `read_memory_budget` reads it.
Budget: TypeAlias = MemoryBudget | MemoryShare | str

# Of a device's memory, where no budget is stated: CUDA's context, libraries and
# fragmentation need some. (JAX itself takes 75 % of a GPU at its start.)
DEFAULT_BUDGET = MemoryBudget.share("90%", device="device")
# Share of recomputed flops above which chunks of the batch are compared.
_DEAR_SHARE = 0.1


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
        micro_batches: parts of the batch whose gradients are accumulated.
        batch_argnum: the argument of the loss that they divide.
        seconds: time to find the answer.
        step_time: the predicted time of one run; None where nothing fits.
        price: cost of an hour on all devices; None if unknown.
        caveat: how a real device may differ, and the parts that were not planned.
        remat: the plan of the backward pass; None if there is nothing to plan.
        problem: why there is no answer; "" if there is one.
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
    batch_argnum: int = -1
    # Another search for the same answer takes another time.
    seconds: float = dataclasses.field(default=0.0, compare=False)
    # On a processor it depends on rates that are measured.
    step_time: measure.StepTime | None = dataclasses.field(default=None, compare=False)
    price: float | None = None
    caveat: str = ""
    remat: RematPlan | None = None
    problem: str = ""
    is_refused: bool = False
    lower_bound: int | None = None

    def to_error(self, subject: str) -> FrugaxError:
        """The problem as an error about this subject."""
        kind = CompilerRefusedError if self.is_refused else ConfigError
        return kind(f"{subject}: {self.problem}")

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
        return min(fitting, key=lambda r: r.price or 0.0, default=None)

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
            row += [format_bytes(r.predicted) if known else "-", answer]
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


def plan(
    fn: Callable[..., Any] | Workload,
    args: Sequence[Any] = (),
    budget: Budget = DEFAULT_BUDGET,
    *,
    target: Target | str = "here",
    **options: Any,
) -> FitPlan:
    """Plan a loss or a training step for a target, which need not be here.

    Nothing is run: the target's own compiler states the bytes of one device. A loss is
    planned as its gradient. A function whose first parameter is `value_and_grad` must
    return a step; the gradient that it makes with it is planned. Any other step is
    only measured.

    Args:
        fn: a loss, a step, or a function of `value_and_grad` that returns a step.
        args: a tuple of arguments; arrays or `jax.ShapeDtypeStruct`.
        budget: the most bytes on one device, as a `MemoryBudget` or a text: "70GiB"
            of arguments, results and temporaries; "50%" of the temporaries that the
            program needs without a plan; or "90% of device".
        target: a target or its name.
        options: other attributes of a `Workload`, such as `specs`, `axes`,
            `donate_argnums`, `has_aux`, `layout` or `micro_batches`.

    Raises:
        InfeasibleBudgetError: it does not fit; at `needed` bytes it does.
        ConfigError: the target, a sharding or the budget is wrong.
        MissingExtraError: the compiler of the target is not installed.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import frugax as fx
        >>> def loss(w, x):
        ...     for _ in range(8):
        ...         x = jnp.tanh(x @ w)
        ...     return jnp.mean(x**2)
        >>> shapes = jax.eval_shape(lambda: (jnp.ones((64, 64)), jnp.ones((512, 64))))
        >>> plan = fx.plan(loss, shapes, fx.MemoryBudget("800KiB"), target="cpu")
        >>> plan.predicted <= 800 * 1024, plan.rows[0].answer[:4]
        (True, 'fits')
    """
    workload = fn if isinstance(fn, Workload) else Workload.of(fn, args, **options)
    chosen = Target(target) if isinstance(target, str) else target
    caveats: list[str] = []
    limit = to_budget(budget, workload, chosen, caveats)
    try:
        return FitPlan(rows=(_answer(workload, chosen, limit, caveats),))
    except InfeasibleBudgetError as e:
        best = e.best if isinstance(e.best, remat.RematPlan) else None
        donation = advise_donation(workload, chosen)
        remedies = f"{donation}; or {e.hint}" if donation else e.hint
        e.hint = f"{remedies} {_largest(workload, chosen, best)}".strip()
        raise


def compare(
    workload: Workload,
    targets: Sequence[Target],
    budget: Budget = DEFAULT_BUDGET,
    *,
    prices: Mapping[str, float] | None = None,
    on_row: Callable[[FitRow], Any] | None = None,
) -> FitPlan:
    """Plan the same program for several targets; what does not fit is a row, too.

    Args:
        workload: the program.
        targets: the targets.
        budget: the most bytes on one device, for each target.
        prices: cost of one device for an hour, by the name of the device or target.
        on_row: called with each answer as soon as it is known.
    """
    rows = []
    for target in targets:
        row = try_target(workload, target, budget)
        rows.append(dataclasses.replace(row, price=price_of(target, prices or {})))
        if on_row is not None:
            on_row(rows[-1])
    return FitPlan(rows=tuple(rows))


def try_target(
    workload: Workload, target: Target, budget: Budget, *, plans: bool = True
) -> FitRow:
    """The answer for one target, also where nothing fits.

    Args:
        workload: the program.
        target: the target.
        budget: the most bytes on one device.
        plans: whether its backward pass may recompute, or is only measured.
    """
    started = time.perf_counter()
    shared: dict[str, Any] = {"target": target.name, "budget": None}
    limit: MemoryBudget | None = None
    # Of each program that was compiled.
    caveats: list[str] = []
    try:
        limit = shared["budget"] = to_budget(budget, workload, target, caveats)
        return _answer(workload, target, limit, caveats, plans=plans)
    except InfeasibleBudgetError as e:
        best = e.best
        found = isinstance(best, remat.RematPlan)
        needed = int(e.needed)
        if limit is not None:
            # What is needed is a limit, of which the headroom stays free.
            needed = dataclasses.replace(limit, limit_bytes=needed).usable_bytes
        return FitRow(
            fits=False,
            predicted=needed,
            unplanned_bytes=best.unplanned_bytes if found else needed,
            extra_share=best.extra_share if found else 0.0,
            caveat="; ".join(
                filter(
                    None,
                    (
                        advise_donation(workload, target),
                        best.caveat if found else target.describe_caveats(*caveats),
                    ),
                )
            ),
            seconds=time.perf_counter() - started,
            remat=best if found else None,
            lower_bound=None if e.lower_bound is None else int(e.lower_bound),
            **shared,
        )
    except FrugaxError as e:
        problem = e.args[0] if e.args else str(e)
        return FitRow(
            fits=False,
            predicted=0,
            unplanned_bytes=0,
            problem=str(problem),
            is_refused=isinstance(e, CompilerRefusedError),
            **shared,
        )


def to_budget(
    budget: Budget,
    workload: Workload,
    target: Target,
    caveats: list[str] | None = None,
) -> MemoryBudget:
    """Convert to bytes of one device; a share of the program compiles it once.

    Args:
        budget: the limit.
        workload: the program.
        target: the target.
        caveats: how the program was compiled otherwise than asked for is added here.

    Raises:
        TypeError: it is neither a text nor a budget.
        ValueError: it is out of range.
        ConfigError: it is a share of a device that is unknown, or whose memory is.
    """
    limit = target.in_bytes(read_memory_budget(budget))
    if isinstance(limit, MemoryShare):
        compiled = _compile(
            target,
            workload.plain(target),
            workload.place(target),
            workload.donate_argnums,
        )
        if caveats is not None:
            caveats.append(find_caveat(compiled))
        return limit.of(measure.program(compiled).bytes_of(limit.kind))
    return limit


def _answer(
    workload: Workload,
    target: Target,
    limit: MemoryBudget,
    caveats: list[str],
    *,
    plans: bool = True,
) -> FitRow:
    started = time.perf_counter()
    devices = target.num_devices
    placed = workload.place(target)
    plan_found: remat.RematPlan | None = None
    batch_argnum = -1
    if workload.can_be_planned:
        part, program = workload.enclose(target)
        batch_argnum = part.batch_argnum
        plan_part = functools.partial(
            remat.plan,
            part.loss,
            # A limit that every program meets: the plan recomputes nothing.
            limit if plans else dataclasses.replace(limit, limit_bytes=2**62),
            part.args,
            argnums=part.argnums,
            has_aux=part.has_aux,
            within=program,
        )
        plan_found = plan_part()
        # Chunks of the batch use the device less well, so they must save a good deal.
        # Over several devices, each chunk would gather weights and add gradients again.
        is_dear = plan_found.extra_share > _DEAR_SHARE and devices == 1
        if is_dear and plan_found.batch is None:
            chunked = plan_part(divide_batch="first")
            if chunked.extra_share < plan_found.extra_share / 2:
                plan_found = chunked
        # As `apply` takes it: for the loss that the caller wrote.
        plan_found = dataclasses.replace(
            plan_found, budget=limit, has_aux=workload.has_aux
        )
        planned = part.apply(plan_found)
        fn = program.build_around(planned)
        compiled = _compile(target, fn, program.args, workload.donate_argnums)
        unplanned, extra = plan_found.unplanned_bytes, plan_found.extra_share
    else:
        fn = workload.plain(target)
        compiled = _compile(target, fn, placed, workload.donate_argnums)
        unplanned, extra = measure.program(compiled).bytes_of(limit.kind), 0.0
    caveats.append(find_caveat(compiled))
    # The compiler's figure for this very program, not the planner's expectation.
    predicted = measure.program(compiled).bytes_of(limit.kind)
    whole, memory = measure.program(compiled).bytes_of("total"), target.memory_bytes
    if memory is not None and predicted <= limit.usable_bytes and whole > memory:
        raise InfeasibleBudgetError(
            f"the whole program on {target}, whose memory is less than the budget,",
            needed=whole,
            limit=memory,
            unit="bytes",
            hint=f'state a budget for all that it holds, such as "{DEFAULT_BUDGET}".',
            best=plan_found,
        )
    if predicted > limit.usable_bytes:
        what, hint = "the planned step", "make the batch smaller."
        if not workload.can_be_planned:
            what = "the step, which is compiled as it is,"
            hint = "let it take value_and_grad, so that its gradient can be planned."
        raise InfeasibleBudgetError(
            what,
            needed=limit.with_usable(predicted).limit_bytes,
            limit=limit.limit_bytes,
            unit="bytes",
            hint=hint,
            best=plan_found,
        )
    with target.tracing():
        traced = jax.make_jaxpr(fn)(*placed)
    kind = workload.layout if _uses_layout(workload, target) else ""
    return FitRow(
        target=target.name,
        budget=limit,
        fits=True,
        predicted=predicted,
        unplanned_bytes=unplanned,
        extra_share=extra,
        device_flops=flops(traced.jaxpr) / devices,
        moved_bytes=measure.traffic(compiled).total_bytes,
        step_time=measure.step_time(compiled, target),
        layout=kind,
        micro_batches=workload.micro_batches,
        batch_argnum=batch_argnum,
        seconds=time.perf_counter() - started,
        caveat=target.describe_caveats(*caveats, workload.caveat),
        remat=plan_found,
    )


def _uses_layout(workload: Workload, target: Target) -> bool:
    return workload.specs is None and target.num_devices > 1


def _compile(
    target: Target,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    donate_argnums: tuple[int, ...],
    **options: Any,
) -> "jax.stages.Compiled | CompiledAnswer":
    jitted = jax.jit(fn, donate_argnums=donate_argnums)
    return target.compile(jitted, *args, **options)


def _largest(workload: Workload, target: Target, best: "remat.RematPlan | None") -> str:
    """What fills the memory when the least is needed, for the text of a refusal."""
    try:
        lines = show_why(workload, target, best).summary().splitlines()
    except (ValueError, FrugaxError):
        # The compiler does not reveal the order, or refuses the program for its size.
        return ""
    return f"At the peak the {'; '.join(lines)}."


def show_why(
    workload: Workload,
    target: Target | str,
    plan: "remat.RematPlan | None" = None,
) -> measure.PeakMemory:
    """The arrays that a program holds at its peak, with the lines that they come from.

    Args:
        workload: the program.
        target: a target or its name.
        plan: the plan of its backward pass; None for the program without a plan.

    Raises:
        ValueError: the compiler does not reveal the order of its operations.
    """
    chosen = Target(target) if isinstance(target, str) else target
    if plan is not None:
        part, program = workload.enclose(chosen)
        fn = program.build_around(part.apply(plan))
    else:
        fn = workload.plain(chosen)
    args = workload.place(chosen)
    options = {} if chosen.is_here else {"with_places": True}
    compiled = _compile(chosen, fn, args, workload.donate_argnums, **options)
    return measure.peak(compiled)


def price_of(target: Target, prices: Mapping[str, float]) -> float | None:
    """Cost of an hour on all devices of a target; None if unknown."""
    for name in (target.name, target.device_name):
        if name in prices:
            return prices[name] * target.num_devices
    return None
