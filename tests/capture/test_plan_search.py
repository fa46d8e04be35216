"""The plans that `fx.jit` tries, and when it looks for none."""

import warnings

import jax
import jax.numpy as jnp
import pytest

import frugax as fx
from draws import normal
from frugax.capture import (
    UnplannedWarning,
)
from planned_steps import ROWS, WEIGHTS, assert_planned, assert_same, sgd
from refusals import assert_names, warns


def test_where_nothing_fits_the_step_runs_as_it_is_and_a_warning_says_so():
    step = fx.jit(sgd, memory=fx.MemoryBudget("1KiB"))
    with warns(UnplannedWarning, "sgd", "1 KiB"):
        found = step(WEIGHTS, ROWS)
    assert_same(found, jax.jit(sgd)(WEIGHTS, ROWS))
    assert not step.plan.fits
    assert step.plan.gradients == ()
    assert step.report().program.memory.temp_bytes == step.plan.unplanned_bytes


def test_a_share_of_a_few_kilobytes_is_not_looked_for(monkeypatch):
    asked = _count_searches(monkeypatch)
    step = fx.jit(sgd, memory="60%")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = step(WEIGHTS[:16, :16], ROWS[:32, :16])
    assert_same(found, jax.jit(sgd)(WEIGHTS[:16, :16], ROWS[:32, :16]))
    report = step.report()
    assert (asked, step.plan, report.receipt) == ([], None, None)
    assert_names(str(report), "64 KiB", "temporaries")
    # A limit in bytes is what was asked for.
    with warns(UnplannedWarning):
        fx.jit(sgd, memory="1KiB")(WEIGHTS[:16, :16], ROWS[:32, :16])


def _count_searches(monkeypatch):
    asked = []
    find = fx.remat.plan

    def plan(*args, **options):
        asked.append(options["within_s"])
        return find(*args, **options)

    monkeypatch.setattr(fx.remat, "plan", plan)
    return asked


@pytest.mark.parametrize(
    ("memory", "harder", "easier"),
    [("0.4%", 256, 1024), pytest.param("1KiB", 1024, 256, marks=pytest.mark.thorough)],
)
def test_where_nothing_fits_harder_shapes_are_not_planned_again(
    monkeypatch, memory, harder, easier
):
    budget = memory if memory.endswith("%") else fx.MemoryBudget(memory)
    step = fx.jit(sgd, memory=budget)
    asked = _count_searches(monkeypatch)
    rows = lambda n: jnp.ones((n, 64))
    with warns(UnplannedWarning):
        step(WEIGHTS, rows(512))
    assert len(asked) == 1
    with warns(UnplannedWarning):
        found = step(WEIGHTS, rows(harder))
    assert_same(found, jax.jit(sgd)(WEIGHTS, rows(harder)))
    assert len(asked) == 1
    assert step.plan.problems
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnplannedWarning)
        step(WEIGHTS, rows(easier))
        assert len(asked) == 2
        # Weights of another type are those of another program.
        step(WEIGHTS.astype("bfloat16"), rows(harder).astype("bfloat16"))
        assert len(asked) == 3


def test_planning_ends_after_some_time_and_the_report_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = _count_searches(monkeypatch)
    step = assert_planned(sgd, WEIGHTS, ROWS)
    assert 0 < min(asked) <= max(asked)
    assert step.plan.cut_after_s is None
    whole = str(step.report())
    late = property(lambda bench: bench.compiles >= 3)
    place = "frugax.remat._compile_search.CompileBench.is_late"
    monkeypatch.setattr(place, late)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    step = assert_planned(sgd, WEIGHTS, ROWS)
    assert 0 < step.plan.cut_after_s <= max(asked)
    assert str(step.report()).count(",") > whole.count(",")


def test_where_there_is_no_time_to_plan_the_step_runs_as_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = "frugax.remat._compile_search.CompileBench.is_late"
    monkeypatch.setattr(place, True)
    step = fx.jit(sgd, memory="60%")
    with warns(UnplannedWarning, "sgd"):
        found = step(WEIGHTS, ROWS)
    assert_same(found, jax.jit(sgd)(WEIGHTS, ROWS))
    assert not step.plan.gradients
    assert step.plan.problems


def test_a_failure_of_the_planner_is_not_one_of_the_step(monkeypatch):
    def fail(*_, **__):
        raise AssertionError("a bug")

    monkeypatch.setattr(fx.remat, "plan", fail)
    with warns(UnplannedWarning, "sgd", "AssertionError"):
        found = fx.jit(sgd, memory="60%")(WEIGHTS, ROWS)
    assert_same(found, jax.jit(sgd)(WEIGHTS, ROWS))


def test_a_plan_is_found_once_for_arguments_of_another_type(monkeypatch):
    def counted(count, w, x):
        return count + 1, *sgd(w, x)

    searches, plan = [], fx.remat.plan
    monkeypatch.setattr(
        fx.remat, "plan", lambda *a, **k: searches.append(a) or plan(*a, **k)
    )
    step = fx.jit(counted, memory="60%")
    for count in (0, jnp.int32(1), jnp.zeros(3)):
        assert_same(step(count, WEIGHTS, ROWS), jax.jit(counted)(count, WEIGHTS, ROWS))
        assert step.plan.gradients
        assert step.plan.fits
    assert len(searches) == 1


def test_a_near_miss_runs_the_smallest_program_and_says_so(monkeypatch):
    find = fx.remat.plan

    def plan(loss, budget, **options):
        more = fx.MemoryBudget(limit_bytes=int(1.05 * budget.limit_bytes), kind="temp")
        best = find(loss, more, **options)
        raise fx.InfeasibleBudgetError(
            "the step",
            needed=best.predicted,
            limit=budget.limit_bytes,
            unit="bytes",
            hint="",
            best=best,
        )

    probe = assert_planned(sgd, WEIGHTS, ROWS)
    limit = int(probe.plan.predicted / 1.04)
    monkeypatch.setattr(fx.remat, "plan", plan)
    near = fx.jit(sgd, memory=fx.MemoryBudget(limit_bytes=limit, kind="temp"))
    with warns(UnplannedWarning):
        assert_same(near(WEIGHTS, ROWS), jax.jit(sgd)(WEIGHTS, ROWS))
    assert limit < near.plan.predicted <= 1.1 * limit
    assert near.plan.gradients
    assert near.report().program.memory.temp_bytes == near.plan.predicted


@pytest.mark.parametrize("memory", ["60%", "54.1%"])
def test_gradients_of_single_rows_are_not_taken_one_by_one(memory):
    # As of a network that is trained to solve a differential equation.
    def residuals(ws, rows):
        def u(row):
            for w in ws:
                row = jnp.tanh(row @ w)
            return row.sum()

        slopes = jax.vmap(jax.grad(u))(rows)
        return slopes, jnp.mean((slopes[:, 1] + slopes[:, 0]) ** 2)

    sizes = ((2, 20), (20, 20), (20, 20), (20, 1))
    ws = [normal(i, *size, scale=0.3) for i, size in enumerate(sizes)]
    step = assert_planned(residuals, ws, normal(9, 4480, 2), memory=memory)
    (gradient,) = step.plan.gradients
    assert gradient.batch.count <= 70
