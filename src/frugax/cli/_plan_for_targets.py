"""`frugax plan ... --target`: whether a program fits devices that are not here."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from frugax.budget import MemoryBudget, MemoryShare
from frugax.errors import ConfigError, InfeasibleBudgetError
from frugax.run import user_code

from ._consoles import errors, say
from ._plan_options import PlanOptions
from ._user_function import read_program, spin

if TYPE_CHECKING:
    from frugax import fit
    from frugax.measure import PeakMemory
    from frugax.targets import Target


def plan_for_targets(
    subject: str,
    load: "Callable[[], tuple[fit.Workload, MemoryBudget | MemoryShare | None]]",
    options: PlanOptions,
) -> int:
    """Print the answer for each target.

    Args:
        subject: the planned program.
        load: loads its program, and the budget where the options state none.
        options: the options.

    Raises:
        ConfigError: an option is wrong, or the program cannot be planned.
    """
    from frugax import fit

    chosen, costs = options.read_targets()
    if (options.largest_batch or options.search) and len(chosen) > 1:
        raise ConfigError("--largest-batch and --search are for one target at a time.")
    workload, own_limit = load()
    limit = options.read_budget() or own_limit or fit.DEFAULT_BUDGET
    for target in chosen:
        target.in_bytes(limit)  # refused before anything is compiled
    with _show_progress():
        try:
            if options.largest_batch:
                found = fit.find_largest_batch(workload, chosen[0], limit)
                workload = workload.with_rows(found.rows)
                plan, text = fit.FitPlan(rows=(found.answer,)), str(found)
            elif options.search:
                over = [name.strip() for name in options.search.split(",")]
                plan = fit.search(
                    workload, chosen[0], limit, over=over, on_row=_print_row
                )
                text = str(plan)
            else:
                # A single row is printed at once, as the table.
                one_by_one = _print_row if len(chosen) > 1 else None
                plan = fit.compare(
                    workload, chosen, limit, prices=costs, on_row=one_by_one
                )
                text = str(plan)
        except ConfigError:
            raise
        except (TypeError, ValueError) as e:
            raise ConfigError(f"{subject}: {e}") from e

    def find_peaks() -> "list[PeakMemory | None]":
        with _show_progress():
            return [
                _find_peak(workload, target, row)
                for target, row in zip(chosen, plan.rows, strict=False)
            ]

    return show_plan(subject, plan, text, chosen, find_peaks, options)


def show_plan(
    subject: str,
    plan: "fit.FitPlan",
    text: str,
    targets: "Sequence[Target]",
    find_peaks: "Callable[[], Sequence[PeakMemory | None]]",
    options: PlanOptions,
) -> int:
    """Print a plan as `text`, and write the files that the options name.

    Args:
        subject: the planned program.
        plan: the answers.
        text: the plan as text.
        targets: the targets of the first rows; a search has rows for one target, the
            best first.
        find_peaks: finds the arrays at the peak for each target.
        options: the options.

    Returns:
        The exit status: 0 if it fits a target.

    Raises:
        ConfigError: there is no answer for the only target.
        CompilerRefusedError: its compiler refuses the program.
    """
    from frugax import fit
    from frugax.fileio import write_whole

    if len(plan.rows) == 1 and plan.rows[0].problem:
        raise plan.rows[0].to_error(subject)
    say(text)
    if options.json is not None:
        write_whole(options.json, plan.to_json() + "\n")
        say(f"Plan: {options.json}")
    if options.why or options.picture is not None:
        peaks = find_peaks()
        for target, peak in zip(targets, peaks, strict=True):
            if options.why and peak is not None:
                say(f"\n{target}: {peak}")
        if options.picture is not None:
            first = fit.FitPlan(rows=plan.rows[: len(targets)])
            write_whole(options.picture, fit.draw_memory(first, peaks))
            say(f"Picture: {options.picture}")
    return int(plan.chosen is None)


def _print_row(row: "fit.FitRow") -> None:
    """Print an answer that others are still waited for."""
    how = [row.target, row.layout]
    if row.micro_batches > 1:
        how.append(f"{row.micro_batches} micro-batches")
    say(f"{', '.join(filter(None, how))}: {row.answer}", on=errors)


def _find_peak(
    workload: "fit.Workload", target: "Target", row: "fit.FitRow"
) -> "PeakMemory | None":
    """The arrays at the peak of a row's program, if its compiler reveals them."""
    from frugax import fit

    if row.problem:
        return None
    variant = dataclasses.replace(workload, micro_batches=row.micro_batches)
    if row.layout:
        variant = dataclasses.replace(variant, layout=row.layout)
    try:
        return fit.show_why(variant, target, row.remat)
    except (ValueError, InfeasibleBudgetError) as e:
        say(f"\n{target}: what fills the memory cannot be told: {e}")
        return None


def is_step(subject: str, result: object) -> bool:
    """Whether a user's function has returned a step, and not a loss."""
    if isinstance(result, Mapping) and not result.keys() <= {"fn", "args"}:
        return False  # with options of `remat.plan`, which takes a loss
    return not read_workload(subject, result).is_loss


def read_workload(subject: str, result: object) -> "fit.Workload":
    """The program that a user's function has returned."""
    from frugax import fit

    if isinstance(result, fit.Workload):
        return result
    known = [f.name for f in dataclasses.fields(fit.Workload)]
    options = read_program(subject, result, known[2:])  # all but fn and args
    fn, args = options.pop("fn"), options.pop("args")
    try:
        with user_code("the program", place=subject):
            return fit.Workload.of(fn, args, **options)
    except ConfigError as e:
        text = e.args[0]
        raise ConfigError(
            text if text.startswith(subject) else f"{subject}: {text}"
        ) from e


@contextlib.contextmanager
def _show_progress() -> Iterator[None]:
    """Show a spinner that names the program being compiled."""
    from frugax.targets import listen

    count, told_s = 0, time.monotonic()

    def tell(target: "Target") -> None:
        nonlocal count, told_s
        count += 1
        text = f"compiling for {target}, program {count}"
        spinner.update(spinner.task_ids[0], description=text)
        # A log has no spinner: a line now and then says that it goes on.
        if not errors.is_terminal and time.monotonic() > told_s + 10:
            say(f"{text} ...", on=errors)
            told_s = time.monotonic()

    with spin("tracing") as spinner, listen(tell):
        yield
