"""Plan the gradients of a traced program so that the whole compiled program fits."""

import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

from frugax import measure, remat
from frugax.budget import (
    MemoryBudget,
    MemoryShare,
    Plan,
    format_bytes,
    format_seconds,
    format_share,
)
from frugax.errors import InfeasibleBudgetError
from frugax.jaxprs import digest, shape_of, variables, with_named_axes
from frugax.targets import CompiledAnswer, find_caveat, find_target

from ._marked_gradient import MarkedGradient
from ._staged import GradientSite, StagedProgram, ValueAndGrad

Chosen = Mapping[MarkedGradient, ValueAndGrad]

# Where nothing fits, the smallest program runs if it exceeds the limit by at most this.
_NEAR_MISS = 1.1
# No share of fewer bytes than these is looked for: after a search of a minute, steps of
# equinox's guide to parallelism (2.5 KiB) and of flax's to performance (40 KiB) needed
# more than 60% whatever was recomputed.
_SMALLEST_BYTES = 64 * 2**10
# Planning ends after these seconds, or after the time of so many compilations of the
# program without a plan if that is longer: the program is to run.
_MOST_SECONDS, _MOST_COMPILATIONS = 60.0, 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class JitPlan(Plan):
    """How one compiled program is fitted into a memory budget.

    Attributes:
        budget: the limit of the whole program.
        predicted: bytes of the whole program with this plan, of the budget's kind, as
            the compiler reported them when the plan was made.
        unplanned_bytes: bytes of the same program without a plan.
        gradients: the plan of each gradient that recomputes or runs in chunks; the last
            one was made for the program with all earlier ones, and of several that hold
            too much the first ones were made on their own.
        sources: for each of them, the line that takes the gradient; several lines
            where the same function is differentiated there.
        problems: why the limit is not met; empty if it is. The program then runs as
            it is, or with the smallest plan that was found if that is close.
        smallest_bytes: bytes of the smallest program that was found.
    """

    budget: MemoryBudget
    predicted: int
    unplanned_bytes: int
    gradients: tuple[remat.RematPlan, ...] = ()
    sources: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    smallest_bytes: int | None = None

    @property
    def fits(self) -> bool:
        """Whether the program keeps to the budget."""
        return self.predicted <= self.budget.usable_bytes

    @property
    def cut_after_s(self) -> float | None:
        """Seconds after which planning ended for lack of time; None if it did not."""
        return max((g.cut_after_s or 0.0 for g in self.gradients), default=0.0) or None

    @property
    def extra_share(self) -> float:
        """Recomputed flops as a share of those of the planned gradients."""
        extra = sum(g.extra_flops for g in self.gradients)
        return extra / max(sum(g.unplanned_flops for g in self.gradients), 1)

    @property
    def extra_text(self) -> str:
        """Its flops beside those without a plan, which may checkpoint more."""
        sign = "-" if self.extra_share < 0 else "+"
        return f"{sign}{format_share(abs(self.extra_share))} flops"

    def __str__(self) -> str:
        lines = [
            f"{self.budget}: {format_bytes(self.predicted)} measured, "
            f"{format_bytes(self.unplanned_bytes)} without a plan"
        ]
        for source, plan in zip(self.sources, self.gradients, strict=True):
            lines += [f"gradient at {source}:", str(plan)]
        return "\n".join([*lines, *self.problems])


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedProgram:
    """A plan, and the jitted function that follows it.

    Attributes:
        plan: the plan.
        jitted: a function of flat arguments, with a `trace`.
        compiled: its program, or the report of the compiler of an absent target; None
            if that refused it.
        unplanned: the same for the program without a plan.
        is_small: whether nothing was looked for, since the program needs so little.
    """

    plan: JitPlan
    jitted: Any
    compiled: "jax.stages.Compiled | CompiledAnswer | None"
    unplanned: "jax.stages.Compiled | CompiledAnswer | None"
    is_small: bool = False

    @property
    def caveats(self) -> list[str]:
        """How its programs were compiled otherwise than asked for."""
        return [find_caveat(p) for p in (self.unplanned, self.compiled)]


