"""A plan keeps the budget, and collects no less often than the budget allows."""

import dataclasses
import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from frugax import InfeasibleBudgetError, OverheadBudget, watch
from refusals import refuses

seconds = st.floats(1e-6, 10.0)
X = jnp.ones((8, 8))


def interval(share, **given):
    return watch.collection_interval(OverheadBudget(share=share), **given)


@settings(deadline=None)
@given(st.floats(0, 1), seconds, seconds, st.integers(1, 10**9), st.floats(0, 1e-3))
def test_the_interval_keeps_the_budget_and_a_smaller_one_does_not(
    share, step, drain, n, record
):
    predict = lambda every: (-(-n // every) * drain + n * record) / (n * step)
    given = {"step_seconds": step, "drain_seconds": drain, "record_seconds": record}
    if predict(n) > share:  # one drain, at the end, is the least there is
        with pytest.raises(InfeasibleBudgetError) as caught:
            interval(share, steps=n, **given)
        assert caught.value.needed == predict(n)
        return
    every = interval(share, steps=n, **given)
    assert 1 <= every <= n
    assert predict(every) <= share
    if every > 1:
        assert predict(every - 1) > share


@settings(deadline=None)
@given(seconds, seconds, st.integers(1, 10**6))
def test_an_interval_exists_at_the_needed_share_and_not_below(step, drain, n):
    given = {"step_seconds": step, "drain_seconds": drain, "steps": n}
    with pytest.raises(InfeasibleBudgetError) as caught:
        interval(0.0, **given)
    needed = caught.value.needed
    assume(1e-9 < needed <= 1)
    assert -(-n // interval(needed, **given)) == 1
    with refuses(InfeasibleBudgetError, "steps"):
        interval(needed * (1 - 1e-9), **given)


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0},
        {"step_seconds": 0.0},
        {"drain_seconds": float("nan")},
        {"record_seconds": -1.0},
    ],
)
def test_a_number_out_of_its_range_is_named(wrong):
    right = {"step_seconds": 1.0, "drain_seconds": 1.0, "steps": 10}
    with refuses(ValueError, *wrong):
        interval(0.5, **(right | wrong))


def priced(*rows, step=1000.0, drain=1e-9, shared=0.0):
    probes = tuple(
        watch.ProbePrice(
            name=name, kind=kind, seconds=s, noise=0.0, bytes=4, callback_seconds=None
        )
        for name, kind, s in rows
    )
    return watch.WatchPrices(
        step_seconds=step, drain_seconds=drain, shared_seconds=shared, probes=probes
    )


def rates(plan):
    return [(p.name, p.every) for p in plan.probes]


def test_summaries_are_paid_first_then_numbers_then_frames():
    prices = priced(
        ("f", "frame", 1.0),
        ("b", "scalar", 4.0),
        ("a", "scalar", 1.0),
        ("s", "summary", 2.0),
    )
    plan = watch.plan_prices(prices, OverheadBudget("1%"), steps=10_000)
    # 7 of 10 are spent; the frame may have half of the other 3.
    assert rates(plan) == [("s", 1), ("a", 1), ("b", 1), ("f", 1)]


def test_the_shared_cost_of_numbers_is_paid_once():
    rows = [(f"n{i}", "scalar", 0.5) for i in range(10)]
    plan = watch.plan_prices(
        priced(*rows, shared=5.0), OverheadBudget("1.1%"), steps=10_000
    )
    assert rates(plan) == [(f"n{i}", 1) for i in range(10)]
    assert plan.predicted == pytest.approx(0.01)
    assert "numbers, once" in str(plan)
    # No number is left, so nothing is paid for them.
    tight = watch.plan_prices(
        priced(*rows, shared=5.0, step=1e-6), OverheadBudget("1%"), steps=100
    )
    assert tight.predicted < 0.01
    assert "numbers, once" not in str(tight)


