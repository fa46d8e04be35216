"""What each probe would cost before the run, and which of them a budget can pay for."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from frugax.budget import (
    JsonPlan,
    OverheadBudget,
    check_budget,
    format_bytes,
    format_seconds,
    format_share,
    table,
)

from ._turns import Turns, check_seconds, copied, take_turns
from ._variants import Variants
from .probes import Probe

# Whose turn it is first: what may never be left out, then numbers, then frames.
_RANK = {"summary": 0, "call": 0, "scalar": 1, "frame": 2}
# Records are read many at a time, when the budget can pay, not after each call.
_READ = 32
# What comes less often than that does not come.
_MOST_SELDOM = 10**6
_BARE = " "  # no probe has this name for itself: `price` numbers them


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProbePrice:
    """What one probe costs, and how often it is paid for.

    Attributes:
        name: of the probe.
        kind: its class.
        seconds: that one step takes longer with it, reading it included; >= 0.
        noise: half-width of the interval in which that lies, in seconds.
        bytes: that leave the program with each step.
        callback_seconds: what the same as a `jax.debug.callback` would add; None: not
            measured, or it is in a `scan` of this room, which calls nobody.
        every: it is paid for in every so manyth step; 0: not at all.
        needs: share of the running time that would pay for it in every step, besides
            those before it.
    """

    name: str
    kind: str
    seconds: float
    noise: float
    bytes: int
    callback_seconds: float | None
    every: int
    needs: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WatchPrices(JsonPlan):
    """The price list of a watched function; `str` is a table.

    Attributes:
        budget: the most that watching may add.
        step_seconds: what one call takes without watching.
        probes: in the order in which they were paid for.
    """

    budget: OverheadBudget
    step_seconds: float
    probes: tuple[ProbePrice, ...]

    @property
    def predicted(self) -> float:
        """Share of the running time that what is paid for adds; <= `budget.share`."""
        paid = sum(p.seconds / p.every for p in self.probes if p.every)
        return paid / self.step_seconds

    @property
    def left_out(self) -> tuple[str, ...]:
        """The probes that the budget cannot pay for, however seldom."""
        return tuple(p.name for p in self.probes if not p.every)

    def __str__(self) -> str:
        rows = []
        for p in self.probes:
            when = {0: "left out", 1: "every step"}.get(p.every, f"every {p.every}")
            back = p.callback_seconds
            rows.append(
                [
                    p.name,
                    p.kind,
                    f"{format_seconds(p.seconds)} ± {format_seconds(p.noise)}",
                    format_bytes(p.bytes),
                    "-" if back is None else format_seconds(back),
                    when,
                    format_share(p.needs),
                ]
            )
        limit, paid = format_share(self.budget.share), format_share(self.predicted)
        step = format_seconds(self.step_seconds)
        rows.append(["all", f"limit {limit}", f"of {step}", "", "", paid, ""])
        head = ["probe", "kind", "adds", "bytes", "as a callback", "paid for", "needs"]
        return table(head, rows)


def price(
    fn: Callable[..., Any],
    *args: Any,
    budget: OverheadBudget | None = None,
    seconds: float = 5.0,
    chunk_s: float = 0.005,
    callbacks: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> WatchPrices:
    """Measure what each probe of a function costs, and pay for what the budget can.

    For each probe a program with it alone is compiled; these and the bare one are timed
    in turns. To what such a program takes longer, the reading of its records is added.
    Summaries are paid for first, then numbers, then frames; among equals the cheap
    ones. A number or a frame that does not fit in every step is paid for less often, of
    half of what is left.

    Args:
        fn: from `watch.jit`, or a function that could be.
        args: its arguments; copied for each call if it donates.
        budget: the most that watching may add; None: 1%.
        seconds: about how long to measure, besides compiling.
        chunk_s: how long each turn lasts, about.
        callbacks: measure, too, what each would cost as a callback.
        clock: seconds, rising.

    Raises:
        TypeError: `fn` cannot be called, or `budget` is no budget.
        ValueError: a time is not above 0.
    """
    if not callable(fn):
        raise TypeError(f"watch.price needs a function, got {fn!r}.")
    budget = OverheadBudget("1%") if budget is None else budget
    check_budget(budget, OverheadBudget)
    check_seconds(seconds, chunk_s)
    known = getattr(fn, "variants", None)
    variants: Variants = known() if known else Variants(fn, {})
    if not variants.known:
        variants.look(args, {})
    probes = variants.all_probes
    programs: dict[str, Callable[..., Any]] = {_BARE: variants.bare}
    alone = [variants.alone(probe) for probe in probes]
    for i, program in enumerate(alone):
        programs[f"{i}"] = program

    def timed(programs: Mapping[str, Callable[..., Any]], seconds: float) -> Turns:
        return take_turns(
            programs,
            args,
            seconds=seconds,
            chunk_s=chunk_s,
            donates=variants.donates,
            clock=clock,
        )

    measured = timed(programs, seconds)
    step = float(np.median(measured.seconds[_BARE]))
    found = []
    for i, probe in enumerate(probes):
        added = measured.added(f"{i}", _BARE)
        back = _as_callback(variants, probe, args, timed) if callbacks else None
        _, shapes = alone[i].eval_shape(*args)
        size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes))
        reading = _reading_s(alone[i], args, clock, donates=variants.donates)
        cost = max(added.middle, 0.0) + reading
        found.append((probe, cost, added.noise, size, back))
    return WatchPrices(
        budget=budget, step_seconds=step, probes=_paid(found, budget.share * step, step)
    )


def _as_callback(
    variants: Variants, probe: Probe, args: Sequence[Any], timed: Callable[..., Turns]
) -> float | None:
    """Seconds that a probe adds to a call if it is a callback; None: it is none."""
    called = variants.called(probe)
    # In `watch.scan` it leaves as an output whoever collects: there is no callback.
    if not called.trace(*args).jaxpr.effects:
        return None
    try:
        turns = timed({_BARE: variants.bare, "called": called}, 1.0)
    except jax.errors.JaxRuntimeError:
        # XLA:CPU cannot compile every program with a callback: in JAX 0.10.2 it fails
        # for tanh(x @ w), called back with and returned.
        return None
    return max(turns.added("called", _BARE).middle, 0.0)


def _reading_s(
    program: Callable[..., Any],
    args: Sequence[Any],
    clock: Callable[[], float],
    *,
    donates: bool,
) -> float:
    """Seconds to read the records of one call, once the device has made them."""
    made = []
    for _ in range(_READ):
        given = copied(args) if donates else args
        made.append(program(*given)[1])
    jax.block_until_ready(made)
    started = clock()
    for records in made:
        records.fetch()
    return (clock() - started) / _READ


def _paid(
    found: Sequence[tuple[Probe, float, float, int, float | None]],
    limit: float,
    step: float,
) -> tuple[ProbePrice, ...]:
    """Pay for them one after the other, out of so many seconds a step."""
    spent = 0.0
    prices = []
    order = sorted(found, key=lambda f: (_RANK[f[0].kind], f[1]))
    for probe, cost, noise, size, back in order:
        left = max(limit - spent, 0.0)
        if cost <= left:
            every = 1
        elif _RANK[probe.kind] == 0 or left / 2 * _MOST_SELDOM < cost:
            every = 0  # a summary that is not of every step would be lost
        else:
            every = math.ceil(cost / (left / 2))
        prices.append(
            ProbePrice(
                name=probe.name,
                kind=probe.kind,
                seconds=cost,
                noise=noise,
                bytes=size,
                callback_seconds=back,
                every=every,
                needs=(spent + cost) / step,
            )
        )
        spent += cost / every if every else 0.0
    return tuple(prices)
