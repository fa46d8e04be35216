"""Plan the gradients that a step takes, for the devices of a target."""

import dataclasses
import time
from typing import Any

from frugax import measure
from frugax.budget import MemoryBudget, MemoryShare, amount, format_bytes
from frugax.capture import Donation, PlannedProgram, TracedStep, plan_program
from frugax.jaxprs import flops
from frugax.targets import Target

from ._fit_plan import FitRow

# Planning takes at most these seconds, or the time of ten compilations.
_MOST_SECONDS = 300.0


@dataclasses.dataclass(frozen=True, eq=False)
class StepAnswer:
    """The answer for a step on a target.

    Attributes:
        step: the step.
        row: the answer.
        program: the planned program.
        traced: the same as JAX traced it.
    """

    step: TracedStep
    row: FitRow
    program: PlannedProgram
    traced: Any

    def advise_donation(self, batch_argnum: int | None = None) -> str:
        """Say which arguments to donate, and how many of their bytes results can take.

        Args:
            batch_argnum: the argument that is used again, or made anew, for each step.

        Returns:
            Text such as "donate arguments state, weights: results can take the place of
            1.25 GiB", on one device; "" if there are none.
        """
        names = self.step.arguments
        kept: list[str] = []
        if batch_argnum is not None:
            kept = self.step.call.by_argument(names)[0][batch_argnum]
        return Donation.of(names, self.traced, kept).advice

    def find_peak(self, target: Target) -> measure.PeakMemory:
        """The arrays at the peak of the program.

        Raises:
            ValueError: the compiler refuses the program, or does not reveal the order
                of its operations.
        """
        if self.program.compiled is None:
            raise ValueError("its compiler refuses the program")
        options: dict[str, Any] = {} if target.is_here else {"with_places": True}
        return measure.peak(target.compile(self.traced, **options))


def answer_step(
    step: TracedStep, target: Target, budget: MemoryBudget | MemoryShare
) -> StepAnswer:
    """Plan a step whose arguments lie on the devices of a target.

    Args:
        step: the step.
        target: the target.
        budget: the most bytes on one device.
    """
    started = time.perf_counter()
    found = plan_program(
        step.staged, step.build, step.shapes, budget, most_seconds=_MOST_SECONDS
    )
    plan, compiled = found.plan, found.compiled
    with target.tracing():
        traced = found.jitted.trace(*step.shapes)
    devices = step.num_devices
    caveats = [target.describe_caveats(*found.caveats)]
    if devices < target.num_devices:
        caveats.append(
            f"the step uses {devices} of {amount(target.num_devices, 'devices')}"
        )
    fits, predicted = plan.fits, plan.predicted
    if not fits:
        predicted = plan.smallest_bytes or plan.predicted
    lower_bound = step_time = None
    moved = 0
    if compiled is not None:
        costs, memory = measure.program(compiled), target.memory_bytes
        moved = measure.traffic(compiled).total_bytes
        fixed = costs.bytes_of(plan.budget.kind) - costs.temp_bytes
        if fixed > plan.budget.usable_bytes:
            lower_bound = fixed
        whole = costs.bytes_of("total")
        if fits and memory is not None and whole > memory:
            fits, predicted = False, whole
            caveats.append(
                f"the whole program is larger than the device, {format_bytes(memory)}"
            )
        if fits:
            step_time = measure.step_time(compiled, target)
    if lower_bound is None:
        caveats += plan.problems
    row = FitRow(
        target=target.name,
        budget=plan.budget,
        fits=fits,
        predicted=predicted,
        unplanned_bytes=plan.unplanned_bytes,
        extra_share=plan.extra_share,
        device_flops=flops(traced.jaxpr.jaxpr) / devices,
        moved_bytes=moved,
        step_time=step_time,
        seconds=time.perf_counter() - started,
        caveat="; ".join(filter(None, caveats)),
        remat=plan.gradients[0] if plan.gradients else None,
        is_step=True,
        lower_bound=lower_bound,
    )
    return StepAnswer(step, row, found, traced)
