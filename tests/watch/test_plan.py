"""A plan keeps the budget, and collects no less often than the budget allows."""

import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from frugax import InfeasibleBudgetError, OverheadBudget, watch
from frugax.watch._plan import choose_rates
from refusals import refuses

X = jnp.ones((8, 8))


KINDS = ("summaries", "numbers", "frames")


def planned_costs(budget, steps, *, drain=1e-9, **seconds):
    """Plan by the costs of the kinds that are named; the step takes 1000 s."""
    kinds: Any = seconds
    records = tuple(
        watch.PlannedRecords(
            kind=kind,
            names=(kind[0],),
            seconds=kinds[kind],
            bytes=4,
            every=int(kind == "summaries"),
        )
        for kind in kinds
    )
    draft = watch.WatchPlan(
        budget=budget,
        steps=steps,
        step_seconds=1000.0,
        drain_seconds=drain,
        records=records,
    )
    return choose_rates(draft)


@pytest.mark.parametrize(
    ("steps", "seconds", "every", "left_out"),
    [
        # Summaries first, then numbers: 7 of 10 are spent, and the frame may have half
        # of the other 3.
        (10_000, (2.0, 5.0, 1.0), (1, 1, 1), ()),
        # The frames may have half of the remaining 8, if the run is long enough.
        (10_000, (0.0, 2.0, 398.0), (1, 1, 100), ()),
        (50, (0.0, 2.0, 398.0), (1, 1, 0), ("f",)),
        # 12 do not fit and may have 5; the frames 3, in calls that make numbers.
        (10_000, (0.0, 12.0, 10.0), (1, 3, 6), ()),
    ],
)
def test_the_budget_pays_for_summaries_then_numbers_then_frames(
    steps, seconds, every, left_out
):
    costs = dict(zip(KINDS, seconds, strict=True))
    plan = planned_costs(OverheadBudget("1%"), steps, **costs)
    assert tuple(one.every for one in plan.records) == every
    assert plan.left_out == left_out


def test_summaries_that_do_not_fit_are_infeasible():
    with refuses(InfeasibleBudgetError, "summaries") as caught:
        planned_costs(OverheadBudget("1%"), 10, summaries=11.0, frames=1.0, drain=0.0)
    assert caught.value.needed == 0.011
    with refuses(InfeasibleBudgetError, "collecting records", "more steps"):
        planned_costs(OverheadBudget("1%"), 10, numbers=1.0, drain=200.0)


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(sorted(KINDS)), st.floats(0, 100)),
    st.floats(0, 0.5),
    st.integers(1, 10**6),
    st.floats(1e-6, 1e3),
)
def test_a_plan_never_exceeds_its_budget(seconds, share, steps, drain):
    given = {kind: seconds[kind] for kind in KINDS if kind in seconds}
    given["drain"] = drain
    try:
        plan = planned_costs(OverheadBudget(share=share), steps, **given)
    except InfeasibleBudgetError as error:
        assume(share < error.needed <= 1)
        share = error.needed
        plan = planned_costs(OverheadBudget(share=share), steps, **given)
    assert plan.predicted <= share
    assert plan.every("frames") % max(plan.every("numbers"), 1) == 0
    assert watch.WatchPlan.from_json(plan.to_json()) == plan
    assert len({plan, watch.WatchPlan.from_json(plan.to_json())}) == 1


def fn(x):
    watch.record("mean", x.mean())
    watch.summarise("end", x[0, 0])
    watch.frame("x", x)
    return jnp.sin(x)


def planned(share, steps=1000):
    ticks = itertools.count()
    return watch.plan(
        fn,
        OverheadBudget(share=share),
        example_args=(X,),
        steps=steps,
        seconds=0.01,
        chunk_s=1e-3,
        clock=lambda: next(ticks) * 1e-3,
    )


def test_the_same_times_give_the_same_plan():
    plan = planned(0.5)
    assert plan == planned(0.5)
    assert [one.names for one in plan.records] == [("end",), ("mean",), ("x",)]
    assert [one.bytes for one in plan.records] == [4, 4, 256]
    assert plan.predicted <= 0.5


def plan_of(**every: int):
    names: dict[Any, str] = {"summaries": "end", "numbers": "mean", "frames": "x"}
    records = tuple(
        watch.PlannedRecords(
            kind=kind, names=(name,), seconds=0.0, bytes=4, every=every[kind]
        )
        for kind, name in names.items()
        if kind in every
    )
    return watch.WatchPlan(
        budget=OverheadBudget("100%"),
        steps=100,
        step_seconds=1.0,
        drain_seconds=0.1,
        records=records,
    )


@pytest.mark.parametrize(
    ("every", "counts"),
    [
        ({"summaries": 1, "numbers": 1, "frames": 10}, (100, 100, 10)),
        ({"summaries": 1, "numbers": 5, "frames": 10}, (100, 20, 10)),
        ({"summaries": 1, "numbers": 0, "frames": 0}, (100, 0, 0)),
        ({"summaries": 1, "numbers": 1, "frames": 0}, (100, 100, 0)),
        ({"summaries": 1, "numbers": 0, "frames": 1}, (100, 0, 100)),
    ],
)
def test_a_function_records_according_to_its_plan(tmp_path, every, counts):
    plan = plan_of(**every)
    path = tmp_path / "journal"
    y = X
    with watch.Journal.create(path, {}) as journal:
        with watch.apply(fn, plan, journal=journal) as program:
            for i in range(100):
                y = program(X + i)
        np.testing.assert_array_equal(y, jnp.sin(X + 99))
        receipt = program.report()
    assert receipt.spends[0].predicted == plan.predicted
    records = watch.read(path, strict=True)
    rows = lambda name: len(records.streams[name]) if name in records.streams else 0
    assert (rows("end"), len(records), rows("x")) == counts
    for tally in program.watcher.losses.tallies.values():
        assert tally.lost == tally.waiting == 0


def test_a_function_without_planned_probes_runs_its_bare_program():
    def plain(x):
        watch.record("unplanned", x.sum())
        return x * 2

    with watch.apply(plain, plan_of()) as program:
        for _ in range(5):
            program(X)
    assert not program.variants().has(1)
    assert str(program.watcher.losses) == "no records"


def test_planning_runs_no_callback_and_keeps_donated_arguments():
    called = []

    def program(x):
        probe = watch.Probe.of("call", "call", called.append, 1.0)
        watch.probes.emit(probe, x[0, 0])
        watch.summarise("end", x[0, 0])
        return x + 1

    x, ticks = X + 0, itertools.count()
    plan = watch.plan(
        watch.jit(program, donate_argnums=0),
        OverheadBudget("50%"),
        example_args=(x,),
        steps=1000,
        seconds=0.01,
        chunk_s=1e-3,
        clock=lambda: next(ticks) * 1e-3,
    )
    assert not x.is_deleted()
    assert [(one.kind, one.names) for one in plan.records] == [("summaries", ("end",))]
    assert not called


def test_wrong_arguments_are_refused():
    plan = plan_of()
    with pytest.raises(TypeError):
        watch.apply(3, plan)  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(TypeError):
        watch.apply(fn, "plan")  # pyrefly: ignore[bad-argument-type]
    for error, wrong in (
        (ValueError, {"seconds": 0}),
        (ValueError, {"chunk_s": -1.0}),
        (ValueError, {"steps": 0}),
        (TypeError, {"steps": 2.5}),
    ):
        given: Any = {"example_args": (X,), "steps": 9, **wrong}
        with refuses(error, *wrong, *wrong.values()):
            watch.plan(fn, OverheadBudget("1%"), **given)