def test_probes_that_do_not_fit_share_a_rate_or_are_left_out():
    budget = OverheadBudget("1%")
    prices = priced(("a", "scalar", 2.0), ("b", "scalar", 79.0), ("c", "frame", 320.0))
    plan = watch.plan_prices(prices, budget, steps=10_000)
    # The two cost 399 together, and may have half of the remaining 8.
    assert rates(plan) == [("a", 1), ("b", 100), ("c", 100)]
    assert plan.slow_every == 100
    short = watch.plan_prices(prices, budget, steps=50)
    assert rates(short) == [("a", 1), ("b", 20), ("c", 0)]
    assert short.left_out == ("c",)


def test_summaries_that_do_not_fit_are_infeasible():
    prices = priced(("s", "summary", 11.0), ("f", "frame", 1.0), drain=0.0)
    with refuses(InfeasibleBudgetError, "summaries") as caught:
        watch.plan_prices(prices, OverheadBudget("1%"), steps=10)
    assert caught.value.needed == 0.011


kind = st.sampled_from(["summary", "call", "scalar", "frame"])


@settings(deadline=None)
@given(
    st.lists(st.tuples(kind, st.floats(0, 100)), max_size=6),
    st.floats(0, 0.5),
    st.integers(1, 10**6),
    st.floats(1e-6, 1e3),
)
def test_a_plan_never_exceeds_its_budget(rows, share, steps, drain):
    prices = priced(*((f"{i}", k, s) for i, (k, s) in enumerate(rows)), drain=drain)
    try:
        plan = watch.plan_prices(prices, OverheadBudget(share=share), steps=steps)
    except InfeasibleBudgetError as error:
        assume(share < error.needed <= 1)
        share = error.needed
        plan = watch.plan_prices(prices, OverheadBudget(share=share), steps=steps)
    assert plan.predicted <= share
    if plan.interval > 1:
        oftener = dataclasses.replace(plan, interval=plan.interval - 1)
        assert oftener.predicted > share
    assert len({p.every for p in plan.probes if p.every > 1}) <= 1
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
    assert [p.name for p in plan.probes] == ["end", "mean", "x"]
    assert [p.bytes for p in plan.probes] == [4, 4, 256]
    assert plan.predicted <= 0.5
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.budget = None  # pyright: ignore[reportAttributeAccessIssue]
    text = str(plan)
    assert "limit 50%" in text
    assert "drains" in text


def test_planning_succeeds_at_the_needed_budget_and_not_below():
    with refuses(InfeasibleBudgetError, "steps") as caught:
        planned(1e-9)
    needed = caught.value.needed
    assert planned(needed).predicted == needed
    with pytest.raises(InfeasibleBudgetError):
        planned(float(np.nextafter(needed, 0)))


def plan_of(**rates):
    kinds = {"end": "summary", "mean": "scalar", "x": "frame"}
    probes = tuple(
        watch.PlannedProbe(
            name=name, kind=kinds[name], seconds=0.0, bytes=4, every=every
        )
        for name, every in rates.items()
    )
    return watch.WatchPlan(
        budget=OverheadBudget("100%"),
        steps=100,
        step_seconds=1.0,
        drain_seconds=0.1,
        shared_seconds=0.0,
        probes=probes,
        interval=10,
    )


@pytest.mark.parametrize(
    ("rates", "counts"),
    [
        ({"end": 1, "mean": 1, "x": 10}, (100, 100, 10)),
        ({"end": 1, "mean": 5, "x": 5}, (100, 20, 20)),
        ({"end": 1, "mean": 0, "x": 0}, (100, 0, 0)),
        ({"end": 1, "mean": 1, "x": 0}, (100, 100, 0)),
        ({"end": 1, "mean": 0, "x": 1}, (100, 0, 100)),
    ],
)
def test_a_function_records_according_to_its_plan(tmp_path, rates, counts):
    plan = plan_of(**rates)
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
    assert program.variants().sizes()["quiet"] == 0
    assert program.watcher.recorded == 0


def test_wrong_arguments_are_refused():
    plan = plan_of()
    with pytest.raises(TypeError):
        watch.apply(3, plan)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError):
        watch.apply(fn, "plan")  # pyright: ignore[reportArgumentType]
    with refuses(ValueError, "steps", 0):
        planned(0.5, steps=0)
