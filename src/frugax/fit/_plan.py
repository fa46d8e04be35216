"""`fit.plan`, `compare`, `apply`: plan a training step to fit one or more targets."""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn, TypeAlias

import jax

from frugax import measure, remat
from frugax.budget import (
    MemoryBudget,
    MemoryShare,
    read_memory_budget,
)
from frugax.errors import (
    CompilerRefusedError,
    FrugaxError,
    InfeasibleBudgetError,
)
from frugax.jaxprs import flops
from frugax.targets import CompiledAnswer, Target, find_caveat
from frugax.train.distributed import LayoutKind

from ._donation import advise_donation
from ._fit_plan import FitPlan, FitRow
from ._plan_step import StepAnswer, answer_step
from ._workload import Workload

# The most bytes on one device, as `read_memory_budget` reads it.
Budget: TypeAlias = MemoryBudget | MemoryShare | str

# Of a device's memory, where no budget is stated: CUDA's context, libraries and
# fragmentation need some. (JAX itself takes 75 % of a GPU at its start.)
DEFAULT_BUDGET = MemoryBudget.share("90%", device="device")
# Share of recomputed flops above which chunks of the batch are compared.
_DEAR_SHARE = 0.1


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
    planned as its gradient; of a step, the gradients that it takes are, as `fx.jit`
    plans them.

    Args:
        fn: a loss or a step.
        args: a tuple of arguments; arrays or `jax.ShapeDtypeStruct`.
        budget: the most bytes on one device, as a `MemoryBudget` or a text: "70GiB"
            of arguments, results and temporaries; "50%" of the temporaries that the
            program needs without a plan; or "90% of device".
        target: a target or its name.
        options: other attributes of a `Workload`, such as `specs`, `axes`,
            `donate_argnums`, `has_aux` or `layout`.

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
    chosen = read_target(target)
    caveats: list[str] = []
    limit = to_budget(budget, workload, chosen, caveats)
    find_peak, donation = functools.partial(show_why, workload, chosen), ""
    try:
        if not workload.is_step:
            return FitPlan(rows=(_answer(workload, chosen, limit, caveats),))
        answer = _answer_step(workload, chosen, limit)
        if answer.row.fits:
            return FitPlan(rows=(answer.row,))
        find_peak = lambda _: answer.find_peak(chosen)
        donation = answer.advise_donation(workload.batch_argnum)
        _refuse(answer, chosen)
    except InfeasibleBudgetError as e:
        best = e.best if isinstance(e.best, remat.RematPlan) else None
        if not workload.is_step:
            donation = advise_donation(workload, chosen)
        remedies = f"{donation}; or {e.hint}" if donation else e.hint
        e.hint = f"{remedies} {_describe_peak(find_peak, best)}".strip()
        raise