def plan_program(
    staged: StagedProgram,
    build: Callable[[Chosen], Any],
    shapes: Sequence[Any],
    budget: MemoryBudget | MemoryShare,
    missed: Sequence[JitPlan] = (),
    known: Sequence[JitPlan] = (),
    most_seconds: float = _MOST_SECONDS,
    on_search: Callable[[JitPlan, float], None] | None = None,
) -> PlannedProgram:
    """Choose the plans of a program's gradients, the one that keeps most first.

    Gradients of the same function have one plan. Of a program that needs only some KiB,
    a share is not looked for. If nothing fits, the program without a plan is returned,
    or the smallest one if it nearly fits, with the reasons. After some time, or that of
    ten compilations of the program without a plan if that is longer, no further program
    is tried.

    Args:
        staged: the program.
        build: makes the jitted program, a function of flat arguments with a `trace`,
            from what computes its gradients; those that are not named stay plain.
        shapes: the flat arguments, on the devices to plan for.
        budget: the limit of the whole program.
        missed: plans of the same program for other shapes, where nothing fitted. It
            is not looked for again where shapes are harder to fit.
        known: its plans for other arguments. One that fits these is taken: the second
            call of a step often differs from the first in a type or a place only.
        most_seconds: that time, in seconds.
        on_search: called before further programs are tried, with the program without a
            plan and the seconds that this takes at most.

    Raises:
        InfeasibleBudgetError: the compiler refuses the program without a plan, and
            the budget is a share of its bytes.
    """
    target = find_target(shapes)
    budget = target.in_bytes(budget)
    plain, began = build({}), time.monotonic()
    reference, unplanned_bytes, lowest = None, 0, 0
    with target.tracing():
        traced = plain.trace(*shapes)
    try:
        compiled = target.compile(traced)
    except InfeasibleBudgetError as e:
        # The compiler for TPUs refuses a program that is larger than the device.
        if isinstance(budget, MemoryShare):
            raise
        compiled, unplanned_bytes = None, int(e.needed)
    else:
        reference = remat.CompiledCandidate.of(plain, traced, compiled)
        costs = measure.program(compiled)
        unplanned_bytes = costs.bytes_of(budget.kind)
        lowest = unplanned_bytes - costs.temp_bytes
    now = time.monotonic()
    deadline = now + max(most_seconds, _MOST_COMPILATIONS * (now - began))
    limit = budget.of(unplanned_bytes) if isinstance(budget, MemoryShare) else budget
    unplanned = JitPlan(
        budget=limit, predicted=unplanned_bytes, unplanned_bytes=unplanned_bytes
    )
    result = as_it_is = PlannedProgram(unplanned, plain, compiled, compiled)
    if unplanned.fits:
        return result
    if isinstance(budget, MemoryShare) and unplanned_bytes < _SMALLEST_BYTES:
        problem = (
            f"it needs {format_bytes(unplanned_bytes)} of temporaries, and no share of "
            f"less than {format_bytes(_SMALLEST_BYTES)} is planned"
        )
        plan = dataclasses.replace(
            unplanned, problems=(problem,), smallest_bytes=unplanned_bytes
        )
        return dataclasses.replace(result, plan=plan, is_small=True)
    if easier := _find_easier(missed, unplanned_bytes, budget):
        problem = (
            f"nothing fitted for other shapes, which need "
            f"{format_bytes(easier.unplanned_bytes)} without a plan, so it is not "
            "planned for these"
        )
        plan = dataclasses.replace(unplanned, problems=(problem,))
        return dataclasses.replace(result, plan=plan)
    problems = list(staged.unplanned)
    if not staged.sites and not problems:
        problems.append("it takes no gradient")
    if lowest > limit.usable_bytes:
        problems = [f"its arguments and results alone need {format_bytes(lowest)}"]

    def finish(
        jitted: Any, gradients: Iterable[tuple[remat.RematPlan, str]]
    ) -> PlannedProgram:
        plans, sources = zip(*gradients, strict=True)
        with target.tracing():
            traced = jitted.trace(*shapes)
        program = target.compile(traced)
        plan = dataclasses.replace(
            unplanned,
            predicted=measure.program(program).bytes_of(limit.kind),
            gradients=plans,
            sources=sources,
        )
        return PlannedProgram(plan, jitted, program, as_it_is.compiled)

    for other in known:
        with contextlib.suppress(ValueError):  # its gradients are others
            jitted = build(_follow(other, staged))
            pairs = zip(other.gradients, other.sources, strict=True)
            found = finish(jitted, pairs)
            if found.plan.fits:
                return found
    chosen: dict[MarkedGradient, ValueAndGrad] = {}
    plans: dict[MarkedGradient, tuple[remat.RematPlan, str]] = {}
    room = limit.usable_bytes - lowest
    visited: set[MarkedGradient] = set()
    waiting = deque([] if room < 0 else _group(staged.sites))
    if waiting and on_search is not None:
        on_search(unplanned, deadline - time.monotonic())
    while waiting:
        sites = waiting.popleft()
        first, place, kept = sites[0], _place_of(sites), list[Any]()

        def build_with(value_and_grad: Callable[..., Any], sites: Any = sites) -> Any:
            grad = value_and_grad(sites[0].loss, has_aux=True)
            return build({**chosen, **{s.gradient: grad for s in sites}})

        goal: dict[str, Any] = {"budget": limit}
        visited.add(first.gradient)
        others = [
            group
            for group in waiting
            if group[0].gradient not in visited
            and group[0].gradient.residual_bytes > room
        ]
        if others and target.num_devices == 1 and not first.axes:
            # Whatever this one recomputes, the program holds too much for another one.
            # So it is planned on its own, and again where that is not enough.
            goal["budget"] = MemoryBudget(limit_bytes=room, kind="temp")
            if not target.is_here:
                goal["target"] = target
            waiting.append(sites)
        else:
            goal["within"] = remat.EnclosingProgram(
                build=build_with,
                args=tuple(shapes),
                plain=None if chosen else reference,
                keep=kept.append,
                is_mapped=bool(first.axes),
            )
        # Plans that are remembered take no time, so a search is begun at any time.
        seconds_left = (deadline - time.monotonic()) / (1 + len(others))
        try:
            with with_named_axes(first.axes):
                found = remat.plan(
                    first.loss,
                    example_args=_site_shapes(first, staged, shapes),
                    has_aux=True,
                    within_s=max(seconds_left, 1e-9),
                    **goal,
                )
        except InfeasibleBudgetError as e:
            # The next gradient is planned with this one at its smallest.
            if not isinstance(e.best, remat.RematPlan):
                problems.append(f"the gradient at {place}: {e.what}")
                continue
            found, kept = e.best, []
            if found.cut_after_s is not None:
                problems.append(
                    f"planning the gradient at {place} ended for lack of time, "
                    f"{format_seconds(time.monotonic() - now)} after the first program"
                )
            if found.predicted >= found.unplanned_bytes:
                problems.append(
                    f"no program that recomputes for the gradient at {place} is "
                    f"smaller; {e.hint.rstrip('.')}"
                )
        except Exception as e:
            # Whatever the planner cannot do, the user's program runs.
            cause = describe_error(e)
            problems.append(f"the gradient at {place} cannot be planned: {cause}")
            continue
        if found.predicted >= found.unplanned_bytes:
            continue
        chosen.update((s.gradient, remat.apply(s.loss, found)) for s in sites)
        plans[first.gradient] = found, place
        result = finish(kept[-1] if kept else build(chosen), plans.values())
        if result.plan.fits:
            return result
    smallest = result.plan.predicted
    if plans:
        problems.append(
            f"the smallest of the programs tried needs {format_bytes(smallest)}"
        )
    if smallest > min(_NEAR_MISS * limit.usable_bytes, unplanned_bytes):
        result = as_it_is
    plan = dataclasses.replace(
        result.plan, problems=tuple(problems), smallest_bytes=smallest
    )
    return dataclasses.replace(result, plan=plan)


