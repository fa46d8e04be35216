"""`frugax plan ... --target`: whether a program fits devices that are not here."""

import dataclasses
import functools
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from frugax.budget import MemoryBudget, MemoryShare, read_memory_budget
from frugax.errors import ConfigError, InfeasibleBudgetError
from frugax.run import user_code

from ._user_function import load_function, spin

if TYPE_CHECKING:
    from frugax import fit
    from frugax.measure import PeakMemory
    from frugax.targets import Target

_EXPECTED = (
    "return (loss or step, arguments), or a dict with fn, args and, if you like, "
    "specs, axes, argnums, has_aux, donate_argnums, batch_argnum, layout, micro_batches"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """The options of `frugax plan` with targets; see there.

    Attributes:
        targets: names with commas between them.
    """

    targets: str
    budget: str | None = None
    prices: str | None = None
    search: str | None = None
    why: bool = False
    largest_batch: bool = False
    picture: Path | None = None
    json: Path | None = None

    def read_budget(self) -> MemoryBudget | MemoryShare | None:
        """The limit of one device; None if the option is left out.

        Raises:
            ConfigError: it is out of range, or not a number with its unit.
        """
        if self.budget is None:
            return None
        try:
            return read_memory_budget(self.budget, name="--budget")
        except ValueError as e:
            raise ConfigError(str(e)) from e

    def check(self) -> "tuple[list[Target], dict[str, float]]":
        """The targets in this order, each once, and their prices.

        Raises:
            ConfigError: an option is wrong.
        """
        from frugax.targets import Target

        if self.picture is not None and self.picture.suffix != ".svg":
            raise ConfigError(f"--picture {self.picture}: the file must end in .svg.")
        for option, file in (("--picture", self.picture), ("--json", self.json)):
            if file is not None and not file.absolute().parent.is_dir():
                raise ConfigError(f"{option} {file}: there is no folder {file.parent}.")
        by_name: dict[str, Target] = {}
        for name in filter(None, map(str.strip, self.targets.split(","))):
            target = Target(name)
            if by_name.setdefault(target.name, target).source != target.source:
                raise ConfigError(
                    f"two targets are named {target.name}: change the name in {name}."
                )
        chosen = list(by_name.values())
        if not chosen:
            raise ConfigError('--target names no device; write "h100" or "h100,l4".')
        costs = _read_prices(self.prices)
        known = {name for t in chosen for name in (t.name, t.device_name)}
        if unknown := [name for name in costs if name not in known]:
            raise ConfigError(
                f"--price names {unknown[0]!r}, but the targets are "
                f"{', '.join(t.name for t in chosen)}."
            )
        return chosen, costs


def plan_for_targets(
    subject: str,
    *,
    make_workload: Callable[
        [], tuple["fit.Workload", MemoryBudget | MemoryShare | None]
    ]
    | None,
    options: TargetOptions,
    console: Console,
    progress: Console,
) -> int:
    """Print the answer for each target."""
    from frugax import fit

    chosen, costs = options.check()
    largest_batch, search = options.largest_batch, options.search
    if (largest_batch or search) and len(chosen) > 1:
        raise ConfigError("--largest-batch and --search are for one target at a time.")
    if make_workload is None:
        workload, of_config = call_for_workload(subject), None
    else:
        workload, of_config = make_workload()
    limit = options.read_budget() or of_config or fit.DEFAULT_BUDGET
    for target in chosen:
        target.in_bytes(limit)  # refused before anything is compiled
    show_row = functools.partial(_print_row, progress)
    with _Progress(progress):
        try:
            if largest_batch:
                found = fit.find_largest_batch(workload, chosen[0], limit)
                workload = workload.with_rows(found.rows)
                plan, text = fit.FitPlan(rows=(found.answer,)), str(found)
            elif search:
                over = [name.strip() for name in search.split(",")]
                plan = fit.search(
                    workload, chosen[0], limit, over=over, on_row=show_row
                )
                text = str(plan)
            else:
                # A single row is printed at once, as the table.
                one_by_one = show_row if len(chosen) > 1 else None
                plan = fit.compare(
                    workload, chosen, limit, prices=costs, on_row=one_by_one
                )
                text = str(plan)
        except ConfigError:
            raise
        except (TypeError, ValueError) as e:
            raise ConfigError(f"{subject}: {e}") from e

    def find_peaks() -> "list[PeakMemory | None]":
        with _Progress(progress):
            return [
                _find_peak(workload, target, row, console)
                for target, row in zip(chosen, plan.rows, strict=False)
            ]

    return show_plan(subject, plan, text, chosen, find_peaks, options, console)


def show_plan(
    subject: str,
    plan: "fit.FitPlan",
    text: str,
    targets: "Sequence[Target]",
    find_peaks: "Callable[[], Sequence[PeakMemory | None]]",
    options: TargetOptions,
    console: Console,
) -> int:
    """Print a plan as `text`, and write what the options ask for.

    Args:
        subject: what was planned.
        plan: the answers.
        text: the plan as text.
        targets: the targets of the first rows; a search has rows for one target, the
            best first.
        find_peaks: finds the arrays at the peak for each target.
        options: the options.
        console: where to print.

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
    _show(console, text)
    if options.json is not None:
        write_whole(options.json, plan.to_json() + "\n")
        _show(console, f"Plan: {options.json}")
    if options.why or options.picture is not None:
        peaks = find_peaks()
        for target, peak in zip(targets, peaks, strict=True):
            if options.why and peak is not None:
                _show(console, f"\n{target}: {peak}")
        if options.picture is not None:
            first = fit.FitPlan(rows=plan.rows[: len(targets)])
            write_whole(options.picture, fit.draw_memory(first, peaks))
            _show(console, f"Picture: {options.picture}")
    return int(plan.chosen is None)


def _show(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _print_row(progress: Console, row: "fit.FitRow") -> None:
    """Print an answer that others are still waited for."""
    how = [row.target, row.layout]
    if row.micro_batches > 1:
        how.append(f"{row.micro_batches} micro-batches")
    progress.print(
        f"{', '.join(filter(None, how))}: {row.answer}",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip


def _find_peak(
    workload: "fit.Workload",
    target: "Target",
    row: "fit.FitRow",
    console: Console,
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
        _show(console, f"\n{target}: what fills the memory cannot be told: {e}")
        return None


def call_for_workload(subject: str) -> "fit.Workload":
    """The program that a user's function returns."""
    from frugax import fit

    function = load_function(subject)
    parameters = inspect.signature(function).parameters
    if any(p.default is p.empty for p in parameters.values()):
        raise ConfigError(
            f"{subject} needs arguments, but it is called without any; it must "
            f"{_EXPECTED}."
        )
    with user_code("the function", place=subject):
        result = function()
    if isinstance(result, fit.Workload):
        return result
    if isinstance(result, tuple) and len(result) == 2:
        result = {"fn": result[0], "args": result[1]}
    if not isinstance(result, Mapping):
        raise ConfigError(
            f"{subject} returned something of type {type(result).__name__}: it must "
            f"{_EXPECTED}."
        )
    options: dict[str, Any] = dict(result)
    # The names that `frugax plan --budget` uses for a loss.
    for old, new in (("loss", "fn"), ("example_args", "args")):
        if old in options:
            options[new] = options.pop(old)
    if missing := [name for name in ("fn", "args") if name not in options]:
        raise ConfigError(f"{subject} returned no {missing[0]}: it must {_EXPECTED}.")
    fields = {f.name for f in dataclasses.fields(fit.Workload)}
    if unknown := [name for name in options if name not in fields]:
        raise ConfigError(
            f"{subject} returned an unknown {unknown[0]!r}: it must {_EXPECTED}."
        )
    fn, args = options.pop("fn"), options.pop("args")
    if not callable(fn) or not isinstance(args, tuple | list):
        raise ConfigError(
            f"{subject} returned {type(fn).__name__} and {type(args).__name__}: it "
            f"must {_EXPECTED}."
        )
    try:
        with user_code("the program", place=subject):
            return fit.Workload.of(fn, args, **options)
    except ConfigError as e:
        text = e.args[0]
        raise ConfigError(
            text if text.startswith(subject) else f"{subject}: {text}"
        ) from e


def _read_prices(text: str | None) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in (text or "").split(","):
        name, _, price = part.partition("=")
        if not part:
            continue
        try:
            found[name.strip()] = float(price)
        except ValueError:
            raise ConfigError(
                f"--price {part!r}: write a device and its cost for an hour, such as "
                "h100=2.5,l4=0.8."
            ) from None
        if not 0 <= found[name.strip()] < float("inf"):
            raise ConfigError(f"--price {part!r}: a price must be finite and >= 0.")
    return found


class _Progress:
    """A spinner that names the program being compiled, and its last duration."""

    def __init__(self, console: Console) -> None:
        self._spinner = spin("tracing", console)
        self._console, self._compiled, self._told = console, 0, time.monotonic()

    def __enter__(self) -> None:
        from frugax.targets import listen

        self._spinner.start()
        self._listening = listen(self._tell)
        self._listening.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._listening.__exit__(*error)
        self._spinner.stop()

    def _tell(self, target: "Target", seconds: float | None) -> None:
        self._compiled += 1
        text = f"compiling for {target}, program {self._compiled}"
        if seconds is not None:
            text += f"; last time {seconds:.0f} s"
        self._spinner.update(self._spinner.task_ids[0], description=text)
        # A log has no spinner: a line now and then says that it goes on.
        if not self._console.is_terminal and time.monotonic() > self._told + 10:
            self._console.print(f"{text} ...", highlight=False, markup=False)
            self._told = time.monotonic()