def compare(
    workload: Workload,
    targets: Sequence[Target | str],
    budget: Budget = DEFAULT_BUDGET,
    *,
    prices: Mapping[str, float] | None = None,
    on_row: Callable[[FitRow], Any] | None = None,
) -> FitPlan:
    """Plan the same program for several targets; what does not fit is a row, too.

    Args:
        workload: the program.
        targets: the targets, or their names.
        budget: the most bytes on one device, for each target.
        prices: cost of one device for an hour, by the name of the device or target.
        on_row: called with each answer as soon as it is known.

    Raises:
        TypeError: `targets` is a single one, or `workload` is not a workload.
    """
    check_workload(workload)
    if isinstance(targets, str | Target):
        raise TypeError(f"targets must be a list of targets, got {targets}.")
    rows = []
    for target in map(read_target, targets):
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
        if not workload.is_step:
            return _answer(workload, target, limit, caveats, plans=plans)
        answer = _answer_step(workload, target, limit, plans=plans)
        row = answer.row
        if row.fits:
            return row
        advice = answer.advise_donation(workload.batch_argnum)
        parts = filter(None, (advice, row.caveat))
        return dataclasses.replace(row, caveat="; ".join(parts))
    except InfeasibleBudgetError as e:
        best = e.best
        found = isinstance(best, remat.RematPlan)
        needed = int(e.needed)
        if limit is not None:
            # The bytes needed are a limit, of which the headroom stays free.
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
                        "" if workload.is_step else advise_donation(workload, target),
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
        if workload.is_step:
            step = workload.trace(target)
            with target.tracing():
                traced = step.build({}).trace(*step.shapes)
            compiled = target.compile(traced)
        else:
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
    part, program = workload.enclose(target)
    plan_part = functools.partial(
        remat.plan,
        part.loss,
        limit if plans else _without_limit(limit),
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
    plan_found = dataclasses.replace(plan_found, budget=limit, has_aux=workload.has_aux)
    fn = program.build_around(part.apply(plan_found))
    compiled = _compile(target, fn, program.args, workload.donate_argnums)
    caveats.append(find_caveat(compiled))
    # The compiler's figure for this very program, not the planner's expectation.
    predicted = measure.program(compiled).bytes_of(limit.kind)
    whole, memory = measure.program(compiled).bytes_of("total"), target.memory_bytes
    if memory is not None and predicted <= limit.usable_bytes and whole > memory:
        raise _larger_than_device(target, whole, plan_found)
    if predicted > limit.usable_bytes:
        raise InfeasibleBudgetError(
            "the planned step",
            needed=limit.with_usable(predicted).limit_bytes,
            limit=limit.limit_bytes,
            unit="bytes",
            hint="make the batch smaller.",
            best=plan_found,
        )
    with target.tracing():
        traced = jax.make_jaxpr(fn)(*placed)
    return FitRow(
        target=target.name,
        budget=limit,
        fits=True,
        predicted=predicted,
        unplanned_bytes=plan_found.unplanned_bytes,
        extra_share=plan_found.extra_share,
        device_flops=flops(traced.jaxpr) / devices,
        moved_bytes=measure.traffic(compiled).total_bytes,
        step_time=measure.step_time(compiled, target),
        layout=_layout_of(workload, target),
        micro_batches=workload.micro_batches,
        seconds=time.perf_counter() - started,
        caveat=target.describe_caveats(*caveats),
        remat=plan_found,
    )


def _larger_than_device(
    target: Target, whole: int, best: "remat.RematPlan | None"
) -> InfeasibleBudgetError:
    """That a program keeps to its budget, and not to the memory of the device."""
    assert target.memory_bytes is not None  # it was compared
    return InfeasibleBudgetError(
        f"the whole program on {target}, whose memory is less than the budget,",
        needed=whole,
        limit=target.memory_bytes,
        unit="bytes",
        hint=f'state a budget for all that it holds, such as "{DEFAULT_BUDGET}".',
        best=best,
    )


def _answer_step(
    workload: Workload, target: Target, limit: MemoryBudget, *, plans: bool = True
) -> StepAnswer:
    budget = limit if plans else _without_limit(limit)
    answer = answer_step(workload.trace(target), target, budget)
    row = dataclasses.replace(
        answer.row,
        budget=limit,
        fits=answer.row.fits and answer.row.predicted <= limit.usable_bytes,
        donate_argnums=workload.donate_argnums,
        layout=_layout_of(workload, target),
    )
    return dataclasses.replace(answer, row=row)


def _refuse(answer: StepAnswer, target: Target) -> NoReturn:
    row, plan = answer.row, answer.program.plan
    if plan.fits:
        raise _larger_than_device(target, row.predicted, row.remat)
    raise row.to_refusal("the step", plan.problems, "make the batch smaller.")


def _without_limit(limit: MemoryBudget) -> MemoryBudget:
    """A limit that every program meets: its plan recomputes nothing."""
    return dataclasses.replace(limit, limit_bytes=2**62)


def _layout_of(workload: Workload, target: Target) -> LayoutKind | Literal[""]:
    """Where arrays lie; "" where the program says so itself."""
    if workload.specs is not None or target.num_devices == 1:
        return ""
    return "" if workload.layout_on(target) is None else workload.layout


def _compile(
    target: Target,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    donate_argnums: tuple[int, ...],
    **options: Any,
) -> "jax.stages.Compiled | CompiledAnswer":
    jitted = jax.jit(fn, donate_argnums=donate_argnums)
    return target.compile(jitted, *args, **options)


def _describe_peak(
    find_peak: Callable[["remat.RematPlan | None"], measure.PeakMemory],
    best: "remat.RematPlan | None",
) -> str:
    """Describe the arrays at the lowest peak, for the text of a refusal."""
    try:
        peak = find_peak(best)
    except (ValueError, FrugaxError):
        # The compiler does not reveal the order, or refuses the program for its size.
        return ""
    return f"At the peak the {'; '.join(peak.summary().splitlines())}."


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
        ValueError: the compiler refuses the program, or does not reveal the order of
            its operations.
    """
    check_workload(workload)
    chosen = read_target(target)
    if workload.is_step:
        budget = MemoryBudget(limit_bytes=2**62) if plan is None else plan.budget
        answer = answer_step(workload.trace(chosen), chosen, budget)
        return answer.find_peak(chosen)
    if plan is not None:
        part, program = workload.enclose(chosen)
        fn = program.build_around(part.apply(plan))
    else:
        fn = workload.plain(chosen)
    args = workload.place(chosen)
    options = {} if chosen.is_here else {"with_places": True}
    compiled = _compile(chosen, fn, args, workload.donate_argnums, **options)
    return measure.peak(compiled)


def read_target(target: Target | str) -> Target:
    """A target from its name.

    Raises:
        TypeError: it is neither a target nor a name.
    """
    if isinstance(target, str):
        return Target(target)
    if not isinstance(target, Target):
        raise TypeError(
            f'target must be a target or its name, such as "h100", got {target!r:.80}; '
            "frugax.fit.compare takes several."
        )
    return target


def check_workload(workload: Workload) -> None:
    """Refuse a function in the place of a workload.

    Raises:
        TypeError: it is not a workload.
    """
    if not isinstance(workload, Workload):
        raise TypeError(
            "expected a workload, such as fit.Workload.of(step, (state, batch)), got "
            f"{workload!r:.80}."
        )


def price_of(target: Target, prices: Mapping[str, float]) -> float | None:
    """Cost of an hour on all devices of a target; None if unknown."""
    for name in (target.name, target.device_name):
        if name in prices:
            return prices[name] * target.num_devices
    return None