def _follow(plan: JitPlan, staged: StagedProgram) -> Chosen:
    """Gradients of a program, computed by the plans for other arguments.

    Raises:
        ValueError: it takes other gradients.
    """
    groups = {_place_of(sites): sites for sites in _group(staged.sites)}
    if not groups.keys() >= {*plan.sources}:
        raise ValueError("the gradients are taken elsewhere")
    return {
        site.gradient: remat.apply(site.loss, gradient)
        for place, gradient in zip(plan.sources, plan.gradients, strict=True)
        for site in groups[place]
    }


def _place_of(sites: Sequence[GradientSite]) -> str:
    return ", ".join(dict.fromkeys(s.gradient.source for s in sites))


def describe_error(error: Exception) -> str:
    """The type and the first line of an error."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]:.300}"


def _find_easier(
    missed: Sequence[JitPlan], unplanned_bytes: int, budget: MemoryBudget | MemoryShare
) -> JitPlan | None:
    """A plan that missed its limit although its shapes were not harder to fit.

    What no plan changes, such as the weights, is the larger a share of the temporaries
    the smaller these are; against a limit in bytes, larger shapes are harder.
    """
    is_share = isinstance(budget, MemoryShare)
    for plan in missed:
        more = plan.unplanned_bytes - unplanned_bytes
        if not more or (more > 0) == is_share:
            return plan
    return None


def _group(sites: Sequence[GradientSite]) -> list[list[GradientSite]]:
    """Sites of the same function together, such as a line search's in its loop."""
    groups: dict[Any, list[GradientSite]] = {}
    for site in sites:
        gradient = site.gradient
        key = (
            digest(gradient.function),
            gradient.num_consts,
            gradient.num_outputs,
            site.is_unit,
            None if site.rule is None else digest(site.rule),
        )
        groups.setdefault(key, []).append(site)
    return list(groups.values())


def _site_shapes(
    site: GradientSite, staged: StagedProgram, shapes: Sequence[Any]
) -> tuple[Any, Any]:
    """Shapes of the arguments of `GradientSite.loss`, with their shardings if known."""
    known = dict(zip(staged.traced.jaxpr.invars, shapes, strict=True))
    operands = site.forward.invars
    # Of an array that the program computes, the compiler chooses the sharding. If that
    # may be the batch, it would seem to lie on one device: no sharding is given at all.
    places = [getattr(x, "sharding", None) for x in shapes]
    devices = max((p.num_devices for p in places if p is not None), default=1)
    consts, _ = site.split(operands)
    is_known = site.depth == 0 and all(
        x in known
        for x in variables(consts)
        if getattr(x.aval, "size", 0) >= 2 * devices
    )

    def shape(atom: Any) -> Any:
        if site.axes:  # it is planned outside of its shard_map
            return jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype)
        if is_known and not hasattr(atom, "val") and atom in known:
            return known[atom]
        return shape_of(atom)

    consts, leaves = site.split(list(map(shape, operands)))
    return leaves, (consts, site.outer_shapes)
