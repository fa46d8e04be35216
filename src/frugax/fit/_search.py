"""`fit.search`: the cheapest sharding, micro-batches and remat that fit a target."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, get_args

from frugax.errors import ConfigError, InfeasibleBudgetError
from frugax.options import check_integer
from frugax.targets import AcceleratorRates, Target
from frugax.train import TrainStep
from frugax.train.distributed import LayoutKind

from ._plan import (
    DEFAULT_BUDGET,
    Budget,
    FitPlan,
    FitRow,
    check_workload,
    read_target,
    to_budget,
    try_target,
)
from ._workload import Workload

_DIMENSIONS = ("layout", "batch", "remat")
# Flops that a processor is taken to do while it moves one byte to another: those of an
# H100, 990 TFLOP/s in bfloat16 and 450 GB/s (NVIDIA).
_FLOPS_PER_BYTE = 2200.0


def search(
    workload: Workload,
    target: Target | str,
    budget: Budget = DEFAULT_BUDGET,
    *,
    over: Sequence[str] | None = None,
    micro_batches: Sequence[int] = (1, 2, 4, 8),
    on_row: Callable[[FitRow], Any] | None = None,
) -> FitPlan:
    """Find the cheapest layout, micro-batches and recomputation that fit.

    Every combination of layout and micro-batches is compiled; within each, the
    backward pass is planned. The rows are ranked by `cost`.

    Args:
        workload: the program: a loss, a step or a `TrainStep`.
        target: the devices, or their name.
        budget: the most bytes on one device.
        over: the parts that vary: "layout", "batch" (micro-batches of a `TrainStep`)
            and "remat"; by default all that the program has.
        micro_batches: numbers of micro-batches to try.
        on_row: called with each answer as soon as it is known.

    Returns:
        All rows, the cheapest that fits first.

    Raises:
        ConfigError: `over` names something else, or the program fixes its shardings.
        InfeasibleBudgetError: no combination fits.
    """
    check_workload(workload)
    target = read_target(target)
    is_divided = isinstance(workload.fn, TrainStep)
    if over is None:
        over = [n for n in _DIMENSIONS if n != "batch" or is_divided]
    if isinstance(over, str) or not over:
        raise ConfigError(
            f'over must be a list, such as ["layout", "remat"], got {over!r:.80}.'
        )
    if unknown := [name for name in over if name not in _DIMENSIONS]:
        raise ConfigError(
            f"cannot search over {unknown[0]!r}: choose from {', '.join(_DIMENSIONS)}."
        )
    kinds, parts = [workload.layout], [workload.micro_batches]
    if "layout" in over and target.num_devices > 1:
        if workload.specs is not None:
            raise ConfigError(
                "the program states its shardings, so no layout can be searched: leave "
                "them out, or search batch,remat."
            )
        kinds = list(get_args(LayoutKind))
    if "batch" in over:
        if not is_divided:
            raise ConfigError(
                "micro-batches divide the batch of a TrainStep or of a config's run. "
                "Search layout,remat: a plan runs chunks of the batch where that saves "
                "memory."
            )
        rows = workload.rows
        for count in micro_batches:
            check_integer("micro_batches", count)
        parts = [n for n in micro_batches if rows % (n * target.num_devices) == 0]
        if not parts:
            raise ConfigError(
                f"a batch of {rows} rows on {target.num_devices} devices cannot be "
                f"divided into {' or '.join(map(str, micro_batches))} micro-batches: "
                "name other numbers by micro_batches, or take another batch."
            )
    limit = to_budget(budget, workload, target)
    found: list[FitRow] = []
    for kind, count in itertools.product(kinds, parts):
        variant = dataclasses.replace(workload, layout=kind, micro_batches=count)
        row = try_target(variant, target, limit, plans="remat" in over)
        found.append(dataclasses.replace(row, layout=kind, micro_batches=count))
        if on_row is not None:
            on_row(found[-1])
    ranked = sorted(found, key=lambda r: (not r.fits, cost(r, target)))
    if not ranked[0].fits:
        answered = [r for r in found if not r.problem]
        if not answered:
            raise found[0].to_error("no layout was compiled")
        least = min(answered, key=lambda r: r.predicted)
        raise InfeasibleBudgetError(
            f"the best of {len(found)} layouts and micro-batches on {target}",
            needed=limit.with_usable(least.predicted).limit_bytes,
            limit=limit.limit_bytes,
            unit="bytes",
            hint="use more devices or a smaller batch.",
            best=least.remat,
        )
    return FitPlan(rows=tuple(ranked))


def cost(row: FitRow, target: Target) -> float:
    """The cost of a step: on an accelerator its predicted seconds, at least.

    On a processor, whose measured rates differ from run to run, flops of one device,
    with each byte that it moves counted as a fixed number of flops, so that a search
    finds the same layout each time.
    """
    rates = target.rates
    if not isinstance(rates, AcceleratorRates):
        return row.device_flops + _FLOPS_PER_BYTE * row.moved_bytes
    if row.step_time is not None and not row.step_time.problem:
        return row.step_time.low
    return row.device_flops / rates.products["bf16"] + row.moved_bytes / rates.link
