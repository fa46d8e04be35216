"""Plan the gradients of a traced program so that the whole compiled program fits."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from frugax import measure, remat
from frugax.budget import MemoryBudget, MemoryShare, Plan, format_bytes
from frugax.errors import InfeasibleBudgetError
from frugax.jaxprs import shape_of

from ._gradients import MarkedGradient
from ._staged import GradientSite, StagedProgram, ValueAndGrad

Chosen = Mapping[MarkedGradient, ValueAndGrad]


@dataclasses.dataclass(frozen=True, kw_only=True)
class JitPlan(Plan):
    """How one compiled program is fitted into a memory budget.

    Attributes:
        budget: the limit of the whole program.
        predicted: bytes of the whole program with this plan, of the budget's kind, as
            the compiler reported them when the plan was made.
        unplanned_bytes: bytes of the same program without a plan.
        gradients: the plan of each gradient that recomputes or runs in chunks; the last
            one was made for the program with all earlier ones.
        sources: for each of them, the line that takes the gradient.
        problems: why the limit is not met; empty if it is. The program then runs as
            it is.
    """

    budget: MemoryBudget
    predicted: int
    unplanned_bytes: int
    gradients: tuple[remat.RematPlan, ...] = ()
    sources: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the program keeps to the budget."""
        return self.predicted <= self.budget.usable_bytes

    @property
    def extra_share(self) -> float:
        """Recomputed flops as a share of those of the planned gradients."""
        extra = sum(g.extra_flops for g in self.gradients)
        return extra / max(sum(g.unplanned_flops for g in self.gradients), 1)

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
    """A plan, and the jitted function that follows it."""

    plan: JitPlan
    jitted: Any


def plan_program(
    staged: StagedProgram,
    build: Callable[[Chosen], Any],
    shapes: Sequence[Any],
    budget: MemoryBudget | MemoryShare,
) -> PlannedProgram:
    """Choose the plans of a program's gradients, the one that keeps most first.

    If nothing fits, the program without a plan is returned, with the reasons.

    Args:
        staged: the program.
        build: makes the jitted program, a function of flat arguments with a `trace`,
            from what computes its gradients; those that are not named stay plain.
        shapes: the flat arguments.
        budget: the limit of the whole program.
    """
    plain = build({})
    traced = plain.trace(*shapes)
    compiled = traced.lower().compile()
    unplanned_bytes = measure.program(compiled).bytes_of(budget.kind)
    limit = budget.of(unplanned_bytes) if isinstance(budget, MemoryShare) else budget
    result = PlannedProgram(
        JitPlan(
            budget=limit, predicted=unplanned_bytes, unplanned_bytes=unplanned_bytes
        ),
        plain,
    )
    if result.plan.fits:
        return result
    problems = list(staged.unplanned)
    if not staged.sites and not problems:
        problems.append("it takes no gradient")
    reference = remat.CompiledCandidate.of(plain, traced, compiled)
    chosen: dict[MarkedGradient, ValueAndGrad] = {}
    plans: list[remat.RematPlan] = []
    sources: list[str] = []
    for site in staged.sites:
        kept: list[Any] = []
        within = remat.EnclosingProgram(
            build=lambda grad, site=site: build({**chosen, site.gradient: grad}),
            args=tuple(shapes),
            plain=None if chosen else reference,
            keep=kept.append,
        )
        place = site.gradient.source
        try:
            found = _plan_site(site, limit, within, staged, shapes)
        except InfeasibleBudgetError as e:
            # The next gradient is planned with this one at its smallest.
            if not isinstance(e.best, remat.RematPlan):
                problems.append(f"the gradient at {place}: {e.what}")
                continue
            found, kept = e.best, []
        except Exception as e:
            # Whatever the planner cannot do, the user's program runs.
            cause = str(e).partition("\n")[0]
            problems.append(
                f"the gradient at {place} cannot be planned: {type(e).__name__}: "
                f"{cause:.300}"
            )
            continue
        chosen[site.gradient] = remat.apply(site.loss, found)
        plans.append(found)
        sources.append(place)
        jitted = kept[-1] if kept else build(chosen)
        measured = jitted.trace(*shapes).lower().compile()
        result = PlannedProgram(
            JitPlan(
                budget=limit,
                predicted=measure.program(measured).bytes_of(limit.kind),
                unplanned_bytes=unplanned_bytes,
                gradients=tuple(plans),
                sources=tuple(sources),
            ),
            jitted,
        )
        if result.plan.fits:
            return result
    if plans:
        problems.append(
            f"the smallest of the programs tried needs "
            f"{format_bytes(result.plan.predicted)}"
        )
    plan = JitPlan(
        budget=limit,
        predicted=unplanned_bytes,
        unplanned_bytes=unplanned_bytes,
        problems=tuple(problems),
    )
    return PlannedProgram(plan, plain)


def _plan_site(
    site: GradientSite,
    limit: MemoryBudget,
    within: remat.EnclosingProgram,
    staged: StagedProgram,
    shapes: Sequence[Any],
) -> remat.RematPlan:
    return remat.plan(
        site.loss,
        budget=limit,
        example_args=site_shapes(site, staged, shapes),
        has_aux=True,
        within=within,
    )


def site_shapes(
    site: GradientSite, staged: StagedProgram, shapes: Sequence[Any]
) -> tuple[Any, Any]:
    """Shapes of the arguments of `GradientSite.loss`, with the known shardings."""
    known = dict(zip(staged.traced.jaxpr.invars, shapes, strict=True))

    def shape(atom: Any) -> Any:
        if site.depth == 0 and not hasattr(atom, "val") and atom in known:
            return known[atom]
        return shape_of(atom)

    consts, leaves = site.split(list(map(shape, site.forward.invars)))
    cotangents = [
        jax.ShapeDtypeStruct(ct.aval.shape, "float32") for ct in site.cotangents
    ]
    return leaves, (consts, [] if site.is_unit else cotangents)
