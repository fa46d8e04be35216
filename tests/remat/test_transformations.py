"""Planned gradients under `vmap` and `jax.checkpoint`; wrong arguments of `plan`."""

import jax
import jax.numpy as jnp
import pytest

from frugax import MemoryBudget, remat
from refusals import refuses

from .checks import assert_same, plan_whole, temp_bytes
from .nets import WS, X, chain


def test_vmap_of_a_planned_gradient_runs_row_by_row(chain_plan):
    step = remat.apply(chain, chain_plan)
    rows = jnp.stack([X, X + 1, X - 1])
    mapped = jax.vmap(step, in_axes=(None, 0))
    want = jax.vmap(jax.value_and_grad(chain), in_axes=(None, 0))
    assert_same(mapped(WS, rows), want(WS, rows))
    # A gate that became a `select` would hold all three rows at once.
    assert temp_bytes(mapped, WS, rows) < 1.5 * chain_plan.unplanned_bytes


def test_a_plan_for_a_program_that_maps_the_gradient_measures_what_runs():
    rows = jnp.stack([X, X + 1, X - 1])
    whole = remat.EnclosingProgram(
        build=lambda value_and_grad: jax.vmap(value_and_grad(chain), in_axes=(None, 0)),
        args=(WS, rows),
    )
    how = {"example_args": (WS, X), "within": whole}
    plan = plan_whole(chain, MemoryBudget.share(0.5), **how)
    step = remat.apply(chain, plan)
    spend = step.report(WS, X, within=whole).spends[0]
    assert spend.measured == plan.predicted
    assert temp_bytes(whole.build_around(step), WS, rows) == plan.predicted


def test_the_regions_of_a_loss_are_opened_where_that_is_better():
    whole = jax.checkpoint(chain)
    plan = plan_whole(whole, MemoryBudget.share(0.75), example_args=(WS, X))
    assert plan.is_opened
    assert "jax.checkpoint regions are opened" in plan.explain()
    step = remat.apply(whole, plan)
    assert_same(step(WS, X), jax.jit(jax.value_and_grad(chain))(WS, X))
    assert temp_bytes(step, WS, X) == plan.predicted <= plan.budget.limit_bytes


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ((WS, "data"), "data"),
        ((WS, jnp.tanh), "example_args"),
    ],
)
def test_arguments_that_are_not_arrays_are_named_in_one_line(args, named):
    with refuses(TypeError, named) as caught:
        remat.plan(chain, MemoryBudget("1MiB"), example_args=args)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("share", [0, 1.5, "150%"])
def test_a_share_is_above_0_and_at_most_1(share):
    with refuses(ValueError, "share"):
        MemoryBudget.share(share)
