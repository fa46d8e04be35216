"""`watch.plan`: choose how often each record is made, to keep an overhead budget.

Between two collections the records stay where the program left them, as device
arrays. A collection (a "drain") has a price of its own whatever it carries, and each
record adds a little. Summaries and user callbacks are in every call, and the last
records are collected at the end: a budget below the price of these cannot be kept.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from frugax.budget import (
    OverheadBudget,
    Plan,
    check_budget,
    format_bytes,
    format_seconds,
    format_share,
    table,
)
from frugax.errors import InfeasibleBudgetError

from ._price import ProbePrice, WatchPrices, price
from ._program_variants import BARE, LOUD, NEVER, QUIET
from .probes import Probe

# Numbers first, then frames; among equals the cheap ones first.
_RANKS = {"summary": 0, "call": 0, "scalar": 1, "frame": 2}
_UNIT = "of the running time (as a share)"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannedProbe:
    """A probe's price and how often it records.

    Attributes:
        name: name of the probe.
        kind: its class.
        seconds: seconds that it adds to a call that records it; for a number, beside
            those that all numbers add once.
        bytes: bytes that leave the program with such a call.
        every: calls between two records; 1 for every call, 0 for never.
    """

    name: str
    kind: str
    seconds: float
    bytes: int
    every: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WatchPlan(Plan):
    """The planned records of a function and their collection; `str` is a table.

    Attributes:
        budget: the budget.
        steps: calls of the run.
        step_seconds: seconds of one call without watching.
        drain_seconds: seconds of one collection, besides its records.
        shared_seconds: seconds that the numbers of a call add once.
        probes: the probes in the order in which the budget pays for them.
        interval: calls between two collections.
    """

    budget: OverheadBudget
    steps: int
    step_seconds: float
    drain_seconds: float
    shared_seconds: float
    probes: tuple[PlannedProbe, ...]
    interval: int

    @property
    def drains(self) -> int:
        """The number of collections in the run, the one at its end included."""
        return -(-self.steps // self.interval)

    @property
    def predicted(self) -> float:
        """Share of the running time that watching adds; <= `budget.share`."""
        records_s = sum(p.seconds / p.every for p in self.probes if p.every)
        if self._numbers_every:
            records_s += self.shared_seconds / self._numbers_every
        drains_s = self.drains * self.drain_seconds / self.steps
        return (records_s + drains_s) / self.step_seconds

    @property
    def left_out(self) -> tuple[str, ...]:
        """The probes that the budget cannot pay for at any rate."""
        return tuple(p.name for p in self.probes if not p.every)

    @property
    def slow_every(self) -> int:
        """Calls between two records of the probes that do not record in every call.

        0 if there are no such probes. One rate for all of them, because the programs
        of a function are bare, quiet and loud: these probes are in the loud one.
        """
        if not self._has_slow:
            return 0
        return max(p.every for p in self.probes)

    @property
    def _numbers_every(self) -> int:
        """Calls between two calls that record some number; 0 for never."""
        rates = [p.every for p in self.probes if p.kind == "scalar" and p.every]
        return min(rates, default=0)

    @property
    def _has_slow(self) -> bool:
        return any(p.every > 1 or (p.every and p.kind == "frame") for p in self.probes)

    def level_of(self, probe: Probe) -> int:
        """Return the lowest program level that records a probe under this plan."""
        for planned in self.probes:
            if (planned.name, planned.kind) == (probe.name, probe.kind):
                if not planned.every:
                    return NEVER
                if _RANKS[planned.kind] == 0:
                    return BARE
                is_slow = planned.every > 1 or planned.kind == "frame"
                return LOUD if is_slow else QUIET
        # Not seen with the example arguments, so nothing is known of its price. Only
        # summaries and calls are never left out.
        return BARE if _RANKS[probe.kind] == 0 else NEVER

    def __str__(self) -> str:
        rows = []
        for p in self.probes:
            when = {0: "left out", 1: "every call"}.get(
                p.every, f"every {p.every} calls"
            )
            share = p.seconds / max(p.every, 1) / self.step_seconds * bool(p.every)
            rows.append(
                [
                    p.name,
                    p.kind,
                    when,
                    format_seconds(p.seconds),
                    format_bytes(p.bytes),
                    format_share(share),
                ]
            )
        if self.shared_seconds and self._numbers_every:
            every = self._numbers_every
            rows.append(
                [
                    "numbers, once",
                    "scalar",
                    "every call" if every == 1 else f"every {every} calls",
                    format_seconds(self.shared_seconds),
                    "",
                    format_share(self.shared_seconds / every / self.step_seconds),
                ]
            )
        drains_share = self.drains * self.drain_seconds / self.steps / self.step_seconds
        when = f"every {self.interval} calls"
        drain_s = format_seconds(self.drain_seconds)
        rows.append(["drains", "", when, drain_s, "", format_share(drains_share)])
        limit = f"limit {format_share(self.budget.share)}"
        step_s = f"of {format_seconds(self.step_seconds)}"
        rows.append(["all", "", limit, step_s, "", format_share(self.predicted)])
        return table(["probe", "kind", "when", "adds", "bytes", "share"], rows)


def plan(
    fn: Callable[..., Any],
    budget: OverheadBudget,
    *,
    example_args: Sequence[Any],
    steps: int,
    seconds: float = 5.0,
    chunk_s: float = 0.005,
    clock: Callable[[], float] = time.perf_counter,
) -> WatchPlan:
    """Measure a function's probes and plan which of them the budget can pay for.

    Summaries and user callbacks come first, since they are in every call, then numbers,
    then frames. Probes that are not affordable in every call share a lower rate, which
    takes half of the rest; the other half pays for more frequent collections.

    Args:
        fn: a function, or one from `watch.jit`.
        budget: the share of the running time that watching may add.
        example_args: arguments of `fn`, with which it is measured.
        steps: calls of the run; >= 1.
        seconds: total time to measure besides compiling, roughly.
        chunk_s: duration of one turn, roughly.
        clock: a monotonic clock in seconds.

    Raises:
        InfeasibleBudgetError: summaries, user callbacks and one collection at the end
            cost more than the budget. With `needed` as the budget, planning succeeds,
            if it measures the same times.
        TypeError: `fn` is not callable, or `budget` is not an OverheadBudget.
        ValueError: a number is out of its range.
    """
    check_budget(budget, OverheadBudget)
    _check_steps(steps)
    prices = price(
        fn,
        *example_args,
        seconds=seconds,
        chunk_s=chunk_s,
        callbacks=False,
        clock=clock,
    )
    return plan_prices(prices, budget, steps=steps)


def plan_prices(
    prices: WatchPrices, budget: OverheadBudget, *, steps: int
) -> WatchPlan:
    """Plan with prices that have been measured already; see `plan`.

    Raises:
        InfeasibleBudgetError: the budget is below the least price.
        TypeError: `budget` is not an OverheadBudget.
        ValueError: `steps` is below 1.
    """
    check_budget(budget, OverheadBudget)
    _check_steps(steps)
    ordered = sorted(prices.probes, key=lambda p: (_RANKS[p.kind], p.seconds))
    planned = [_to_planned(p, every=int(_RANKS[p.kind] == 0)) for p in ordered]
    # The least that can be done: summaries, and one drain at the end.
    draft = WatchPlan(
        budget=budget,
        steps=steps,
        step_seconds=prices.step_seconds,
        drain_seconds=prices.drain_seconds,
        shared_seconds=prices.shared_seconds,
        probes=tuple(planned),
        interval=steps,
    )
    # Whether a plan fits is always decided by the prediction itself, so that rounding
    # cannot make a plan of `needed` exceed it.
    fits = lambda candidate: candidate.predicted <= budget.share
    if not fits(draft):
        raise InfeasibleBudgetError(
            "recording the summaries and collecting them at the end of the run",
            needed=draft.predicted,
            limit=budget.share,
            unit=_UNIT,
            hint="run more steps, or record fewer summaries.",
        )
    slow: list[int] = []
    for i, probe in enumerate(ordered):
        if probe.kind == "scalar" and fits(with_rate := _set_rates(draft, {i: 1})):
            draft = with_rate
        elif _RANKS[probe.kind]:
            slow.append(i)
    # The most expensive probes are given up until the others can share a rate.
    while slow:
        # Half of the rest, so that drains need not wait until the end of the run: until
        # then the records would fill the device, and a crash would lose them.
        rest_s = (budget.share - draft.predicted) * draft.step_seconds / 2
        price_s = sum(ordered[i].seconds for i in slow)
        if not draft._numbers_every and any(ordered[i].kind == "scalar" for i in slow):
            price_s += prices.shared_seconds
        every = steps + 1
        if rest_s > 0:
            every = max(math.ceil(price_s / rest_s), 1)
        if every <= steps and fits(
            with_rate := _set_rates(draft, dict.fromkeys(slow, every))
        ):
            draft = with_rate
            break
        # The list is sorted by class and then by price, so its last probe is the most
        # expensive of the least important class.
        slow.pop()
    drains = lambda interval: dataclasses.replace(draft, interval=interval)
    return drains(_smallest(lambda interval: fits(drains(interval)), steps))


def collection_interval(
    budget: OverheadBudget,
    *,
    step_seconds: float,
    drain_seconds: float,
    steps: int,
    record_seconds: float = 0.0,
) -> int:
    """Return the smallest number of steps between drains that keeps the budget.

    Args:
        budget: the share of the running time that watching may add.
        step_seconds: seconds of one step without watching; > 0.
        drain_seconds: seconds of one drain, besides its records; > 0.
        steps: steps of the run; >= 1.
        record_seconds: seconds that each record adds, collected or not; >= 0. The
            default suits metrics that leave the program stacked, many steps per array.

    Raises:
        InfeasibleBudgetError: one drain at the end costs more than the budget. If
            `needed` is above 1 the run is too short for any budget.
        TypeError: `budget` is not an OverheadBudget.
        ValueError: a number is out of its range.

    Example:
        >>> collection_interval(OverheadBudget("1%"), step_seconds=0.01,
        ...                     drain_seconds=0.0003, steps=10_000)
        4
    """
    check_budget(budget, OverheadBudget)
    _check_steps(steps)
    for name, value in (
        ("step_seconds", step_seconds),
        ("drain_seconds", drain_seconds),
    ):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be > 0 and finite, got {value}.")
    if not 0 <= record_seconds < math.inf:
        raise ValueError(f"record_seconds must be >= 0, got {record_seconds}.")

    def share(interval: int) -> float:
        drains = -(-steps // interval)
        spent = drains * drain_seconds + steps * record_seconds
        return spent / (steps * step_seconds)

    if share(steps) > budget.share:
        raise InfeasibleBudgetError(
            "one collection of the records, at the end of the run,",
            needed=share(steps),
            limit=budget.share,
            unit=_UNIT,
            hint="run more steps.",
        )
    return _smallest(lambda interval: share(interval) <= budget.share, steps)


def _smallest(fits: Callable[[int], bool], largest: int) -> int:
    """Return the smallest number that fits, given that `largest` does.

    Bisection: fewer drains never cost more, rounding included.
    """
    low, high = 0, largest  # invariant: `low` does not fit, `high` does
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle
    return high


def _check_steps(steps: int) -> None:
    if isinstance(steps, bool) or steps < 1:
        raise ValueError(f"steps must be an integer >= 1, got {steps!r}.")


def _to_planned(probe: ProbePrice, *, every: int) -> PlannedProbe:
    return PlannedProbe(
        name=probe.name,
        kind=probe.kind,
        seconds=probe.seconds,
        bytes=probe.bytes,
        every=every,
    )


def _set_rates(draft: WatchPlan, rates: dict[int, int]) -> WatchPlan:
    probes = list(draft.probes)
    for i, every in rates.items():
        probes[i] = dataclasses.replace(probes[i], every=every)
    return dataclasses.replace(draft, probes=tuple(probes))
